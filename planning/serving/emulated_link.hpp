#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "config/cluster.hpp"
#include "config/random.hpp"
#include "net/wire/messages.hpp"
#include "planning/serving/uplinks.hpp"

/// One direction of one pair of servers in virtual time: a FIFO that charges bytes / bandwidth, then the
/// latency, and waits for uplinks that it shares with others; it can be told to treat frames badly.
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

  /// A frame of so many charged bytes is sent now.
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
