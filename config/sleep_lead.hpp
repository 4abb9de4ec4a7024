#pragma once

#include <algorithm>
#include <cstdint>

/// Sleeps end late, by much the same each time on one machine, and threads that are to do something at a moment ask for so
/// much less and wait for the rest awake.
namespace ordermoe {

/// Of one thread's sleeps; times are of one clock.
class sleep_lead {
 public:
  /// How much sooner a sleep should be asked to end than it is to end.
  std::int64_t ns() const { return ns_; }
  /// One that was asked to end at asked_ns ended at now_ns.
  void woke(std::int64_t asked_ns, std::int64_t now_ns) {
    ns_ += (std::clamp<std::int64_t>(now_ns - asked_ns, 0, most_ns) - ns_) / 8;
  }
  /// How long the rest may take, awake.
  static constexpr std::int64_t most_ns = 100'000;

 private:
  std::int64_t ns_ = 0;
};

}  // namespace ordermoe
