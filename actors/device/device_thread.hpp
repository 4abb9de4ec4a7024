#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "actors/device/device.hpp"
#include "actors/device/rehearsed_clock.hpp"
#include "actors/protocol/cluster_seat.hpp"
#include "actors/protocol/status.hpp"
#include "actors/scheduling/caf.hpp"
#include "actors/scheduling/lending_unit.hpp"
#include "actors/scheduling/processor_time.hpp"
#include "config/rehearsal.hpp"

/// The private thread of one device on the wall clock.
///
///             +--- a batch waits -----> computing <---------------------------+
///             |                          |                                    |
///   idle -----+                          | batch_done, to be run here         |
///    ^        +--- a job was posted      v                                    |
///    +----- no actor is ready ------- lending: runs the actors that the       |
///                                     result makes ready; where a batch       |
///                                     waits, for a moment only ---------------+
///
/// A thread that reads the network may run the batches that wait, where they are short and the device's thread sleeps
/// (help): what a frame leads to is then computed where the frame is, and no thread is woken for it.
///
/// The thread is an execution unit like any of CAF's: whatever a result causes (the selection, the
/// token, the call to the shard) runs here at once, and no thread has to be woken between the end
/// of a batch and the next batch that it leads to. Where another batch waits meanwhile, what takes
/// longer than waking a thread would is left to the system's.
///
/// In a rehearsal a batch ends, and its result is told, no sooner than its charge allows: the thread sleeps for what is left
/// (rehearsed_clock.hpp). Nobody helps then: who reads the network must not sleep.
namespace ordermoe::actors {

/// Whoever makes one keeps it until every actor of the system that can reach it is done. LibTorch
/// and the kernels of one server run only here and, in products worth it, on n_threads - 1 threads
/// beside it.
class device_thread final : public caf::execution_unit {
 public:
  /// What a batch will take, in ns; fills its counts.
  using charge_function = std::function<std::int64_t(batch&)>;
  device_thread(caf::actor_system& system, std::shared_ptr<const model::transformer> model,
                std::size_t n_threads, charge_function charge,
                std::optional<rehearsal> rehearsed = std::nullopt,
                std::shared_ptr<frame_turns> turns = nullptr, bool leaves_unread = false);
  /// Ends after the batch that is running; what waits is dropped.
  ~device_thread() override;

  /// Who hears of batches that are done. Before the first of them waits.
  void report_to(const compute_actor& owner) {
    owner_ = caf::actor_cast<caf::weak_actor_ptr>(owner);
  }
  /// change(queue), from any thread; what it puts there runs.
  template <class Change>
  void queue(Change change) {
    {
      const std::lock_guard lock(mutex_);
      const bool asks = waiting_.empty();
      change(waiting_);
      if (rehearsed_ && asks) asked_ns_ = clock_ns();
      if (waiting_.empty() || (helper_ == std::this_thread::get_id() && may_help()) || !must_wake())
        return;
    }
    // A thread that is woken under the lock goes to sleep again on it. This one is there until its owner is done.
    wake_.notify_one();
  }
  /// From now on the calling thread helps: it is not woken for, and calls help() when it has run what is ready.
  void begin_helping();
  /// Runs the first batch that waits, if all that wait are short, as the device's thread would; what its result makes
  /// ready goes to `unit`. False where there is none, or it is left to the device's thread.
  bool help(caf::execution_unit* unit);
  /// Runs what is ready at `unit` of the thread that helps, calls between() after each, and helps, until nothing waits. What there is
  /// always more of goes on with the device's thread after a while: a network that is not read looks dead to others.
  template <class Between>
  void help_along(lending_unit& unit, Between between) {
    constexpr std::int64_t most_work_ns = 1'000'000;
    work_limit limit;
    for (;;) {
      unit.lend(between);
      if (limit.is_over(most_work_ns)) return leave();
      if (!help(&unit)) return;
    }
  }
  /// How long frames to other servers may wait to go out with those that the next batches lead to: not at all where none
  /// waits here, or it takes longer than writing a frame. From any thread.
  std::int64_t may_hold_ns();
  /// job(device) before any batch that begins later, from any thread.
  void post(std::function<void(device&)> job);
  /// Time until work that arrives now could start: the rest of the running batch and what waits
  /// before it; as charged where that is rehearsed, whatever the dilation. From any thread.
  std::int64_t wait_ns();
  /// How near to the charge batches were. From any thread.
  rehearsal_figures rehearsed_so_far();
  /// Batches that wait or run. From any thread.
  std::size_t n_waiting();

  void exec_later(caf::resumable* job) override;

 private:
  std::int64_t clock_ns() const;
  void run();
  bool has_work() const { return stopping_ || !jobs_.empty() || !waiting_.empty(); }
  bool may_help() const;
  /// Lock held. Whether what waits takes no longer than the network may go unread.
  bool all_is_short() const;
  /// Lock held. How long actors are run while a batch waits.
  std::int64_t most_lent_ns() const;
  /// Lock held. Whether the device's thread sleeps and was not woken yet; whoever asks wakes it.
  bool must_wake() { return asleep_ && !std::exchange(woken_, true); }
  /// On the clock, of what is charged.
  std::int64_t dilated(std::int64_t charged_ns) const {
    return rehearsed_
               ? static_cast<std::int64_t>(static_cast<double>(charged_ns) * rehearsed_->dilation)
               : charged_ns;
  }
  /// Lock held. It starts now, or started before as charged.
  void begin(batch& next);
  /// Until the charge of the batch that has run is over; that took worked_ns of a processor.
  void sit_out(std::unique_lock<std::mutex>& lock, batch& content, std::int64_t worked_ns);
  /// The first batch that waits; its result goes to the owner, which runs on `unit`. The device is claimed.
  void compute(std::unique_lock<std::mutex>& lock, caf::execution_unit* unit);
  /// Lock held. Of a batch.
  void note_time(std::int64_t took_ns);
  void lend();
  /// What waits is for the device's thread.
  void leave();

  device tensors_;
  std::size_t n_threads_;
  charge_function charge_;
  std::optional<rehearsal> rehearsed_;
  std::shared_ptr<frame_turns> turns_;  ///< Null: frames go out as they are sent.
  caf::weak_actor_ptr owner_;
  std::deque<caf::resumable*> ready_;  ///< Actors to run here; of this thread alone.
  /// Done; told with the next one that matters. Of whoever claimed the device.
  std::vector<std::shared_ptr<batch>> untold_;

  std::mutex mutex_;  ///< Of everything below.
  std::condition_variable wake_;
  batch_queue waiting_;
  std::vector<std::function<void(device&)>> jobs_;
  bool claimed_ = false;  ///< One thread at a time uses the tensors.
  std::thread::id helper_;
  /// What batches took lately; of a device that has run none nobody knows yet that they are short.
  std::int64_t recent_ns_ = 1'000'000;
  rehearsed_clock charged_;
  std::int64_t asked_ns_ =
      0;  ///< When the first of those that wait was asked for, where none waited; rehearsed.
  bool running_ = false;
  std::int64_t running_until_ns_ = 0;  ///< Expected end of the running batch.
  bool asleep_ = false;
  bool woken_ = false;  ///< While asleep: somebody notified it.
  bool stopping_ = false;

  std::thread thread_;  ///< The last: it uses all of the above.
};

}  // namespace ordermoe::actors
