#pragma once

#include <ctime>

#include <chrono>
#include <cstdint>

namespace ordermoe::actors {

/// Of the calling thread, so far: what other programs take of its processor is not in it.
inline std::int64_t processor_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Whether the calling thread has worked for about so long since this began: half of it at least, and no longer than has
/// passed. Asking the system for processor time takes longer than asking for the time, so only the second half is asked for.
class work_limit {
 public:
  bool is_over(std::int64_t most_ns) {
    const std::chrono::nanoseconds half(most_ns / 2);
    if (std::chrono::steady_clock::now() - began_ < half) return false;
    const auto now_ns = processor_ns();
    if (halfway_ns_ < 0) halfway_ns_ = now_ns;
    return now_ns - halfway_ns_ >= half.count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::int64_t halfway_ns_ =
      -1;  ///< Processor time when half of the time had passed; below 0: it has not.
};

}  // namespace ordermoe::actors
