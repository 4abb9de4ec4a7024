#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <thread>
#include <utility>

#include "actors/scheduling/caf.hpp"

namespace ordermoe::actors {

/// A thread that is not CAF's, as one that runs actors: what it makes ready runs here at once, and no other thread has
/// to be woken for it. Of one thread.
class lending_unit final : public caf::execution_unit {
 public:
  using caf::execution_unit::execution_unit;

  void exec_later(caf::resumable* job) override { ready_.push_back(job); }

  /// Runs what is ready, and calls between() after each, until nothing is or the time is over: the system's threads run
  /// the rest.
  template <class Between>
  void lend(Between between) {
    constexpr std::size_t most_messages = 64;
    constexpr auto most_time = std::chrono::milliseconds(1);
    const auto begin = std::chrono::steady_clock::now();
    while (!ready_.empty()) {
      auto* job = ready_.front();
      ready_.pop_front();
      if (resume(job, this, most_messages)) ready_.push_back(job);
      between();
      if (ready_.empty() || std::chrono::steady_clock::now() - begin < most_time) continue;
      for (auto* other : std::exchange(ready_, {})) system().scheduler().enqueue(other);
    }
    leave_log();
  }

 private:
  std::deque<caf::resumable*> ready_;
};

}  // namespace ordermoe::actors
