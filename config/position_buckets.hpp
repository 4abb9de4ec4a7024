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

/// Of what is known where buckets begin: between the two on either side in proportion. Of none, 1.
inline double between_buckets(std::span<const double> at_beginning, std::size_t position) {
  if (at_beginning.empty()) return 1;
  const auto bucket = position_bucket(position);
  if (bucket + 1 >= at_beginning.size()) return at_beginning.back();
  const std::size_t length = std::size_t{1} << bucket;
  const auto share = static_cast<double>(position + 1 - length) / static_cast<double>(length);
  return at_beginning[bucket] + (at_beginning[bucket + 1] - at_beginning[bucket]) * share;
}

}  // namespace ordermoe
