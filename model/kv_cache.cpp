#include "model/kv_cache.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/error.hpp"

namespace ordermoe::model {

kv_cache::kv_cache(std::size_t capacity_rows, std::size_t row_size)
    : row_size_(row_size), present_(capacity_rows, 0) {}

void kv_cache::put(std::size_t position, std::span<const float> row) {
  ORDERMOE_CHECK(position < capacity(),
                 fmt::format("row {} of a cache of {} rows", position, capacity()));
  ORDERMOE_CHECK(row.size() == row_size_,
                 fmt::format("a row of {} numbers, expected {}", row.size(), row_size_));
  const auto end = (position + 1) * row_size_;
  if (rows_.size() < end) {
    rows_.reserve(capacity() * row_size_);
    rows_.resize(end);
  }
  std::ranges::copy(row, rows_.begin() + static_cast<std::ptrdiff_t>(position * row_size_));
  present_[position] = 1;
  while (contiguous_ < capacity() && present_[contiguous_] != 0) ++contiguous_;
}

std::span<const float> kv_cache::row(std::size_t position) const {
  ORDERMOE_CHECK(has(position), fmt::format("row {} is not in the cache", position));
  return {rows_.data() + position * row_size_, row_size_};
}

}  // namespace ordermoe::model
