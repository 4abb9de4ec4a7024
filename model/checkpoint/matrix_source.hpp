#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/precision.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/kernels/kernels.hpp"

/// A weight matrix on its way from a checkpoint into the form that is computed with, without a copy
/// of the whole in between: rows are converted in blocks of some, which are copied out of the file
/// into a buffer that stays in the processor's cache, or are pages of the mapped file that are
/// given back behind them. What stands in its file as it is computed with (packed_tensors.hpp)
/// stays there: bring_in() takes the place of reading rows.
namespace ordermoe::model {

/// What weights are turned into when they are loaded (config/precision.hpp); int8 and int4 are
/// those of weight_storage. For the kernels on the host only.
using ordermoe::precision;

/// A row-major matrix [n_out, n_in] of stored numbers, in one part or several one below the other
/// (query, key and value; gate and up). It is read once, from the first row to the last.
class matrix_source {
 public:
  matrix_source() = default;
  /// Numbers in memory, which live longer than this.
  matrix_source(std::span<const float> row_major, std::size_t n_out, std::size_t n_in);
  /// A tensor of two sides; its checkpoint lives longer than this.
  explicit matrix_source(const tensor_view& tensor);
  /// An expert's matrix that is stored quantised (quantised_rows.hpp), with its scales. It is
  /// packed as it is and cannot be read in fp32, nor be part of another.
  matrix_source(const tensor_view& tensor, const tensor_view& scales, weight_storage kept,
                std::size_t n_out, std::size_t n_in);
  /// A tensor of a packed checkpoint, where it stays; `owner` keeps it mapped. `matrix` is what
  /// packed_view() gives, or the embedding with data null.
  matrix_source(const tensor_view& tensor, const packed_matrix& matrix,
                std::shared_ptr<const void> owner);
  /// Rows that are begun from now on are copied out of their file into `room`, which grows to what
  /// one call begins, holds the rows of the last call, and outlives the reading. Rows of no file,
  /// and of one that the system does not copy from, stay where they are mapped.
  void read_into(std::vector<std::byte>& room) { room_ = &room; }
  /// Puts another matrix of as many columns below.
  void append(const matrix_source& below);

  std::size_t n_out() const { return n_out_; }
  std::size_t n_in() const { return n_in_; }
  std::size_t stored_bytes() const;
  /// Whether every number is a bf16 number. Reads all of them where the types do not tell.
  bool fits_bf16() const;

  /// int8 or int4 where it is stored quantised row by row.
  std::optional<weight_storage> quantised_as() const { return quantised_as_; }
  /// Whether it stays where it is mapped; then no rows are read.
  bool stays() const { return owner_ != nullptr; }
  /// Precondition: stays().
  const packed_matrix& packed() const { return packed_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  /// Brings all of what stays into memory and checks its numbers, for not_finite(). Where it cannot
  /// be read, the tensor; else null.
  const tensor_view* bring_in();
  /// Of its first part.
  const std::string& name() const { return parts_.front().view.name; }
  /// Rows of a quantised matrix that were begun, as to_packed() takes them.
  std::pair<std::span<const std::byte>, std::span<const std::byte>> quantised_rows(
      std::size_t first, std::size_t n) const;

  /// Rows `first` to `first + n - 1`: brought into memory, checked, and available from row(). With
  /// read_into(), rows begun before are no longer in memory.
  void begin_rows(std::size_t first, std::size_t n);
  /// Their memory may be given back.
  void end_rows(std::size_t first, std::size_t n);
  /// A tensor with a number that is not finite among the rows begun so far, or null.
  const tensor_view* not_finite() const;
  /// Tells the disk that reading begins soon; of what stays, bring_in() does that, on huge pages.
  void expect() const;
  /// File and place of the first number.
  std::pair<std::string, const std::byte*> place() const;

  struct stored_row {
    tensor_type type = tensor_type::f32;
    std::span<const std::byte> bytes;  ///< n_in numbers, not necessarily aligned.
  };
  stored_row row(std::size_t index) const;
  /// Rows widened to fp32, as many as fit `numbers`.
  void read(std::size_t first, std::span<float> numbers) const;

 private:
  struct part {
    tensor_view view;
    std::size_t first_row = 0, n_rows = 0;
    std::size_t expected_bytes = 0;  ///< Asked for from the disk so far.
    bool not_finite = false;
    /// What of its bytes is in the room, from byte `held_first` on; empty where it is not used.
    std::span<const std::byte> held = {};
    std::size_t held_first = 0;

    /// Where a share of its bytes is read from.
    std::span<const std::byte> stored(std::size_t at, std::size_t bytes) const;
  };
  /// Calls body(part, first byte, bytes) for every part's share of the rows.
  template <class Self, class Body>
  static void for_parts(Self& self, std::size_t first, std::size_t n, Body body);

  std::vector<part> parts_;
  std::size_t n_out_ = 0, n_in_ = 0;
  std::optional<weight_storage> quantised_as_;  ///< Then parts_ are the weights and the scales.
  std::vector<std::byte>* room_ = nullptr;      ///< Null: rows are read from the mapped file.
  packed_matrix packed_;
  std::shared_ptr<const void> owner_;
};

/// How a matrix is kept, and what rows are before it.
struct kept_form {
  weight_storage storage = weight_storage::fp32;
  row_precision rows = row_precision::fp32;

  friend bool operator==(const kept_form&, const kept_form&) = default;
};

/// The form of a precision; `stored` is bf16 where that keeps every number, else fp32, by rows as
/// they are.
kept_form form_of(precision kept, bool fits_bf16);
/// What matrices are kept in that have the same storage, which is bf16 for `stored` where it keeps
/// every number of all of them. What is stored quantised stays so whatever `kept` says; null ones
/// are left out. Reads the numbers where the types do not tell.
kept_form form_for(std::initializer_list<const matrix_source*> together, precision kept);

/// What packing needs beside its result; kept from block to block.
struct packing_room {
  std::vector<float> wide;
  std::vector<std::string> narrow;
  std::vector<const std::byte*> rows;
};
/// Packs outputs `start`, a multiple of 64, and on, as many as a block has, as model/kernels/kernels.hpp
/// has it, with the bits of pack() there on its numbers in fp32. `packed` has the bytes of a matrix
/// of so many outputs. Precondition: !source.stays().
void pack_block(matrix_source& source, std::size_t start, weight_storage storage,
                std::span<std::byte> packed, packing_room& room);

/// The whole matrix, block by block. `packed` has layout.bytes(storage) bytes. Beside them, 64 rows
/// in fp32 at most are in memory.
void pack(const packed_layout& layout, matrix_source& source, weight_storage storage,
          std::span<std::byte> packed);

/// Uninitialised memory on a boundary of a cache line, no more than asked for; large blocks on huge
/// pages where the system grants them, which spares a row that streams through them most of its
/// address translations. Throws std::bad_alloc.
std::shared_ptr<std::byte> weight_memory(std::size_t bytes);

}  // namespace ordermoe::model
