#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/kernels/kernels.hpp"

namespace ordermoe::model {

/// What a device keeps of some of the numbers of a cache's rows, so that they cross to it once.
struct kv_mirror {
  std::size_t first = 0, size = 0;  ///< Numbers [first, first + size) of each row.
  std::size_t n_rows = 0;           ///< Rows [0, n_rows) are there as they are in the cache.
  std::shared_ptr<void> content;    ///< The device's own; null at first.
};

/// Keys and values of one sequence at one layer on one server, in pages that come with the rows.
/// Rows may arrive out of order (they are streamed between servers), and attention at position p
/// may run only once every row below p is there.
///
/// A row is kv_row_size(layer) numbers or more, of which the rest is unused: for each block of the
/// layer the key [n_kv_heads, head_dim], rotated where the family rotates, then the value
/// (model_config.hpp says what else). They are rounded to the cache's precision when they are
/// stored, so a row that was read from one cache is stored in another without a change. Within a
/// page a head's keys of all rows lie one after the other, and so do its values: that is how
/// attention reads them.
/// Owner: the server's KV store. Not thread-safe: one thread at a time.
class kv_cache {
 public:
  /// Numbers of a row that lie together are `head_dim`, from number 0 on; 0: all of them.
  kv_cache(std::size_t capacity_rows, std::size_t row_size,
           kv_precision precision = kv_precision::fp32, std::size_t head_dim = 0);

  std::size_t capacity() const { return capacity_; }
  std::size_t row_size() const { return row_size_; }
  kv_precision precision() const { return precision_; }
  bool has(std::size_t position) const {
    return position < contiguous_ || (position < present_.size() && present_[position] != 0);
  }
  /// How many rows from position 0 on are there without a gap.
  std::size_t contiguous() const { return contiguous_; }
  /// Stores a row; position < capacity. Storing a row again replaces it by the same bits.
  void put(std::size_t position, std::span<const float> row);
  /// Stores the numbers [first, first + part.size()) of a row; a row that was not there is there
  /// from then on, with zeros beside the part.
  void put(std::size_t position, std::size_t first, std::span<const float> part);
  /// Copies a row, [row_size].
  void read(std::size_t position, std::span<float> row) const;
  std::vector<float> row(std::size_t position) const;
  /// Bytes of a row as it is kept.
  std::size_t row_bytes() const { return row_size_ * bytes_per_number(precision_); }
  /// A row as it is kept, for another cache of the same precision, [row_bytes()].
  void read_bytes(std::size_t position, std::span<std::uint8_t> row) const;
  void put_bytes(std::size_t position, std::span<const std::uint8_t> row);
  float number(std::size_t position, std::size_t index) const;
  /// Rows [first, first + n), which are there; keys begin at number `offset` of each. Until the
  /// cache is moved or a row is stored.
  attention_view rows(std::size_t first, std::size_t n, std::size_t offset) const;
  /// The mirror of these numbers, made without rows where there was none. A row that is put into the
  /// cache, or a part of these numbers, leaves the mirror with the rows behind it. Until another is made.
  kv_mirror& mirror(std::size_t first, std::size_t size);
  /// Copies numbers [first, first + part.size()) of a row that is there.
  void read_part(std::size_t position, std::size_t first, std::span<float> part) const;
  /// Bytes of the pages.
  std::size_t resident_bytes() const { return pages_.size() * page_bytes(); }

  /// Rows of a page.
  static constexpr std::size_t page_rows = 32;

 private:
  /// body(address in the page, how many) for each run of numbers [first, first + n) of a row.
  template <class Body>
  void each_run(std::size_t position, std::size_t first, std::size_t n, const Body& body) const;
  std::size_t page_bytes() const { return page_rows * row_size_ * bytes_per_number(precision_); }
  void copy(std::size_t position, std::size_t first, std::span<float> target) const;
  void make_page_of(std::size_t position);
  void note(std::size_t position);
  void forget_mirrored(std::size_t position, std::size_t first, std::size_t n);

  std::size_t capacity_;
  std::size_t row_size_;
  kv_precision precision_;
  std::size_t together_;  ///< Numbers of a row that lie one after the other.
  std::size_t contiguous_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> pages_;  ///< Up to the last row stored.
  std::vector<const void*> addresses_;               ///< Of the pages.
  std::vector<unsigned char> present_;  ///< Which rows beyond a gap are there; grows likewise.
  std::vector<kv_mirror> mirrors_;      ///< None where the kernels attend.
};

/// One row that takes part in a layer.
struct attention_row {
  /// Of this row's sequence at this layer; has every row below `position`, or the missing ones are
  /// earlier rows of the same call.
  kv_cache* cache = nullptr;
  std::size_t position = 0;
  /// Rows of the sequence's prompt; counts in an encoder-decoder only, where a row below it is of
  /// the prompt and any other a decoded one.
  std::size_t prompt = 0;
  /// Nobody reads what becomes of its hidden state from this layer on: it leaves its key and value, and nothing else. Does not
  /// count in an encoder-decoder.
  bool unread = false;
};

}  // namespace ordermoe::model
