#pragma once

#include <cstdint>
#include <vector>

#include "net/simulation/pair.hpp"

/// Emulated servers that talk over sessions, as servers in processes of their own do. No CAF type in this header.
namespace ordermoe::actors {

struct wire_strike {
  std::uint64_t after_frames = 0;  ///< Sent by anybody; it strikes where the last of them goes.
  net::wire_fault kind = net::wire_fault::cut;
};

/// Whether a server that starts again knows how often it did before.
enum class boot_count { kept, lost };

/// Links charge nothing then: bytes of sessions cross wires with the rates and delays of the cluster.
struct simulated_sessions {
  std::uint64_t seed = 1;  ///< Of all that is drawn. Of each pair of servers differently.
  net::session_limits limits;
  net::wire_options wire;
  std::vector<wire_strike> strikes;  ///< In any order.
};

/// Of all pairs of servers so far.
struct sessions_status {
  net::pair_counts counts;
  /// [n_servers * n_servers] by end, whose session with the other: how often it was over.
  std::vector<std::uint64_t> downs;
  bool at_rest = true;  ///< Nothing is on its way between servers.
  std::string broken;   ///< What does not hold of some pair (net::simulated_pair::broken).
};

}  // namespace ordermoe::actors
