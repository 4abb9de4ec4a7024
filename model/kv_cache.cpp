#include "model/kv_cache.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/error.hpp"

namespace ordermoe::model {

kv_cache::kv_cache(std::size_t capacity_rows, std::size_t row_size)
    : capacity_(capacity_rows), row_size_(row_size) {}

void kv_cache::put(std::size_t position, std::span<const float> row) {
  ORDERMOE_CHECK(row.size() == row_size_,
                 fmt::format("a row of {} numbers, expected {}", row.size(), row_size_));
  put(position, 0, row);
}

void kv_cache::put(std::size_t position, std::size_t first, std::span<const float> part) {
  ORDERMOE_CHECK(position < capacity(),
                 fmt::format("row {} of a cache of {} rows", position, capacity()));
  ORDERMOE_CHECK(
      first + part.size() <= row_size_,
      fmt::format("{} numbers from {} on in a row of {}", part.size(), first, row_size_));
  const auto end = (position + 1) * row_size_;
  if (rows_.capacity() < end) {
    constexpr std::size_t least_rows = 32;
    const auto rows = std::max({position + 1, least_rows, 2 * rows_.size() / row_size_});
    rows_.reserve(std::min(rows, capacity_) * row_size_);
  }
  if (rows_.size() < end) rows_.resize(end);
  std::ranges::copy(part,
                    rows_.begin() + static_cast<std::ptrdiff_t>(position * row_size_ + first));
  if (position > contiguous_) {
    if (present_.size() <= position) present_.resize(position + 1, 0);
    present_[position] = 1;
  } else if (position == contiguous_) {
    ++contiguous_;
    while (contiguous_ < present_.size() && present_[contiguous_] != 0) ++contiguous_;
  }
}

std::span<const float> kv_cache::row(std::size_t position) const {
  ORDERMOE_CHECK(has(position), fmt::format("row {} is not in the cache", position));
  return {rows_.data() + position * row_size_, row_size_};
}

}  // namespace ordermoe::model
