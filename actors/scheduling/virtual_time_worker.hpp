#pragma once

#include <caf/execution_unit.hpp>
#include <caf/scheduler/test_coordinator.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "actors/scheduling/caf.hpp"
#include "actors/scheduling/weak_timer.hpp"
#include "config/random.hpp"

namespace ordermoe::actors {

/// Virtual time: runs the jobs of CAF's testing scheduler in their order, each actor until its
/// mailbox is empty, and keeps the messages that are to come later.
///
/// Messages that are to come are either work (frames, batches: what a run waits for) or timers, which
/// alone keep nothing going.
///
/// With a seed, the next job is any of the ready ones and handles one message: every order of actors that
/// a real scheduler may choose, one at a time.
///
/// The scheduler's own try_run_once() also stays with an actor until its mailbox is empty, but
/// resumes it for every message: the order of messages is the same here, without what a resumption
/// costs. Its clock delivers by time and then in the order of sending, as here, but from a tree.
class virtual_time_worker final : public caf::execution_unit {
 public:
  /// order_seed 0: jobs run in the order in which they became ready.
  explicit virtual_time_worker(caf::scheduler::test_coordinator& scheduler,
                               std::uint64_t order_seed = 0)
      : caf::execution_unit(&scheduler.system()),
        scheduler_(scheduler),
        in_any_order_(order_seed != 0),
        order_(order_seed) {}

  void exec_later(caf::resumable* job) override { scheduler_.jobs.push_back(job); }

  /// Whether there was a job.
  bool run_one() {
    constexpr std::size_t most_messages = 1024;
    auto& jobs = scheduler_.jobs;
    if (jobs.empty()) return false;
    if (in_any_order_) std::swap(jobs.front(), jobs[order_.below(jobs.size())]);
    auto* job = jobs.front();
    jobs.pop_front();
    if (resume(job, this, in_any_order_ ? 1 : most_messages)) jobs.push_front(job);
    return true;
  }

  /// `content` reaches `to` `delay_ns` from now.
  void send_later(caf::strong_actor_ptr to, std::int64_t delay_ns, caf::mailbox_element_ptr content,
                  bool timer) {
    const auto due = scheduler_.clock().current_time + std::chrono::nanoseconds(delay_ns);
    later_.push_back({due, n_sent_++, std::move(to), std::move(content), timer});
    std::push_heap(later_.begin(), later_.end());
    n_work_ += timer ? 0 : 1;
  }

  /// Whether any message that is to come later is more than a timer.
  bool has_work() const { return n_work_ > 0; }

  /// Moves the clock to the next message that was to come later, if any, and delivers it.
  bool deliver_next() {
    if (later_.empty()) return false;
    std::pop_heap(later_.begin(), later_.end());
    auto next = std::move(later_.back());
    later_.pop_back();
    n_work_ -= next.timer ? 0 : 1;
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
    bool timer = false;
    /// The heap's top is the greatest: the one to come first.
    bool operator<(const delayed& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  caf::scheduler::test_coordinator& scheduler_;
  std::vector<delayed> later_;  ///< A heap.
  std::uint64_t n_sent_ = 0;
  std::size_t n_work_ = 0;  ///< Of later_.
  bool in_any_order_ = false;
  random_stream order_;
};

/// Whether a run waits for a message that comes later.
enum class later { work, timer };

/// Delivers a message `delay_ns` from now: through the worker in virtual time, by CAF's clock where
/// there is none.
template <class Handle, class Message>
void send_later(virtual_time_worker* worker, const Handle& to, std::int64_t delay_ns,
                Message&& message, later kind = later::work) {
  if (worker != nullptr)
    worker->send_later(caf::actor_cast<caf::strong_actor_ptr>(to), delay_ns,
                       caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                                 std::forward<Message>(message)),
                       kind == later::timer);
  else
    send_by_clock(to, delay_ns, std::forward<Message>(message));
}

template <class Handle, class Message>
void send_later(caf::scheduled_actor* self, const Handle& to, std::int64_t delay_ns,
                Message&& message, later kind = later::work) {
  send_later(dynamic_cast<virtual_time_worker*>(self->context()), to, delay_ns,
             std::forward<Message>(message), kind);
}

}  // namespace ordermoe::actors
