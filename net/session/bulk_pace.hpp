#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

/// When bulk may be written, so that the link's queue stays empty and a token
/// never waits behind it: a bucket that fills at a share of what the link
/// carries. Bytes and times go in; there is no clock here.
///
/// How fast the link is, its other end finds from bursts that leave without a
/// pause (arrival_rate.hpp): never from paced bytes, which would tell their own
/// pace, a share of which would be the next. A frame of bulk is too small to
/// count as a burst.
///
/// Before the link was measured the pace begins low and grows. A heartbeat that
/// comes back late says that a queue stands somewhere (the link is slower than
/// it was, or others use it): the pace falls. It rises again with each
/// heartbeat that is in time, so that nothing makes it small for good.
namespace ordermoe::net {

class bulk_pace {
 public:
  static constexpr double share = 0.8;          ///< Of the link, for bulk at most.
  static constexpr double share_of_all = 0.95;  ///< For bulk and everything else together.
  static constexpr double least_share = 0.1;    ///< That bulk keeps, whatever else there is.
  static constexpr double first_bytes_per_s = 1e6, least_bytes_per_s = 128e3;
  /// Nothing is written for so long after a write, so that a fast link costs no
  /// timer for each frame.
  static constexpr std::int64_t least_wait_ns = 100'000;
  /// A writer who comes late makes up for so much, which is then the longest
  /// burst.
  static constexpr std::int64_t most_late_ns = 1'000'000;
  /// Heartbeats that come back later than the least by this, a quarter of the
  /// least and what a few frames of bulk take are late.
  static constexpr std::int64_t late_ns = 750'000;

  /// What the link carries, as its other end found; 0: not known.
  void measured(double bytes_per_s);
  /// One of our heartbeats came back so much later than the least of the last
  /// seconds.
  void heartbeat(std::int64_t waited_ns, std::int64_t least_ns);
  /// So many bytes that this does not pace went to the same peer.
  void others(std::size_t bytes, std::int64_t now_ns);

  /// Whether the next frame may go. What a frame has beyond what is there, the
  /// next one waits for.
  bool may_write(std::int64_t now_ns) const { return now_ns >= next_ns(); }
  std::int64_t next_ns() const { return next_ns_; }
  void wrote(std::size_t bytes, std::int64_t now_ns);
  double bytes_per_s() const { return pace_; }

 private:
  void fill(std::int64_t now_ns);
  double present() const;
  std::int64_t wait_ns() const;
  double most() const;

  double measured_ = 0;  ///< 0: not yet.
  double pace_ = first_bytes_per_s;
  double there_ = 0;   ///< Bytes in the bucket; below 0 where a frame took more.
  double others_ = 0;  ///< Bytes a second, lately.
  std::int64_t filled_ns_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t next_ns_ = std::numeric_limits<std::int64_t>::min();
  int late_ = 0;             ///< Heartbeats in a row.
  bool wrote_ = false;       ///< Since the latest heartbeat.
  bool waited_for_ = false;  ///< Likewise, and a frame had to wait for the pace.
};

}  // namespace ordermoe::net
