#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/error.hpp"

/// The kernels that every result on the host comes from.
///
/// Goals: the bits of one row are a function of that row and the weights alone, never of the rows
/// beside it or of the instruction set; one row is fast (decoding) and many rows are faster per row
/// (prefill, batches). How: every output element is one chain of fused multiply-adds over k = 0, 1,
/// 2, ... starting at +0; vectors run across outputs, never along k. Where a chain is left and
/// taken up again, its sum is fp32. Sums along a row use 16 lanes (lane j takes elements j, j + 16,
/// ...) and one fixed tree over the lanes.
///
/// bf16 weights meet rows as they are, or rows rounded to bf16 (row_precision). Rounded ones go two
/// inputs at a time: the odd one's fused multiply-add comes before the even one's, and denormal
/// numbers are zeros of their sign, as inputs and as results, which are judged after rounding. That
/// is what the processor's VDPBF16PS computes; where it is absent fused multiply-adds do the same,
/// with the thread's MXCSR set for them and put back. What is not a number is the same one
/// everywhere. Inputs of an odd number are padded with a zero.
///
/// Quantised weights meet quantised rows: 32 inputs at a time are turned into int8 with a scale of
/// their own, their product with 32 weights is an exact integer, and an output is the chain of
/// fused multiply-adds of those integers and their scales over the groups in order. Nothing in it
/// depends on other rows or on how an instruction set adds integers.
///
/// One row streams the weights once, from two places at a time and with prefetching; many rows pass
/// over each block of 64 outputs while it is in cache. Non-goals: threads (callers share out slices
/// of a matrix, rows and heads), any device but the host.
namespace ordermoe::model {

/// How packed weights are kept. A bf16 number is the upper half of the fp32 number of equal value,
/// so both give the same bits with rows as they are; bf16 halves what a row has to read. int8: one
/// fp32 scale an output; int4: one bf16 scale for an output's 32 inputs, 4.5 bits a weight.
enum class weight_storage { fp32, bf16, int8, int4 };
/// "fp32", "bf16", "int8", "int4".
const char* to_string(weight_storage storage);
constexpr bool quantised(weight_storage storage) {
  return storage == weight_storage::int8 || storage == weight_storage::int4;
}

/// Where blocks of a packed matrix lie: outputs in blocks of 64 (the last one padded with zeros to
/// a multiple of 16) one after the other. A block of `width` outputs is
///   fp32: [in][width] numbers;
///   bf16: [in / 2][width][2] numbers, those of inputs 2 j and 2 j + 1 side by side;
///   int8: [in / 4][width][4] bytes, each the weight plus 128, then [width] fp32 scales;
///   int4: for every 32 inputs [4][width][4] bytes, then [width] bf16 scales. Byte [j][o][i] has
///   input 4 j + i in its low and input 16 + 4 j + i in its high half, each the weight plus 8.
/// Inputs of bf16 are padded with a weight of zero to an even number, those of int8 and int4 to a multiple of 32.
struct packed_layout {
  static constexpr std::size_t block = 64;
  static constexpr std::size_t lane = 16;
  static constexpr std::size_t group = 32;
  std::size_t n_out = 0;
  std::size_t n_in = 0;

