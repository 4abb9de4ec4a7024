#include "model/kv_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "config/error.hpp"

namespace ordermoe::model {

namespace {

constexpr unsigned page_shift = std::countr_zero(kv_cache::page_rows);
static_assert(std::has_single_bit(kv_cache::page_rows));

/// To the nearest bf16 number, ties to even; not a number stays one.
std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

}  // namespace

kv_cache::kv_cache(std::size_t capacity_rows, std::size_t row_size, kv_precision precision)
    : capacity_(capacity_rows), row_size_(row_size), precision_(precision) {}

void kv_cache::put(std::size_t position, std::span<const float> row) {
  ORDERMOE_CHECK(row.size() == row_size_,
                 fmt::format("a row of {} numbers, expected {}", row.size(), row_size_));
  put(position, 0, row);
}

void kv_cache::put(std::size_t position, std::size_t first, std::span<const float> part) {
  ORDERMOE_CHECK(
      first + part.size() <= row_size_,
      fmt::format("{} numbers from {} on in a row of {}", part.size(), first, row_size_));
  make_page_of(position);
  const auto [page, start] = find(position);
  if (precision_ == kv_precision::fp32)
    std::ranges::copy(part, reinterpret_cast<float*>(page) + start + first);
  else
    std::ranges::transform(part, reinterpret_cast<std::uint16_t*>(page) + start + first, to_bf16);
  note(position);
}

void kv_cache::put_bytes(std::size_t position, std::span<const std::uint8_t> row) {
  ORDERMOE_CHECK(row.size() == row_bytes(),
                 fmt::format("a row of {} bytes, expected {}", row.size(), row_bytes()));
  make_page_of(position);
  const auto [page, start] = find(position);
  std::memcpy(page + start * bytes_per_number(precision_), row.data(), row.size());
  note(position);
}

void kv_cache::read_bytes(std::size_t position, std::span<std::uint8_t> row) const {
  ORDERMOE_CHECK(has(position), fmt::format("row {} is not in the cache", position));
  ORDERMOE_CHECK(row.size() == row_bytes(),
                 fmt::format("room for {} bytes, a row has {}", row.size(), row_bytes()));
  const auto [page, start] = find(position);
  std::memcpy(row.data(), page + start * bytes_per_number(precision_), row.size());
}

void kv_cache::make_page_of(std::size_t position) {
  ORDERMOE_CHECK(position < capacity(),
                 fmt::format("row {} of a cache of {} rows", position, capacity()));
  while (pages_.size() <= position / page_rows) {
    pages_.push_back(std::make_unique<std::byte[]>(page_bytes()));
    addresses_.push_back(pages_.back().get());
  }
}

/// That a row is there.
void kv_cache::note(std::size_t position) {
  if (position > contiguous_) {
    if (present_.size() <= position) present_.resize(position + 1, 0);
    present_[position] = 1;
  } else if (position == contiguous_) {
    ++contiguous_;
    while (contiguous_ < present_.size() && present_[contiguous_] != 0) ++contiguous_;
  }
}

void kv_cache::copy(location from, std::span<float> target) const {
  if (precision_ == kv_precision::fp32)
    std::copy_n(reinterpret_cast<const float*>(from.page) + from.number, target.size(),
                target.begin());
  else
    std::transform(reinterpret_cast<const std::uint16_t*>(from.page) + from.number,
                   reinterpret_cast<const std::uint16_t*>(from.page) + from.number + target.size(),
                   target.begin(), from_bf16);
}

void kv_cache::read(std::size_t position, std::span<float> row) const {
  ORDERMOE_CHECK(has(position), fmt::format("row {} is not in the cache", position));
  ORDERMOE_CHECK(row.size() == row_size_,
                 fmt::format("room for {} numbers, a row has {}", row.size(), row_size_));
  copy(find(position), row);
}

std::vector<float> kv_cache::row(std::size_t position) const {
  std::vector<float> numbers(row_size_);
  read(position, numbers);
  return numbers;
}

float kv_cache::number(std::size_t position, std::size_t index) const {
  ORDERMOE_CHECK(has(position) && index < row_size_,
                 fmt::format("number {} of row {} is not in the cache", index, position));
  auto from = find(position);
  from.number += index;
  float found = 0;
  copy(from, {&found, 1});
  return found;
}

attention_view kv_cache::rows(std::size_t first, std::size_t n, std::size_t offset) const {
  ORDERMOE_CHECK(n > 0 && has(first) && has(first + n - 1),
                 fmt::format("rows {} to {} are not all in the cache", first, first + n));
  attention_view view;
  view.pages = addresses_.data();
  view.page_shift = page_shift;
  view.precision = precision_;
  view.first = first;
  view.n_rows = n;
  view.row_size = row_size_;
  view.offset = offset;
  return view;
}

}  // namespace ordermoe::model
