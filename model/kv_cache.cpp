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

kv_cache::kv_cache(std::size_t capacity_rows, std::size_t row_size, kv_precision precision,
                   std::size_t head_dim)
    : capacity_(capacity_rows),
      row_size_(row_size),
      precision_(precision),
      together_(head_dim == 0 ? row_size : std::min(head_dim, row_size)) {}

template <class Body>
void kv_cache::each_run(std::size_t position, std::size_t first, std::size_t n,
                        const Body& body) const {
  std::byte* page = pages_[position / page_rows].get();
  for (const std::size_t end = first + n; first < end;) {
    const std::size_t begin = first / together_ * together_;
    // The last numbers of a row may be fewer.
    const std::size_t width = std::min(together_, row_size_ - begin);
    const std::size_t count = std::min(end, begin + width) - first;
    const std::size_t at = begin * page_rows + position % page_rows * width + first - begin;
    body(page + at * bytes_per_number(precision_), count);
    first += count;
  }
}

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
  const float* from = part.data();
  each_run(position, first, part.size(), [&](std::byte* to, std::size_t n) {
    if (precision_ == kv_precision::fp32)
      std::copy_n(from, n, reinterpret_cast<float*>(to));
    else
      std::transform(from, from + n, reinterpret_cast<std::uint16_t*>(to), to_bf16);
    from += n;
  });
  note(position);
  forget_mirrored(position, first, part.size());
}

void kv_cache::put_bytes(std::size_t position, std::span<const std::uint8_t> row) {
  ORDERMOE_CHECK(row.size() == row_bytes(),
                 fmt::format("a row of {} bytes, expected {}", row.size(), row_bytes()));
  make_page_of(position);
  const std::uint8_t* from = row.data();
  each_run(position, 0, row_size_, [&](std::byte* to, std::size_t n) {
    std::memcpy(to, from, n * bytes_per_number(precision_));
    from += n * bytes_per_number(precision_);
  });
  note(position);
  forget_mirrored(position, 0, row_size_);
}

void kv_cache::forget_mirrored(std::size_t position, std::size_t first, std::size_t n) {
  for (auto& each : mirrors_)
    if (first < each.first + each.size && each.first < first + n)
      each.n_rows = std::min(each.n_rows, position);
}

kv_mirror& kv_cache::mirror(std::size_t first, std::size_t size) {
  ORDERMOE_CHECK(
      size > 0 && first + size <= row_size_,
      fmt::format("a mirror of {} numbers from {} on in a row of {}", size, first, row_size_));
  for (auto& each : mirrors_)
    if (each.first == first && each.size == size) return each;
  return mirrors_.emplace_back(kv_mirror{first, size, 0, nullptr});
}

void kv_cache::read_part(std::size_t position, std::size_t first, std::span<float> part) const {
  ORDERMOE_CHECK(has(position) && first + part.size() <= row_size_,
                 fmt::format("{} numbers from {} on of row {}", part.size(), first, position));
  copy(position, first, part);
}

void kv_cache::read_bytes(std::size_t position, std::span<std::uint8_t> row) const {
  ORDERMOE_CHECK(has(position), fmt::format("row {} is not in the cache", position));
  ORDERMOE_CHECK(row.size() == row_bytes(),
                 fmt::format("room for {} bytes, a row has {}", row.size(), row_bytes()));
  std::uint8_t* to = row.data();
  each_run(position, 0, row_size_, [&](const std::byte* from, std::size_t n) {
    std::memcpy(to, from, n * bytes_per_number(precision_));
    to += n * bytes_per_number(precision_);
  });
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

void kv_cache::copy(std::size_t position, std::size_t first, std::span<float> target) const {
  float* to = target.data();
  each_run(position, first, target.size(), [&](const std::byte* from, std::size_t n) {
    if (precision_ == kv_precision::fp32)
      std::copy_n(reinterpret_cast<const float*>(from), n, to);
    else
      std::transform(reinterpret_cast<const std::uint16_t*>(from),
                     reinterpret_cast<const std::uint16_t*>(from) + n, to, from_bf16);
    to += n;
  });
}

void kv_cache::read(std::size_t position, std::span<float> row) const {
  ORDERMOE_CHECK(has(position), fmt::format("row {} is not in the cache", position));
  ORDERMOE_CHECK(row.size() == row_size_,
                 fmt::format("room for {} numbers, a row has {}", row.size(), row_size_));
  copy(position, 0, row);
}

std::vector<float> kv_cache::row(std::size_t position) const {
  std::vector<float> numbers(row_size_);
  read(position, numbers);
  return numbers;
}

float kv_cache::number(std::size_t position, std::size_t index) const {
  ORDERMOE_CHECK(has(position) && index < row_size_,
                 fmt::format("number {} of row {} is not in the cache", index, position));
  float found = 0;
  copy(position, index, {&found, 1});
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
  view.row_size = together_;
  if (together_ < row_size_) {
    ORDERMOE_CHECK(offset % together_ == 0,
                   fmt::format("keys from number {} on, where {} lie together", offset, together_));
    view.head_stride = together_ * page_rows;
  }
  view.offset = offset == 0 ? 0 : offset / together_ * together_ * page_rows + offset % together_;
  return view;
}

}  // namespace ordermoe::model