  std::size_t padded_out() const { return (n_out + lane - 1) / lane * lane; }
  std::size_t n_blocks() const { return (n_out + block - 1) / block; }
  std::size_t n_pairs() const { return (n_in + 1) / 2; }
  /// Groups of 32 inputs.
  std::size_t n_groups() const { return (n_in + group - 1) / group; }
  std::size_t bytes(weight_storage storage) const {
    switch (storage) {
      case weight_storage::fp32:
        return padded_out() * n_in * 4;
      case weight_storage::bf16:
        return padded_out() * n_pairs() * 4;
      case weight_storage::int8:
        return padded_out() * (n_groups() * group + 4);
      case weight_storage::int4:
        return padded_out() * n_groups() * 18;
    }
    return 0;
  }
};

/// What rows are before bf16 weights meet them: as they are, or rounded to bf16 themselves, to the
/// nearest, ties to even. Other storages have one rule each.
enum class row_precision : std::uint8_t { fp32, bf16 };

/// A packed matrix that somebody else owns. data: layout.bytes(storage) bytes; best on a boundary
/// of 64.
struct packed_matrix {
  packed_layout layout;
  weight_storage storage = weight_storage::fp32;
  const void* data = nullptr;
  row_precision rows = row_precision::fp32;  ///< Counts for bf16 alone.
};
/// Whether its rows are rounded to bf16.
constexpr bool rounds_rows(const packed_matrix& matrix) {
  return matrix.storage == weight_storage::bf16 && matrix.rows == row_precision::bf16;
}
/// Bytes of a row on its way into it that is long enough for every set: as it is, rounded, or quantised.
std::size_t row_bytes(const packed_matrix& matrix);

/// Its blocks [first, last), which give the outputs from 64 * first on. Precondition: first < last,
/// and no more blocks than there are.
packed_matrix blocks_of(const packed_matrix& matrix, std::size_t first, std::size_t last);

/// Packs a row-major matrix [n_out, n_in]; `packed` has layout.bytes(storage) bytes. bf16 rounds to the nearest,
/// ties to even. int8 divides by the largest magnitude / 127 of an output. int4 tries scales that
/// map the largest magnitude of 32 inputs to between 6.6 and 8.6 steps, refits each by least
/// squares and keeps the one with the least squared error.
void pack(const packed_layout& layout, std::span<const float> row_major, weight_storage storage,
          std::span<std::byte> packed);
/// One block of it: outputs `start`, a multiple of 64, and on, as many as a block has; rows are
/// [n, n_in]. `packed` is the room of the whole matrix.
void pack_block(const packed_layout& layout, std::size_t start, std::span<const float> rows,
                weight_storage storage, std::span<std::byte> packed);
/// What a packed matrix means, row-major [n_out, n_in].
std::vector<float> unpack(const packed_matrix& matrix);
/// Whether every number is a bf16 number.
bool fits_bf16(std::span<const float> numbers);

/// 32 inputs of a row as integers: input i is about scale * values[i]. scale = largest magnitude /
/// 127, or 0 where that is below 2^-100 (then all values are 0); it is not finite where an input is
/// not. The last group of a row is padded with zeros.
struct quantised_group {
  float scale;
  std::int32_t sum;  ///< Of the values.
  std::int8_t values[packed_layout::group];
};

/// The matrices of an expert, gate and up [inner, width] of the same storage, down [width, inner].
/// Without a gate (its data null) what lies between is max(0, up(input)).
struct packed_expert {
  packed_matrix gate;
  packed_matrix up;
  packed_matrix down;
};

/// Bytes that the expert kernel needs beside its output, aligned to 64.
std::size_t expert_scratch(const packed_expert& expert, std::size_t n_rows);

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
  std::size_t offset = 0;    ///< Number of a page with which the key of its first row begins.
  std::size_t head_stride =
      0;  ///< Numbers from one head to the next; 0: head_dim. Values follow keys.
  /// Added to the scores where there is one: bias[h * bias_size + t] to the score of head h for
  /// row t.
  const float* bias = nullptr;
  std::size_t bias_size = 0;
};

/// A query row, where its outcome goes, and what it attends to.
struct attention_query {
  const float* query = nullptr;  ///< [n_heads, head_dim]
  float* output = nullptr;       ///< Likewise.
  attention_view view;
};

struct attention_shape {
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  float scale = 0;  ///< Of the scores; 0: 1 / sqrt(head_dim).
};

/// Heads of query rows that read their keys and values together, at most.
constexpr std::size_t most_heads_at_once = 48;

/// Numbers of keys or values that are widened at a time where many heads read them.
constexpr std::size_t attention_block = 8192;

/// fp32 numbers that the attention kernel needs beside its output; `n_rows` as the longest view has,
/// `n_heads` heads of all query rows that share a key and value head.
constexpr std::size_t attention_scratch(std::size_t n_rows,
                                        std::size_t n_heads = most_heads_at_once) {
  constexpr std::size_t lane = packed_layout::lane;
  // A line more between two heads: powers of two would meet in the same places of a cache.
  return 2 * attention_block + (n_heads < most_heads_at_once ? n_heads : most_heads_at_once) *
                                   ((n_rows + lane - 1) / lane * lane + lane);
}

