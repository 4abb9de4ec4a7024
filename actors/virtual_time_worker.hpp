#pragma once

#include <caf/execution_unit.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <cstddef>

namespace ordermoe::actors {

/// Runs the jobs of CAF's testing scheduler in their order, each actor until its mailbox is empty.
///
/// The scheduler's own try_run_once() also stays with an actor until its mailbox is empty, but
/// resumes it for every message: the order of messages is the same here, without what a resumption
/// costs.
class virtual_time_worker final : public caf::execution_unit {
 public:
  explicit virtual_time_worker(caf::scheduler::test_coordinator& scheduler)
      : caf::execution_unit(&scheduler.system()), scheduler_(scheduler) {}

  void exec_later(caf::resumable* job) override { scheduler_.jobs.push_back(job); }

  /// Whether there was a job.
  bool run_one() {
    constexpr std::size_t most_messages = 1024;
    if (scheduler_.jobs.empty()) return false;
    auto* job = scheduler_.jobs.front();
    scheduler_.jobs.pop_front();
    switch (job->resume(this, most_messages)) {
      case caf::resumable::resume_later:
        scheduler_.jobs.push_front(job);
        break;
      case caf::resumable::awaiting_message:
      case caf::resumable::done:
        caf::intrusive_ptr_release(job);
        break;
      case caf::resumable::shutdown_execution_unit:
        break;
    }
    return true;
  }

 private:
  caf::scheduler::test_coordinator& scheduler_;
};

}  // namespace ordermoe::actors
