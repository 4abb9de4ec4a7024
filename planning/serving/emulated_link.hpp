#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "config/cluster.hpp"
#include "config/frame_parts.hpp"
#include "config/random.hpp"
#include "net/wire/messages.hpp"
#include "planning/serving/uplinks.hpp"

/// One direction of one pair of servers in virtual time: a FIFO that charges bytes / bandwidth, then the
/// latency, and waits for uplinks that it shares with others; it can be told to treat frames badly. What would hold it up for
/// long goes in parts, between which others pass, at the pace that sessions have (config/frame_parts.hpp).
namespace ordermoe::serving {

/// What emulated links do to frames besides charging them. The seed and the link decide, so that a run
/// repeats. Repeated and late frames are not charged again.
struct disturbance {
  std::uint64_t seed = 0;  ///< 0: none.
  /// Each frame comes so much later, drawn evenly from 0 to this: the order is lost where it is more than
  /// what lies between frames.
  std::int64_t most_delay_ns = 0;
  double delayed_share = 1;   ///< Of frames that are delayed at all.
  double repeated_share = 0;  ///< Comes again, as often as this is drawn in a row.
  double dropped_share = 0;   ///< Never comes.
  /// Of which kinds: bit frame_kind. Others pass undisturbed.
  std::uint32_t kinds = ~0u;
  /// Changes what a frame carries, given random bits, each time that it is delivered; for tests of
  /// what hostile servers can do.
  std::function<void(wire::frame&, std::uint64_t)> meddle;

  bool on() const { return seed != 0; }
};

struct transmission {
  std::int64_t start_ns = 0;             ///< When the sender's side begins.
  std::int64_t end_ns = 0;               ///< When it is free again.
  std::int64_t arrival_ns = 0;           ///< Where nothing disturbs.
  std::vector<std::int64_t> deliveries;  ///< When the frame comes; none where it is dropped.
};

/// Whether a frame of so many charged bytes goes in parts (config/frame_parts.hpp) of part_rule::part_bytes.
bool goes_in_parts(const link_spec& link, wire::frame_kind kind, std::int64_t bytes);
/// That a part holds the link which is not the last of its frame: with that one the link charges what each message costs.
inline std::int64_t part_ns(const link_spec& link, std::int64_t bytes) {
  return transfer_ns(link, bytes) - link.message_ns;
}
/// When the next part may be sent behind one that was sent at now_ns and leaves the link at end_ns: the link is done with it, and
/// its pace allows it.
inline std::int64_t next_part_ns(const link_spec& link, std::int64_t bytes, std::int64_t now_ns,
                                 std::int64_t end_ns) {
  return std::max(end_ns, now_ns + part_rule{}.pace_ns(static_cast<std::uint64_t>(bytes),
                                                       link.bandwidth_bytes_per_s));
}

class emulated_link {
 public:
  /// `uplinks` are those of all links of the cluster; null: nothing is shared.
  emulated_link(const link_spec& spec, const disturbance& bad, std::uint32_t from, std::uint32_t to,
                std::shared_ptr<shared_uplinks> uplinks = nullptr)
      : spec_(spec),
        bad_(bad),
        draws_(bad.seed, (std::uint64_t{from} << 32 | to) + 1),
        from_(server_id{from}),
        to_(server_id{to}),
        uplinks_(std::move(uplinks)) {}

  /// Whether a frame of so many charged bytes goes in parts.
  bool is_in_parts(wire::frame_kind kind, std::int64_t bytes) const {
    return goes_in_parts(spec_, kind, bytes);
  }
  /// A part that is not the frame's last, which is sent as a frame is. Nothing is delivered.
  transmission send_part(std::int64_t bytes, std::int64_t now_ns);
  /// When the next part, of this frame or another, may be sent behind one of so many bytes that was at now_ns.
  std::int64_t next_part_ns(const transmission& part, std::int64_t bytes,
                            std::int64_t now_ns) const {
    return serving::next_part_ns(spec_, bytes, now_ns, part.end_ns);
  }

  /// A frame of so many charged bytes is sent now, or the last part of one.
  transmission send(wire::frame_kind kind, std::int64_t bytes, std::int64_t now_ns);
  /// What arrives of a frame.
  void deliver(wire::frame& content) {
    if (bad_.on() && bad_.meddle) bad_.meddle(content, draws_.bits());
  }
  /// Until a frame sent now could start, of as many bytes as the last one where uplinks are shared.
  std::int64_t wait_ns(std::int64_t now_ns) const {
    const auto free = std::max(free_ns_, now_ns);
    return (uplinks_ ? uplinks_->start_ns(from_, to_, last_bytes_, free) : free) - now_ns;
  }

 private:
  transmission occupy(std::int64_t bytes, std::int64_t busy_ns, std::int64_t now_ns);
  void disturb(wire::frame_kind kind, transmission& sent);

  link_spec spec_;
  disturbance bad_;
  random_stream draws_;
  std::int64_t free_ns_ = 0;
  server_id from_, to_;
  std::shared_ptr<shared_uplinks> uplinks_;
  std::int64_t last_bytes_ = 0;
};

}  // namespace ordermoe::serving