/// One instruction set's kernels. All sets give the same bits.
struct kernel_set {
  const char* name;
  /// Of 32 bits, for two numbers of a rounded row: 1 or 2.
  std::size_t rounded_words;
  /// output[i][o] = sum over k of input[i][k] * weights[o][k]. Rows are `input_stride` and
  /// `output_stride` numbers apart. Weights are fp32 or bf16, rows as they are.
  void (*linear)(const packed_matrix& weights, const float* input, std::size_t input_stride,
                 float* output, std::size_t output_stride, std::size_t n_rows);
  /// One row of n numbers, rounded to bf16 and laid out as this set's products take it: (n + 1) / 2
  /// * rounded_words words.
  void (*round_row)(const float* input, std::size_t n, std::uint32_t* rounded);
  /// linear() for bf16 weights and rounded rows, which lie one after the other.
  void (*linear_rounded)(const packed_matrix& weights, const std::uint32_t* input, float* output,
                         std::size_t output_stride, std::size_t n_rows);
  /// One row of n numbers to (n + 31) / 32 groups.
  void (*quantise)(const float* input, std::size_t n, quantised_group* groups);
  /// linear() for int8 and int4 weights; rows are weights.layout.n_groups() groups apart.
  void (*linear_quantised)(const packed_matrix& weights, const quantised_group* input,
                           float* output, std::size_t output_stride, std::size_t n_rows);
  /// output = down(silu(gate(input)) * up(input)), or down(max(0, up(input))) without a gate, for
  /// n_rows rows one after the other, with the bits of the single steps. `scratch` has
  /// expert_scratch(expert, n_rows) bytes. What lies between the products goes through scratch 64
  /// inner units at a time, as down takes it.
  void (*expert)(const packed_expert& expert, const float* input, float* output, std::size_t n_rows,
                 void* scratch);
  /// The first half of expert(): units = silu(gate(input)) * up(input), or max(0, up(input)), of
  /// the blocks [first_block, last_block) of 64 inner units, each at its place in a row. `input`
  /// are rows as gate and up take them: numbers, rounded or quantised; `units` rows as down does.
  /// `scratch` has 2 * 64 * n_rows numbers.
  void (*expert_units)(const packed_expert& expert, std::size_t first_block, std::size_t last_block,
                       const void* input, void* units, std::size_t n_rows, float* scratch);
  /// output = input / sqrt(mean(input^2) + epsilon) * weight, one row of n numbers.
  void (*rms_norm)(const float* input, const float* weight, float epsilon, float* output,
                   std::size_t n);
  /// Softmax attention of each query row over the rows of its view, for the heads of key and value
  /// heads [first, last), with the bits that each query row has alone. The views differ in `n_rows`
  /// and `bias` alone: then a key or value that several attend to is read once for all of them.
  /// `scratch` has attention_scratch(n_rows) numbers.
  void (*attention)(const attention_shape& shape, std::size_t first, std::size_t last,
                    std::span<const attention_query> rows, float* scratch);
  /// weights[i] = e^((numbers[i] - largest) * scale) of n numbers; 0 where that is below e^-87 or
  /// nothing that can be compared. Returns their sum.
  float (*softmax_weights)(const float* numbers, std::size_t n, float largest, float scale,
                           float* weights);
  /// weights[i] = exact_exp((numbers[i] - largest) / temperature) of n numbers that are at most `largest`, or none; then
  /// the weight is none either.
  void (*exact_weights)(const float* numbers, std::size_t n, double largest, double temperature,
                        double* weights);
  /// output[i] = silu(gate[i]) * up[i].
  void (*silu_product)(const float* gate, const float* up, float* output, std::size_t n);
  /// Rotates the pairs (i, i + half) of each head by the angles whose cosines and sines [half] are
  /// given.
  void (*rotate)(const float* cosines, const float* sines, float* heads, std::size_t n_heads,
                 std::size_t head_dim);
};

/// The fastest set that this processor runs, and runs as it is defined here, or the one that
/// ORDERMOE_KERNELS names: to compare them.
const kernel_set& kernels();
/// Error: usage, where ORDERMOE_KERNELS names none that this processor runs.
result<void> check_kernels();
/// Every set that this processor runs, the portable one first.
std::vector<const kernel_set*> available_kernels();

}  // namespace ordermoe::model
