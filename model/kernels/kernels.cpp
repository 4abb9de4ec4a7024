#include "model/kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "config/error.hpp"
#include "model/kernels/kernel_sets.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t group_size = packed_layout::group;
/// 1.5 * 2^23: added and subtracted, it rounds to the nearest whole number, ties to even.
constexpr float round_by = 12582912.0f;

/// The inputs of one output in one group, padded with zeros.
std::array<float, group_size> inputs_of(std::span<const float> row, std::size_t group) {
  std::array<float, group_size> inputs{};
  const std::size_t first = group * group_size;
  if (first < row.size())
    std::copy_n(row.data() + first, std::min(group_size, row.size() - first), inputs.data());
  return inputs;
}

/// Row `o` of a block's rows, empty where it is padding.
std::span<const float> row_of(const packed_layout& layout, std::span<const float> rows,
                              std::size_t o) {
  if ((o + 1) * layout.n_in > rows.size()) return {};
  return rows.subspan(o * layout.n_in, layout.n_in);
}

/// Of a block of a quantised matrix, with what it takes to walk it.
struct byte_block {
  std::byte* first;
  std::size_t start;
  std::size_t width;
};

template <class Body>
void each_block(const packed_layout& layout, weight_storage storage, std::byte* packed, Body body) {
  const std::size_t padded = layout.padded_out();
  const std::size_t bytes_an_output = padded == 0 ? 0 : layout.bytes(storage) / padded;
  for (std::size_t start = 0; start < padded; start += packed_layout::block)
    body(byte_block{packed + start * bytes_an_output, start,
                    std::min(packed_layout::block, padded - start)});
}

/// Where the byte of output `o` of a block and of input `i` is, the same for the four-bit halves
/// of inputs i and i + 16 of a group.
std::size_t int8_at(std::size_t width, std::size_t o, std::size_t i) {
  return (i / 4 * width + o) * 4 + i % 4;
}

