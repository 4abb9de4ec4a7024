#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ordermoe::model {

/// Keys and values of one sequence at one layer on one server. Rows may arrive out of order (they
/// are streamed between servers), and attention at position p may run only once every row below p
/// is there.
///
/// A row is kv_row_size() fp32 numbers: the rotated key [n_kv_heads, head_dim], then the value.
/// Owner: the server's KV store. Not thread-safe: one thread at a time.
class kv_cache {
 public:
  kv_cache(std::size_t capacity_rows, std::size_t row_size);

  std::size_t capacity() const { return capacity_; }
  std::size_t row_size() const { return row_size_; }
  bool has(std::size_t position) const {
    return position < contiguous_ || (position < present_.size() && present_[position] != 0);
  }
  /// How many rows from position 0 on are there without a gap.
  std::size_t contiguous() const { return contiguous_; }
  /// Stores a row; position < capacity. Storing a row again replaces it by the same bits. May move
  /// the rows: spans from before are not valid any more.
  void put(std::size_t position, std::span<const float> row);
  std::span<const float> row(std::size_t position) const;

 private:
  std::size_t capacity_;
  std::size_t row_size_;
  std::size_t contiguous_ = 0;
  std::vector<float> rows_;             ///< Grows to the last row stored.
  std::vector<unsigned char> present_;  ///< Which rows beyond a gap are there; grows likewise.
};

}  // namespace ordermoe::model
