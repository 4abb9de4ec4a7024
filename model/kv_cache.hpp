#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ordermoe::model {

/// Keys and values of one sequence at one layer on one server. Rows may arrive out of order (they
/// are streamed between servers), and attention at position p may run only once every row below p
/// is there.
///
/// A row is kv_row_size(layer) fp32 numbers: for each block of the layer the key [n_kv_heads,
/// head_dim], rotated where the family rotates, then the value (model_config.hpp says what else).
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
  /// Stores the numbers [first, first + part.size()) of a row; a row that was not there is there
  /// from then on, with zeros beside the part.
  void put(std::size_t position, std::size_t first, std::span<const float> part);
  std::span<const float> row(std::size_t position) const;

 private:
  std::size_t capacity_;
  std::size_t row_size_;
  std::size_t contiguous_ = 0;
  std::vector<float> rows_;             ///< Grows to the last row stored.
  std::vector<unsigned char> present_;  ///< Which rows beyond a gap are there; grows likewise.
};

/// One row that takes part in a layer.
struct attention_row {
  kv_cache* cache =
      nullptr;  ///< Of this row's sequence at this layer; has every row below `position`, or the
                ///< missing ones are earlier rows of the same call.
  std::size_t position = 0;
  /// Rows of the sequence's prompt; counts in an encoder-decoder only, where a row below it is of
  /// the prompt and any other a decoded one.
  std::size_t prompt = 0;
};

}  // namespace ordermoe::model