void pack_int8(const packed_layout& layout, std::span<const float> rows, const byte_block& block) {
  const std::size_t n_inputs = layout.n_groups() * group_size;
  auto* bytes = reinterpret_cast<std::uint8_t*>(block.first);
  for (std::size_t o = 0; o < block.width; ++o) {
    const auto row = row_of(layout, rows, o);
    float largest = 0;
    for (const float x : row) largest = std::max(largest, std::abs(x));
    const float inverse = largest < 0x1p-100f ? 0.0f : 127.0f / largest;
    const float scale = largest < 0x1p-100f ? 0.0f : largest / 127.0f;
    for (std::size_t i = 0; i < n_inputs; ++i) {
      const float x = i < row.size() ? row[i] * inverse + round_by - round_by : 0.0f;
      bytes[int8_at(block.width, o, i)] = static_cast<std::uint8_t>(static_cast<int>(x) + 128);
    }
    std::memcpy(bytes + n_inputs * block.width + o * sizeof(float), &scale, sizeof scale);
  }
}

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float from_bf16(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

/// A group of 32 inputs of each of as many outputs as there are lanes. Each lane does what it would
/// do alone, so the bits depend on neither the lanes beside it nor the instruction set.
struct int4_groups {
  static constexpr std::size_t n_lanes = 8;
  using lanes = float __attribute__((vector_size(n_lanes * sizeof(float))));
  using whole_lanes = std::int32_t __attribute__((vector_size(n_lanes * sizeof(std::int32_t))));
  lanes inputs[group_size];
  whole_lanes steps[group_size];  ///< 0 to 15: -8 to 7 scales.
  std::uint16_t scales[n_lanes];  ///< bf16
};

/// Vectors are handed on by reference: their place in registers differs between instruction sets.
struct int4_search {
  using lanes = int4_groups::lanes;
  using whole_lanes = int4_groups::whole_lanes;

  /// Rounds scales to bf16; what to multiply by instead of dividing.
  [[gnu::always_inline]] static void prepare(lanes& scale, lanes& inverse) {
    for (std::size_t l = 0; l < int4_groups::n_lanes; ++l) scale[l] = from_bf16(to_bf16(scale[l]));
    inverse = scale == 0.0f ? lanes{} : 1.0f / scale;
  }
  /// The nearest number of scales.
  [[gnu::always_inline]] static void round(const lanes& input, const lanes& inverse, lanes& n) {
    n = input * inverse;
    n = n < -8.0f ? lanes{} - 8.0f : n;
    n = n > 7.0f ? lanes{} + 7.0f : n;
    n = n + round_by - round_by;
  }

  [[gnu::always_inline]] static void run(int4_groups& groups) {
    lanes extreme{}, best{}, inverse, n;
    lanes least = lanes{} + INFINITY;
    for (const lanes& x : groups.inputs) {
      const lanes size = x < 0.0f ? -x : x, most = extreme < 0.0f ? -extreme : extreme;
      extreme = size > most ? x : extreme;
    }
    for (int tenths = 66; tenths <= 86; tenths += 2) {
      // The extreme takes the side that reaches to -8.
      const lanes first = extreme / (-0.1f * static_cast<float>(tenths));
      lanes step = first, product{}, square{}, squares{};
      prepare(step, inverse);
      for (const lanes& x : groups.inputs) {
        round(x, inverse, n);
        product += x * n;
        square += n * n;
      }
      step = square == 0.0f ? first : product / square;
      prepare(step, inverse);
      for (const lanes& x : groups.inputs) {
        round(x, inverse, n);
        const lanes difference = x - n * step;
        squares += difference * difference;
      }
      best = squares < least ? step : best;
      least = squares < least ? squares : least;
    }
    const lanes most = extreme < 0.0f ? -extreme : extreme;
    best = most < 0x1p-100f ? lanes{} : best;
    prepare(best, inverse);
    for (std::size_t l = 0; l < int4_groups::n_lanes; ++l) groups.scales[l] = to_bf16(best[l]);
    for (std::size_t i = 0; i < group_size; ++i) {
      round(groups.inputs[i], inverse, n);
      groups.steps[i] = __builtin_convertvector(n, whole_lanes) + 8;
    }
  }
};

void quantise_int4_anywhere(int4_groups& groups) {
  int4_search::run(groups);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void quantise_int4_avx2(int4_groups& groups) {
  int4_search::run(groups);
}
#endif

void quantise_int4(int4_groups& groups) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return quantise_int4_avx2(groups);
#endif
  quantise_int4_anywhere(groups);
}

void pack_int4(const packed_layout& layout, std::span<const float> rows, const byte_block& block) {
  int4_groups groups;
  for (std::size_t g = 0; g < layout.n_groups(); ++g) {
    auto* bytes = reinterpret_cast<std::uint8_t*>(block.first) + g * block.width * 18;
    for (std::size_t first = 0; first < block.width; first += int4_groups::n_lanes) {
      for (std::size_t l = 0; l < int4_groups::n_lanes; ++l) {
        const auto inputs = inputs_of(row_of(layout, rows, first + l), g);
        for (std::size_t i = 0; i < group_size; ++i) groups.inputs[i][l] = inputs[i];
      }
      quantise_int4(groups);
      for (std::size_t l = 0; l < int4_groups::n_lanes; ++l)
        for (std::size_t i = 0; i < group_size / 2; ++i)
          bytes[int8_at(block.width, first + l, i)] = static_cast<std::uint8_t>(
              groups.steps[i][l] | groups.steps[i + group_size / 2][l] << 4);
      std::memcpy(bytes + block.width * 16 + first * 2, groups.scales, sizeof groups.scales);
    }
  }
}

void pack_fp32(const packed_layout& layout, std::span<const float> rows, const byte_block& block) {
  auto* numbers = reinterpret_cast<float*>(block.first);
  for (std::size_t o = 0; o < block.width; ++o) {
    const auto row = row_of(layout, rows, o);
    for (std::size_t k = 0; k < layout.n_in; ++k)
      numbers[k * block.width + o] = k < row.size() ? row[k] : 0.0f;
  }
}

/// Where the number of output `o` of a block and of input `k` is.
std::size_t bf16_at(std::size_t width, std::size_t o, std::size_t k) {
  return (k / 2 * width + o) * 2 + k % 2;
}

void pack_bf16(const packed_layout& layout, std::span<const float> rows, const byte_block& block) {
  auto* numbers = reinterpret_cast<std::uint16_t*>(block.first);
  for (std::size_t o = 0; o < block.width; ++o) {
    const auto row = row_of(layout, rows, o);
    for (std::size_t k = 0; k < 2 * layout.n_pairs(); ++k)
      numbers[bf16_at(block.width, o, k)] = k < row.size() ? to_bf16(row[k]) : std::uint16_t{0};
  }
}

}  // namespace

