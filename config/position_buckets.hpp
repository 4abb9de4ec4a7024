#pragma once

#include <bit>
#include <cstddef>
#include <span>

/// Positions of a text that go together where what happens there is measured: 0, 1 and 2, 3 to 6, 7 to 14, and so on.
namespace ordermoe {

constexpr std::size_t position_bucket(std::size_t position) {
  return static_cast<std::size_t>(std::bit_width(position + 1)) - 1;
}

/// Of a text with so many positions, one at least: what its last bucket lacks belongs to the one before.
constexpr std::size_t n_position_buckets(std::size_t n_positions) {
  return n_positions < 3 ? 1 : position_bucket(n_positions);
}

/// Of what is known by bucket; the last one goes on. Of none, 1.
inline double at_position(std::span<const double> by_bucket, std::size_t position) {
  if (by_bucket.empty()) return 1;
  const auto bucket = position_bucket(position);
  return bucket < by_bucket.size() ? by_bucket[bucket] : by_bucket.back();
}

}  // namespace ordermoe
