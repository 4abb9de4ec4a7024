#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "net/channel/identity_keeper.hpp"

namespace ordermoe::net {

/// Looks at the files of an identity once a second as long as it lives, on a thread of its own: a disk may be slow. Files that
/// are broken change nothing, and are looked at again.
class identity_watch {
 public:
  /// `user`: told of every identity that comes, on that thread; not after the end of this.
  identity_watch(identity_keeper::identity_ptr first,
                 std::function<void(const identity_keeper::identity_ptr&)> user)
      : keeper_(std::move(first)) {
    keeper_.tell(std::move(user));
    thread_ = std::thread([this] { look(); });
  }
  ~identity_watch() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  identity_watch(const identity_watch&) = delete;
  identity_watch& operator=(const identity_watch&) = delete;

 private:
  void look() {
    constexpr std::chrono::seconds look_again(1);
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, look_again, [this] { return ends_; })) {
      lock.unlock();
      static_cast<void>(keeper_.look());
      lock.lock();
    }
  }

  identity_keeper keeper_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ordermoe::net
