#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The fp32 kernels that every result on the host comes from.
///
/// Goals: the bits of one row are a function of that row and the weights alone, never of the rows
/// beside it or of the instruction set; one row is fast (decoding) and many rows are faster per row
/// (prefill, batches). How: every output element is one chain of fused multiply-adds over k = 0, 1,
/// 2, ... starting at +0; vectors run across outputs, never along k. Sums along a row use 16 lanes
/// (lane j takes elements j, j + 16, ...) and one fixed tree over the lanes. Non-goals: threads
/// (the caller decides what runs in parallel), any device but the host.
namespace ordermoe::model {

/// How packed weights are kept. A bf16 number is the upper half of the fp32 number of equal value,
/// so both give the same bits; bf16 halves what a row has to read.
enum class weight_storage { fp32, bf16 };

/// Where blocks of a packed matrix lie: outputs in blocks of 64 (the last one padded with zeros to
/// a multiple of 16), each block [in][width of block].
struct packed_layout {
  static constexpr std::size_t block = 64;
  static constexpr std::size_t lane = 16;
  std::size_t n_out = 0;
  std::size_t n_in = 0;

  std::size_t padded_out() const { return (n_out + lane - 1) / lane * lane; }
  /// Numbers, not bytes.
  std::size_t size() const { return padded_out() * n_in; }
};

/// A packed matrix that somebody else owns. data: layout.size() numbers of the storage's type.
struct packed_matrix {
  packed_layout layout;
  weight_storage storage = weight_storage::fp32;
  const void* data = nullptr;
};

/// Packs a row-major matrix [n_out, n_in]. `packed` has layout.size() numbers.
void pack(const packed_layout& layout, std::span<const float> row_major, std::span<float> packed);
/// The same with numbers that are bf16 already; precondition: all are exactly representable.
void pack(const packed_layout& layout, std::span<const float> row_major,
          std::span<std::uint16_t> packed);
/// Whether every number is a bf16 number.
bool fits_bf16(std::span<const float> numbers);

/// How keys and values are kept. They are rounded to it when they are written, to the nearest, ties
/// to even; scores and sums are fp32 either way.
enum class kv_precision : std::uint8_t { fp32, bf16 };
constexpr std::size_t bytes_per_number(kv_precision precision) {
  return precision == kv_precision::fp32 ? 4 : 2;
}

/// What one query row attends to: rows 0 .. n_rows - 1, each a key [n_kv_heads, head_dim], then the
/// value. Row t is row (first + t) % 2^page_shift of page (first + t) / 2^page_shift.
struct attention_view {
  const void* const* pages = nullptr;
  std::uint8_t page_shift = 63;  ///< 63: a single page of any size.
  kv_precision precision = kv_precision::fp32;
  std::size_t first = 0;
  std::size_t n_rows = 0;
  std::size_t row_size = 0;  ///< Numbers from one row of a page to the next.
  std::size_t offset = 0;    ///< Number of a row with which its key begins.
  /// Added to the scores where there is one: bias[h * bias_size + t] to the score of head h for
  /// row t.
  const float* bias = nullptr;
  std::size_t bias_size = 0;
};

struct attention_shape {
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  float scale = 0;  ///< Of the scores; 0: 1 / sqrt(head_dim).
};

/// fp32 numbers that the attention kernel needs beside its output.
constexpr std::size_t attention_scratch(std::size_t n_rows) {
  constexpr std::size_t heads_at_once = 4;
  return heads_at_once *
         ((n_rows + packed_layout::lane - 1) / packed_layout::lane * packed_layout::lane);
}

/// One instruction set's kernels. All sets give the same bits.
struct kernel_set {
  const char* name;
  /// output[i][o] = sum over k of input[i][k] * weights[o][k]. Rows are `input_stride` and
  /// `output_stride` numbers apart.
  void (*linear)(const packed_matrix& weights, const float* input, std::size_t input_stride,
                 float* output, std::size_t output_stride, std::size_t n_rows);
  /// output = input / sqrt(mean(input^2) + epsilon) * weight, one row of n numbers.
  void (*rms_norm)(const float* input, const float* weight, float epsilon, float* output,
                   std::size_t n);
  /// Softmax attention of one query row [n_heads, head_dim] over the rows of its view. `scratch`
  /// has attention_scratch(n_rows) numbers.
  void (*attention)(const attention_shape& shape, const float* query, const attention_view& view,
                    float* scratch, float* output);
  /// output[i] = silu(gate[i]) * up[i].
  void (*silu_product)(const float* gate, const float* up, float* output, std::size_t n);
  /// Rotates the pairs (i, i + half) of each head by the angles whose cosines and sines [half] are
  /// given.
  void (*rotate)(const float* cosines, const float* sines, float* heads, std::size_t n_heads,
                 std::size_t head_dim);
};

/// The fastest set that this processor runs.
const kernel_set& kernels();
/// Every set that this processor runs, the portable one first.
std::vector<const kernel_set*> available_kernels();

}  // namespace ordermoe::model