void pack_block(const packed_layout& layout, std::size_t start, std::span<const float> rows,
                weight_storage storage, std::span<std::byte> packed) {
  ORDERMOE_CHECK(packed.size() == layout.bytes(storage),
                 "room for a packed matrix of another shape");
  ORDERMOE_CHECK(
      start % packed_layout::block == 0 && start < layout.n_out &&
          rows.size() == layout.n_in * std::min(packed_layout::block, layout.n_out - start),
      "rows of another block");
  const byte_block block{packed.data() + start * (layout.bytes(storage) / layout.padded_out()),
                         start, std::min(packed_layout::block, layout.padded_out() - start)};
  switch (storage) {
    case weight_storage::fp32:
      return pack_fp32(layout, rows, block);
    case weight_storage::bf16:
      return pack_bf16(layout, rows, block);
    case weight_storage::int8:
      return pack_int8(layout, rows, block);
    case weight_storage::int4:
      return pack_int4(layout, rows, block);
  }
}

void pack(const packed_layout& layout, std::span<const float> row_major, weight_storage storage,
          std::span<std::byte> packed) {
  ORDERMOE_CHECK(row_major.size() == layout.n_out * layout.n_in, "a matrix of another shape");
  for (std::size_t start = 0; start < layout.n_out; start += packed_layout::block) {
    const std::size_t n = std::min(packed_layout::block, layout.n_out - start);
    pack_block(layout, start, row_major.subspan(start * layout.n_in, n * layout.n_in), storage,
               packed);
  }
}

std::vector<float> unpack(const packed_matrix& matrix) {
  const auto& layout = matrix.layout;
  std::vector<float> row_major(layout.n_out * layout.n_in);
  auto* data = static_cast<std::byte*>(const_cast<void*>(matrix.data));
  each_block(layout, matrix.storage, data, [&](const byte_block& block) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(block.first);
    for (std::size_t o = 0; o < block.width && block.start + o < layout.n_out; ++o)
      for (std::size_t k = 0; k < layout.n_in; ++k) {
        float& x = row_major[(block.start + o) * layout.n_in + k];
        float scale;
        std::uint16_t half;
        switch (matrix.storage) {
          case weight_storage::fp32:
            std::memcpy(&x, bytes + (k * block.width + o) * 4, 4);
            break;
          case weight_storage::bf16:
            std::memcpy(&half, bytes + bf16_at(block.width, o, k) * 2, 2);
            x = from_bf16(half);
            break;
          case weight_storage::int8:
            std::memcpy(&scale, bytes + layout.n_groups() * group_size * block.width + o * 4, 4);
            x = static_cast<float>(bytes[int8_at(block.width, o, k)] - 128) * scale;
            break;
          case weight_storage::int4: {
            const auto* group = bytes + k / group_size * block.width * 18;
            const std::size_t i = k % group_size;
            const int both = group[int8_at(block.width, o, i % 16)];
            std::memcpy(&half, group + block.width * 16 + o * 2, 2);
            x = static_cast<float>((i < 16 ? both & 15 : both >> 4) - 8) * from_bf16(half);
            break;
          }
        }
      }
  });
  return row_major;
}

packed_matrix blocks_of(const packed_matrix& matrix, std::size_t first, std::size_t last) {
  const auto& layout = matrix.layout;
  ORDERMOE_CHECK(first < last && last <= layout.n_blocks(), "blocks that a matrix does not have");
  const std::size_t start = first * packed_layout::block;
  const std::size_t end = std::min(last * packed_layout::block, layout.n_out);
  const std::size_t bytes_an_output = layout.bytes(matrix.storage) / layout.padded_out();
  return {{end - start, layout.n_in},
          matrix.storage,
          static_cast<const std::byte*>(matrix.data) + start * bytes_an_output,
          matrix.rows};
}

std::size_t row_bytes(const packed_matrix& matrix) {
  const packed_layout& layout = matrix.layout;
  if (quantised(matrix.storage)) return layout.n_groups() * sizeof(quantised_group);
  if (rounds_rows(matrix)) return layout.n_pairs() * 2 * sizeof(std::uint32_t);
  return layout.n_in * sizeof(float);
}

std::size_t expert_scratch(const packed_expert& expert, std::size_t n_rows) {
  const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
  const bool as_they_are = !quantised(expert.up.storage) && !rounds_rows(expert.up);
  return 2 * aligned(n_rows * packed_layout::block * sizeof(float)) +
         aligned(n_rows * row_bytes(expert.down)) +
         (as_they_are ? 0 : aligned(n_rows * row_bytes(expert.up)));
}

