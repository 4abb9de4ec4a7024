#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace ordermoe::actors {

/// How many tokens there were, and how many a second in the last ten seconds. Counted by one thread at a time, looked at from
/// any; who looks while one is counted may see it or not.
class token_meter {
 public:
  using clock = std::chrono::steady_clock;
  explicit token_meter(clock::time_point now = clock::now()) : start_(now) {}

  void count(clock::time_point now = clock::now());
  std::uint64_t total() const { return total_.load(std::memory_order_relaxed); }
  /// Since the start, where that is less than ten seconds ago.
  double per_s(clock::time_point now = clock::now()) const;

 private:
  static constexpr std::uint64_t window_s = 10;
  struct one_second {
    std::atomic<std::uint64_t> number = 0;  ///< Since the start.
    std::atomic<std::uint64_t> tokens = 0;
  };
  std::uint64_t second_of(clock::time_point now) const;

  clock::time_point start_;
  std::atomic<std::uint64_t> total_ = 0;
  std::array<one_second, window_s> seconds_;  ///< By number, the latest of each.
};

}  // namespace ordermoe::actors
