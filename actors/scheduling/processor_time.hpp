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

/// Whether the calling thread has worked for so long since this began. Asking the system for processor time takes longer than
/// asking for the time, which is at least as much.
class work_limit {
 public:
  work_limit() : began_(std::chrono::steady_clock::now()), worked_ns_(processor_ns()) {}

  bool is_over(std::int64_t most_ns) const {
    return std::chrono::steady_clock::now() - began_ >= std::chrono::nanoseconds(most_ns) &&
           processor_ns() - worked_ns_ >= most_ns;
  }

 private:
  std::chrono::steady_clock::time_point began_;
  std::int64_t worked_ns_ = 0;
};

}  // namespace ordermoe::actors
