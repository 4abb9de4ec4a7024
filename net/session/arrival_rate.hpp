#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

/// How fast a link is, as the end that reads from it sees it. Of a burst that
/// is known to have left without a pause, the time that it takes to come in is
/// the link's. Bytes are counted between moments at which nothing was left to
/// read, so that a reader who was busy, and then finds much at once, takes a
/// link for slower than it is and never for faster.
///
/// At first what comes is skipped: a shaper lets some through at once, often
/// more than one would think, so that up to half is. A pause within the burst
/// that is a good part of a round trip is one of TCP, whose window still grows;
/// what comes between two pauses comes at the link's rate.
namespace ordermoe::net {

class arrival_rate {
 public:
  /// What is skipped after a pause at least, and what must follow for a rate;
  /// bytes.
  static constexpr std::uint64_t skipped_bytes = 32 * 1024, least_bytes = 64 * 1024;
  /// Bursts of fewer bytes say nothing.
  static constexpr std::uint64_t least_burst_bytes = skipped_bytes + least_bytes;

  /// All bytes up to this one, counted from the beginning, leave the other end
  /// without a pause.
  void expect(std::uint64_t until) {
    if (until > until_) until_ = until;
  }
  /// So many more came. `drained`: there were no others at now_ns.
  /// `round_trip_ns`: -1 where it is not known. The rate in bytes a second
  /// where a burst has ended that tells one.
  std::optional<double> arrived(std::uint64_t bytes, std::int64_t now_ns, bool drained,
                                std::int64_t round_trip_ns);

 private:
  struct moment {
    std::uint64_t bytes = 0;  ///< That had come.
    std::int64_t time_ns = 0;
  };
  void end_segment(const moment& at);
  void begin_segment(const moment& at);
  std::optional<double> end_burst(const moment& at);

  std::uint64_t total_ = 0, until_ = 0;
  bool in_burst_ = false;
  moment burst_, segment_,
      last_;  ///< Where it began; the latest moment with nothing left to read.
  /// Of the segment: the first moments behind skipped_bytes, twice as many, and
  /// so on.
  std::array<moment, 16> anchors_{};
  std::size_t n_anchors_ = 0;
  double best_ = 0;  ///< Of the burst's segments.
};

/// The least of what was measured lately: what exceeds it is waiting, here or
/// there.
class recent_least {
 public:
  explicit recent_least(std::int64_t window_ns) : window_ns_(window_ns) {}
  void add(std::int64_t value, std::int64_t now_ns);
  /// -1: none yet.
  std::int64_t value() const { return value_; }
  void clear() { *this = recent_least(window_ns_); }

 private:
  struct sample {
    std::int64_t value = 0, time_ns = 0;
  };
  std::int64_t window_ns_;
  std::array<sample, 64> samples_{};
  std::size_t n_ = 0;
  std::int64_t value_ = -1;
};

}  // namespace ordermoe::net
