#pragma once

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>

#include "actors/scheduling/caf.hpp"

/// Counts the actors of a service that runs in somebody else's actor system, whose own count is of everybody's.
namespace ordermoe::actors {

/// Thread-safe.
class actor_census {
 public:
  /// From now until it has ended and its system has forgotten it; `census` may be null, where the system is the service's own.
  static void count(const std::shared_ptr<actor_census>& census, caf::abstract_actor* each) {
    if (!census) return;
    census->begin();
    // CAF calls it when the actor's state and mailbox are gone, and the system does not count it any more.
    each->attach_functor([census] { census->end(); });
  }
  template <class Handle>
  static void count(const std::shared_ptr<actor_census>& census, const Handle& each) {
    count(census, caf::actor_cast<caf::abstract_actor*>(each));
  }

  /// Until none of them is left. Not on a thread that they need to end.
  void await_none() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return present_ == 0; });
  }

 private:
  void begin() {
    const std::lock_guard lock(mutex_);
    ++present_;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    if (--present_ == 0) changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t present_ = 0;
};

}  // namespace ordermoe::actors
