#pragma once

#include <cstdint>

/// Bytes per second, with a burst of 5 ms of the rate and at least 1500 bytes.
///
/// Goals: exact at any rate, so that a test can say to the nanosecond when bytes may pass. Non-goals: fairness
/// between those who take, and clocks: whoever asks says what time it is, never less than before.
namespace ordermoe::net {

constexpr std::uint64_t most_rate_bytes_per_s = 1'000'000'000'000;

class token_bucket {
 public:
  /// 0: unbounded. A bucket that was unbounded begins full, another keeps what it has, up to the new burst.
  void set_rate(std::uint64_t bytes_per_s, std::int64_t now_ns);
  std::uint64_t rate() const { return rate_; }
  /// Largest number of bytes that ever pass at once.
  std::uint64_t burst_bytes() const;
  std::uint64_t available(std::int64_t now_ns) const;
  /// No more than are available.
  void take(std::uint64_t bytes, std::int64_t now_ns);
  /// The first time, not before now, at which so many are available if nobody takes any; at most burst_bytes().
  std::int64_t when(std::uint64_t bytes, std::int64_t now_ns) const;

 private:
  /// Billionths of a byte, which a nanosecond adds `rate_` of.
  std::int64_t tokens(std::int64_t now_ns) const;

  std::uint64_t rate_ = 0;
  std::int64_t tokens_ = 0, since_ns_ = 0;
};

}  // namespace ordermoe::net
