#pragma once

#include <cstdint>

/// A cluster of real processes that takes the time that its cost profile charges: a device's batch ends no sooner than
/// it would on the charged hardware, and frames carry padding up to the charged bytes, so that a small model on small
/// machines shows what a large one would cost over the network that is there.
namespace ordermoe {

struct rehearsal {
  /// Everything that is charged takes so many times as long, so that slow machines keep up; whoever makes the links
  /// slows them likewise. Times that are told divide by it; clocks do not.
  double dilation = 1;
  /// Frames are padded to so many times the charged bytes: more than 1 where a row of the model that runs is larger
  /// than the charged one, since no frame can be made smaller. Links are that much faster, where they are made.
  std::uint32_t stretch = 1;
  friend bool operator==(const rehearsal&, const rehearsal&) = default;
};

inline constexpr double least_dilation = 1, most_dilation = 1000;
inline constexpr std::uint32_t most_stretch = 64;

}  // namespace ordermoe
