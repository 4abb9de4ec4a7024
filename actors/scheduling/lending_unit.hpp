#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "actors/scheduling/caf.hpp"
#include "actors/scheduling/processor_time.hpp"

namespace ordermoe::actors {

/// A thread that is not CAF's, as one that runs actors: what it makes ready runs here at once, and no other thread has
/// to be woken for it. Of one thread.
class lending_unit final : public caf::execution_unit {
 public:
  using caf::execution_unit::execution_unit;

  void exec_later(caf::resumable* job) override { ready_.push_back(job); }

  /// Runs what is ready, and calls between() after each, until nothing is or it has worked for long: the system's threads
  /// run the rest. While others have the processor the limit stands still: more threads would wait for it as well.
  template <class Between>
  void lend(Between between) {
    constexpr std::size_t most_messages = 64;
    constexpr std::int64_t most_work_ns = 1'000'000;
    work_limit limit;
    while (!ready_.empty()) {
      auto* job = ready_.front();
      ready_.pop_front();
      if (resume(job, this, most_messages)) ready_.push_back(job);
      between();
      if (ready_.empty() || !limit.is_over(most_work_ns)) continue;
      for (auto* other : std::exchange(ready_, {})) system().scheduler().enqueue(other);
    }
    leave_log();
  }

 private:
  std::deque<caf::resumable*> ready_;
};

}  // namespace ordermoe::actors