bool fits_bf16(std::span<const float> numbers) {
  return std::ranges::all_of(
      numbers, [](float x) { return (std::bit_cast<std::uint32_t>(x) & 0xffffu) == 0; });
}

namespace {

/// Numbers whose products and sums tell roundings, orders and rules for denormal numbers apart:
/// ordinary ones, those whose products lie about the least normal number, and a few that are none.
std::vector<float> telling_numbers(std::size_t n, std::uint32_t seed) {
  std::vector<float> numbers;
  for (std::size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const std::uint32_t sign = seed & 0x80000000u, digits = seed >> 8 & 0x7f0000u;
    const std::uint32_t draw = seed >> 16 & 0xffu;
    const std::uint32_t exponent = draw < 96    ? 120 + draw % 16
                                   : draw < 200 ? 60 + draw % 16
                                   : draw < 240 ? draw % 4
                                                : 252 + draw % 4;
    numbers.push_back(std::bit_cast<float>(sign | exponent << 23 | digits));
  }
  return numbers;
}

std::vector<kernel_set const*> sets_of_this_processor() {
  std::vector<const kernel_set*> sets{&portable_kernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back(&avx2_kernels());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && sets.size() == 2)
    sets.push_back(&avx512_kernels());
  if (__builtin_cpu_supports("avx512vnni") && sets.size() == 3)
    sets.push_back(&avx512_vnni_kernels());
  if (__builtin_cpu_supports("avx512bf16") && sets.size() == 4 &&
      rounds_as_defined(avx512_bf16_kernels())) {
    sets.push_back(&avx512_bf16_kernels());
    // The last one is the one that is taken.
    const bool is_zen4 = __builtin_cpu_is("amdfam19h") != 0;
    sets.insert(is_zen4 ? sets.end() : sets.end() - 1, &avx512_zen4_kernels());
  }
#endif
  return sets;
}

}  // namespace

bool rounds_as_defined(const kernel_set& set) {
  constexpr packed_layout layout{packed_layout::block, 6};
  constexpr std::size_t n_rows = 24;
  std::vector<std::byte> packed(layout.bytes(weight_storage::bf16));
  pack(layout, telling_numbers(layout.n_out * layout.n_in, 1), weight_storage::bf16, packed);
  const packed_matrix weights{layout, weight_storage::bf16, packed.data(), row_precision::bf16};
  const auto input = telling_numbers(n_rows * layout.n_in, 2);
  const auto outputs_of = [&](const kernel_set& by) {
    const std::size_t words = layout.n_pairs() * by.rounded_words;
    std::vector<std::uint32_t> rows(n_rows * words);
    for (std::size_t i = 0; i < n_rows; ++i)
      by.round_row(&input[i * layout.n_in], layout.n_in, &rows[i * words]);
    std::vector<float> output(n_rows * layout.n_out);
    by.linear_rounded(weights, rows.data(), output.data(), layout.n_out, n_rows);
    return output;
  };
  const auto expected = outputs_of(portable_kernels()), found = outputs_of(set);
  return std::memcmp(expected.data(), found.data(), found.size() * sizeof(float)) == 0;
}

std::vector<const kernel_set*> available_kernels() {
  static const auto sets = sets_of_this_processor();
  return sets;
}

namespace {

/// The set that ORDERMOE_KERNELS names; null where it names none that runs here.
const kernel_set* asked_for() {
  const char* name = std::getenv("ORDERMOE_KERNELS");
  if (name == nullptr) return nullptr;
  for (const auto* set : available_kernels())
    if (std::strcmp(set->name, name) == 0) return set;
  return nullptr;
}

}  // namespace

const kernel_set& kernels() {
  static const kernel_set& chosen = [&]() -> const kernel_set& {
    const auto* asked = asked_for();
    return asked != nullptr ? *asked : *available_kernels().back();
  }();
  return chosen;
}

result<void> check_kernels() {
  const char* name = std::getenv("ORDERMOE_KERNELS");
  if (name == nullptr || asked_for() != nullptr) return {};
  std::string known;
  for (const auto* set : available_kernels())
    known += (known.empty() ? "" : ", ") + std::string(set->name);
  return error{errc::usage, "ORDERMOE_KERNELS: found '" + std::string(name) +
                                "', expected one that this processor runs: " + known +
                                "; leave it out for the fastest"};
}

}  // namespace ordermoe::model
