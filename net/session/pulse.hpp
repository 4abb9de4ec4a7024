#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "net/session/header.hpp"

/// What sessions say to each other besides their users' frames. Nothing outside net/session/session*.cpp includes this.
namespace ordermoe::net {

/// What a pulse says, each number in 64 bits.
struct pulse {
  std::int64_t time_ns = 0;  ///< Of the sender, in its own time: it comes back as it is.
  std::int64_t echo = -1;    ///< The latest that came from the peer.
  std::int64_t held_ns = 0;  ///< How long ago that was.
  std::array<std::uint64_t, n_lanes> expected{}, used_bytes{};
  std::uint64_t bytes_per_s =
      0;  ///< From the receiver to the sender of this, as found lately; 0: not known.
};
inline constexpr std::size_t pulse_bytes = (4 + 2 * n_lanes) * sizeof(std::uint64_t);
static_assert(sizeof(pulse) == pulse_bytes);

/// Filler comes in parts, so that no frame is large for its sake.
inline constexpr std::size_t filler_bytes = 32 * 1024 - header_bytes;
inline constexpr std::uint64_t most_filler_parts = 64;
inline constexpr double mib = 1 << 20;

}  // namespace ordermoe::net
