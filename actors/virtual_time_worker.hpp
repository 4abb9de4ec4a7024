#pragma once

#include <caf/execution_unit.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "actors/caf.hpp"

namespace ordermoe::actors {

/// Virtual time: runs the jobs of CAF's testing scheduler in their order, each actor until its
/// mailbox is empty, and keeps the messages that are to come later.
///
/// The scheduler's own try_run_once() also stays with an actor until its mailbox is empty, but
/// resumes it for every message: the order of messages is the same here, without what a resumption
/// costs. Its clock delivers by time and then in the order of sending, as here, but from a tree.
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
    if (resume(job, this, most_messages)) scheduler_.jobs.push_front(job);
    return true;
  }

  /// `content` reaches `to` `delay_ns` from now.
  void send_later(caf::strong_actor_ptr to, std::int64_t delay_ns,
                  caf::mailbox_element_ptr content) {
    const auto due = scheduler_.clock().current_time + std::chrono::nanoseconds(delay_ns);
    later_.push_back({due, n_sent_++, std::move(to), std::move(content)});
    std::push_heap(later_.begin(), later_.end());
  }

  /// Moves the clock to the next message that was to come later, if any, and delivers it.
  bool deliver_next() {
    if (later_.empty()) return false;
    std::pop_heap(later_.begin(), later_.end());
    auto next = std::move(later_.back());
    later_.pop_back();
    auto& now = scheduler_.clock().current_time;
    now = std::max(now, next.due);
    next.to->enqueue(std::move(next.content), this);
    return true;
  }

 private:
  struct delayed {
    caf::actor_clock::time_point due;
    std::uint64_t number;  ///< In the order of sending.
    caf::strong_actor_ptr to;
    caf::mailbox_element_ptr content;
    /// The heap's top is the greatest: the one to come first.
    bool operator<(const delayed& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  caf::scheduler::test_coordinator& scheduler_;
  std::vector<delayed> later_;  ///< A heap.
  std::uint64_t n_sent_ = 0;
};

/// Delivers a message `delay_ns` from now: through the worker in virtual time, by CAF's clock where
/// there is none.
template <class Handle, class Message>
void send_later(virtual_time_worker* worker, const Handle& to, std::int64_t delay_ns,
                Message&& message) {
  if (worker != nullptr)
    worker->send_later(caf::actor_cast<caf::strong_actor_ptr>(to), delay_ns,
                       caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                                 std::forward<Message>(message)));
  else
    caf::delayed_anon_send(to, std::chrono::nanoseconds(delay_ns), std::forward<Message>(message));
}

template <class Handle, class Message>
void send_later(caf::scheduled_actor* self, const Handle& to, std::int64_t delay_ns,
                Message&& message) {
  send_later(dynamic_cast<virtual_time_worker*>(self->context()), to, delay_ns,
             std::forward<Message>(message));
}

}  // namespace ordermoe::actors
