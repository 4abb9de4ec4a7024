#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "actors/context.hpp"

/// Asks actors on behalf of callers that are none.
namespace ordermoe::actors {

/// An answer that is put together from several parts. Thread-safe.
template <class Content>
class pending_answer {
 public:
  /// Before it is asked for: so many parts are to be filled into this.
  void begin(Content content, std::size_t parts) {
    const std::lock_guard lock(mutex_);
    content_ = std::move(content);
    missing_ = parts;
  }
  /// One part is here: fill_in(content).
  template <class FillIn>
  void fill(FillIn fill_in) {
    const std::lock_guard lock(mutex_);
    fill_in(content_);
    if (--missing_ == 0) changed_.notify_all();
  }
  bool complete() const {
    const std::lock_guard lock(mutex_);
    return missing_ == 0;
  }
  void wait(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest, [this] { return missing_ == 0; });
  }
  Content take() {
    const std::lock_guard lock(mutex_);
    return std::move(content_);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t missing_ = 0;
  Content content_;
};

struct console_job;
using console_actor = caf::typed_actor<caf::reacts_to<console_job>>;
using console_self = console_actor::base;

/// Something to do as an actor.
struct console_job {
  std::function<void(console_self*)> run;
};

console_actor spawn_console(caf::actor_system& system);

/// Asks every actor for its status; parts come into `pending`.
void ask_status(const std::shared_ptr<pending_answer<service_status>>& pending,
                const std::vector<std::shared_ptr<server_view>>& views,
                const planner_actor& planner, const monitor_actor& monitor,
                const console_actor& console);
/// Asks a recorder what it was told.
void ask_history(const std::shared_ptr<pending_answer<history>>& pending,
                 const recorder_actor& recorder, const console_actor& console);

}  // namespace ordermoe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::console_job)
