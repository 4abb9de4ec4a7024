#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/kernels/kernel_bodies.hpp"

/// Bodies of the products with packed matrices, for the sources that include kernel_bodies.hpp and
/// under its rules. What a storage does differently is in one `operand` each: how a block of 64
/// outputs lies in memory and how a tile of it is multiplied. For quantised numbers `Isa` supplies
/// `bytes` (16 outputs x 4 inputs, unsigned), load_bytes, low_halves and high_halves (each byte's
/// four bits), set1_ints, to_floats, and dot(sums, bytes, values): each lane plus its four bytes
/// times the four int8 values, exactly.
namespace ordermoe::model::bodies {

/// How far ahead of its use a line of weights is fetched where it comes from memory.
constexpr std::size_t bytes_ahead = 4096;

/// The first byte of 16 outputs of a block and, where they lie apart, of their scales.
struct panel_place {
  const std::uint8_t* weights;
  const std::uint8_t* scales;
};

inline __attribute__((always_inline)) void fetch(const std::uint8_t* place) {
  __builtin_prefetch(place, 0, 3);
}

template <class Weight>
struct plain_operand {
  using row = float;
  static constexpr bool is_quantised = false;

  static inline __attribute__((always_inline)) std::size_t block_bytes(std::size_t width,
                                                                       std::size_t n_in) {
    return width * n_in * sizeof(Weight);
  }
  static inline __attribute__((always_inline)) panel_place panel(const std::uint8_t* block,
                                                                 std::size_t, std::size_t,
                                                                 std::size_t p) {
    return {block + p * lane * sizeof(Weight), nullptr};
  }

  /// Rows x (16 * Panels) outputs in registers.
  template <class Isa, int Rows, int Panels>
  static inline __attribute__((always_inline)) void tile(const panel_place (&panels)[Panels],
                                                         std::size_t width, std::size_t n_in,
                                                         const float* rows, std::size_t stride,
                                                         std::size_t ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    constexpr std::size_t line = 64;
    constexpr std::size_t in_a_line = line / (lane * sizeof(Weight));
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) sums[r][p] = Isa::zero();
    for (std::size_t k = 0; k < n_in; ++k) {
      typename Isa::vec w[Panels];
      for (int p = 0; p < Panels; ++p) {
        const std::uint8_t* place = panels[p].weights + k * width * sizeof(Weight);
        if (static_cast<std::size_t>(p) % in_a_line == 0) fetch(place + ahead);
        w[p] = Isa::load_weights(reinterpret_cast<const Weight*>(place));
      }
      for (int r = 0; r < Rows; ++r) {
        const auto x = Isa::set1(rows[r * stride + k]);
        for (int p = 0; p < Panels; ++p) sums[r][p] = Isa::fma(x, w[p], sums[r][p]);
      }
    }
  }
};

struct int8_operand {
  using row = quantised_group;
  static constexpr bool is_quantised = true;
  static constexpr std::size_t group = packed_layout::group;

  static inline __attribute__((always_inline)) std::size_t block_bytes(std::size_t width,
                                                                       std::size_t n_in) {
    return width * ((n_in + group - 1) / group * group + sizeof(float));
  }
  static inline __attribute__((always_inline)) panel_place panel(const std::uint8_t* block,
                                                                 std::size_t width,
                                                                 std::size_t n_in, std::size_t p) {
    return {block + p * lane * 4,
            block + width * ((n_in + group - 1) / group * group) + p * lane * sizeof(float)};
  }

  template <class Isa, int Rows, int Panels>
  static inline __attribute__((always_inline)) void tile(const panel_place (&panels)[Panels],
                                                         std::size_t width, std::size_t n_in,
                                                         const quantised_group* rows,
                                                         std::size_t stride, std::size_t ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    const std::size_t n_groups = (n_in + group - 1) / group;
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) sums[r][p] = Isa::zero();
    for (std::size_t g = 0; g < n_groups; ++g) {
      typename Isa::ints whole[Rows][Panels];
      for (int r = 0; r < Rows; ++r)
        for (int p = 0; p < Panels; ++p)
          whole[r][p] = Isa::set1_ints(-128 * rows[r * stride + g].sum);
      for (std::size_t j = 0; j < 8; ++j) {
        typename Isa::bytes w[Panels];
        for (int p = 0; p < Panels; ++p) {
          const std::uint8_t* place = panels[p].weights + (8 * g + j) * width * 4;
          fetch(place + ahead);
          w[p] = Isa::load_bytes(place);
        }
        for (int r = 0; r < Rows; ++r)
          for (int p = 0; p < Panels; ++p)
            whole[r][p] = Isa::dot(whole[r][p], w[p], rows[r * stride + g].values + 4 * j);
      }
      for (int r = 0; r < Rows; ++r) {
        const auto scale = Isa::set1(rows[r * stride + g].scale);
        for (int p = 0; p < Panels; ++p)
          sums[r][p] = Isa::fma(Isa::to_floats(whole[r][p]), scale, sums[r][p]);
      }
    }
    for (int p = 0; p < Panels; ++p) {
      const auto scale = Isa::load(reinterpret_cast<const float*>(panels[p].scales));
      for (int r = 0; r < Rows; ++r) sums[r][p] = Isa::mul(sums[r][p], scale);
    }
  }
};

struct int4_operand {
  using row = quantised_group;
  static constexpr bool is_quantised = true;
  static constexpr std::size_t group = packed_layout::group;
  /// Of one output and 32 inputs: 16 of weights, 2 of the scale.
  static constexpr std::size_t group_bytes = 18;

  static inline __attribute__((always_inline)) std::size_t block_bytes(std::size_t width,
                                                                       std::size_t n_in) {
    return width * ((n_in + group - 1) / group) * group_bytes;
  }
  static inline __attribute__((always_inline)) panel_place panel(const std::uint8_t* block,
                                                                 std::size_t width, std::size_t,
                                                                 std::size_t p) {
    return {block + p * lane * 4, block + width * 16 + p * lane * 2};
  }

  template <class Isa, int Rows, int Panels>
  static inline __attribute__((always_inline)) void tile(const panel_place (&panels)[Panels],
                                                         std::size_t width, std::size_t n_in,
                                                         const quantised_group* rows,
                                                         std::size_t stride, std::size_t ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    const std::size_t n_groups = (n_in + group - 1) / group;
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) sums[r][p] = Isa::zero();
    for (std::size_t g = 0; g < n_groups; ++g) {
      const std::size_t start = g * width * group_bytes;
      typename Isa::ints whole[Rows][Panels];
      for (int r = 0; r < Rows; ++r)
        for (int p = 0; p < Panels; ++p)
          whole[r][p] = Isa::set1_ints(-8 * rows[r * stride + g].sum);
      for (std::size_t j = 0; j < 4; ++j) {
        typename Isa::bytes w[Panels];
        for (int p = 0; p < Panels; ++p) {
          const std::uint8_t* place = panels[p].weights + start + j * width * 4;
          fetch(place + ahead);
          w[p] = Isa::load_bytes(place);
        }
        for (int p = 0; p < Panels; ++p) {
          const auto low = Isa::low_halves(w[p]);
          const auto high = Isa::high_halves(w[p]);
          for (int r = 0; r < Rows; ++r) {
            const std::int8_t* values = rows[r * stride + g].values + 4 * j;
            whole[r][p] = Isa::dot(whole[r][p], low, values);
            whole[r][p] = Isa::dot(whole[r][p], high, values + 16);
          }
        }
      }
      for (int p = 0; p < Panels; ++p) {
        fetch(panels[p].scales + start + ahead);
        const auto scale =
            Isa::load_weights(reinterpret_cast<const std::uint16_t*>(panels[p].scales + start));
        for (int r = 0; r < Rows; ++r)
          sums[r][p] = Isa::fma(Isa::to_floats(whole[r][p]),
                                Isa::mul(scale, Isa::set1(rows[r * stride + g].scale)), sums[r][p]);
      }
    }
  }
};

/// Stores a panel, the last one of a matrix only as far as outputs go.
template <class Isa>
inline __attribute__((always_inline)) void store_panel(typename Isa::vec sum, float* output,
                                                       std::size_t width) {
  if (width >= lane) {
    Isa::store(output, sum);
  } else {
    float lanes[lane];
    Isa::store(lanes, sum);
    std::memcpy(output, lanes, width * sizeof(float));
  }
}

/// Rows that are multiplied: `stride` is in numbers or groups.
template <class Operand>
struct row_span {
  const typename Operand::row* first;
  std::size_t stride;
};

/// One block of a packed matrix; `valid` of its `width` outputs are not padding.
struct block_place {
  const std::uint8_t* first;
  std::size_t width;
  std::size_t valid;
};

template <class Operand>
inline __attribute__((always_inline)) block_place block_of(const packed_matrix& matrix,
                                                           std::size_t index) {
  const auto& layout = matrix.layout;
  const std::size_t start = index * block;
  const std::size_t left = layout.padded_out() - start;
  const std::size_t width = left < block ? left : block;
  const std::size_t valid = layout.n_out - start < width ? layout.n_out - start : width;
  return {static_cast<const std::uint8_t*>(matrix.data) +
              index * Operand::block_bytes(block, layout.n_in),
          width, valid};
}

template <class Isa, class Operand, int Rows, int Panels>
inline void block_panels(const block_place& from, std::size_t first_panel, std::size_t n_in,
                         const row_span<Operand>& rows, float* output, std::size_t output_stride,
                         std::size_t ahead) {
  panel_place panels[Panels];
  for (int p = 0; p < Panels; ++p)
    panels[p] =
        Operand::panel(from.first, from.width, n_in, first_panel + static_cast<std::size_t>(p));
  typename Isa::vec sums[Rows][Panels];
  Operand::template tile<Isa, Rows, Panels>(panels, from.width, n_in, rows.first, rows.stride,
                                            ahead, sums);
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < Panels; ++p) {
      const std::size_t o = (first_panel + static_cast<std::size_t>(p)) * lane;
      store_panel<Isa>(sums[r][p], output + r * output_stride + o, from.valid - o);
    }
}

/// Rows rows of one block.
template <class Isa, class Operand, int Rows>
inline void block_tile(const block_place& from, std::size_t n_in, const row_span<Operand>& rows,
                       float* output, std::size_t output_stride, std::size_t ahead) {
  constexpr int wide = Operand::is_quantised ? Isa::template quantised_panels<Rows>
                                             : Isa::template block_panels<Rows>;
  const std::size_t n_panels = from.width / lane;
  std::size_t p = 0;
  if constexpr (wide >= 4) {
    for (; p + 4 <= n_panels; p += 4)
      block_panels<Isa, Operand, Rows, 4>(from, p, n_in, rows, output, output_stride, ahead);
  }
  if constexpr (wide >= 2) {
    for (; p + 2 <= n_panels; p += 2)
      block_panels<Isa, Operand, Rows, 2>(from, p, n_in, rows, output, output_stride, ahead);
  }
  for (; p < n_panels; ++p)
    block_panels<Isa, Operand, Rows, 1>(from, p, n_in, rows, output, output_stride, ahead);
}

/// Rows of the next pass over a block where there are tiles of one to six: none is left with one or two rows, which take the
/// time of three.
constexpr std::size_t rows_of_pass(std::size_t n_left) {
  if (n_left <= 5) return n_left;
  if (n_left == 7 || n_left == 8) return 4;
  return n_left == 9 ? 5 : 6;
}

/// All rows of one block; only the first pass fetches it ahead.
template <class Isa, class Operand>
inline void block_rows(const block_place& from, std::size_t n_in, row_span<Operand> rows,
                       float* output, std::size_t output_stride, std::size_t n_rows) {
  std::size_t ahead = bytes_ahead;
  const auto pass = [&]<int Rows>() {
    block_tile<Isa, Operand, Rows>(from, n_in, rows, output, output_stride, ahead);
    rows.first += Rows * rows.stride;
    output += Rows * output_stride;
    n_rows -= Rows;
    ahead = 0;
  };
  if constexpr (Isa::odd_tiles && !Operand::is_quantised) {
    while (n_rows > 0) {
      switch (rows_of_pass(n_rows)) {
        case 6:
          pass.template operator()<6>();
          break;
        case 5:
          pass.template operator()<5>();
          break;
        case 4:
          pass.template operator()<4>();
          break;
        case 3:
          pass.template operator()<3>();
          break;
        case 2:
          pass.template operator()<2>();
          break;
        default:
          pass.template operator()<1>();
      }
    }
    return;
  }
  if constexpr (Isa::most_rows >= 6)
    while (n_rows >= 6) pass.template operator()<6>();
  if constexpr (Isa::most_rows >= 4)
    if (n_rows >= 4) pass.template operator()<4>();
  while (n_rows >= 2) pass.template operator()<2>();
  if (n_rows >= 1) pass.template operator()<1>();
}

/// One row of two whole blocks of the same shape at a time, so that memory is read from two places.
template <class Isa, class Operand>
inline void block_pair(const block_place& a, const block_place& b, std::size_t n_in,
                       const row_span<Operand>& row, float* output_a, float* output_b) {
  if constexpr (Isa::pairs) {
    constexpr int panels_each = block / lane;
    panel_place panels[2 * panels_each];
    for (int p = 0; p < panels_each; ++p) {
      panels[p] = Operand::panel(a.first, block, n_in, static_cast<std::size_t>(p));
      panels[panels_each + p] = Operand::panel(b.first, block, n_in, static_cast<std::size_t>(p));
    }
    typename Isa::vec sums[1][2 * panels_each];
    Operand::template tile<Isa, 1, 2 * panels_each>(panels, block, n_in, row.first, row.stride,
                                                    bytes_ahead, sums);
    for (int p = 0; p < panels_each; ++p) {
      const auto o = static_cast<std::size_t>(p) * lane;
      store_panel<Isa>(sums[0][p], output_a + o, a.valid - o);
      store_panel<Isa>(sums[0][panels_each + p], output_b + o, b.valid - o);
    }
  } else {
    block_tile<Isa, Operand, 1>(a, n_in, row, output_a, 0, bytes_ahead);
    block_tile<Isa, Operand, 1>(b, n_in, row, output_b, 0, bytes_ahead);
  }
}

template <class Isa, class Operand>
void multiply(const packed_matrix& weights, row_span<Operand> rows, float* output,
              std::size_t output_stride, std::size_t n_rows) {
  const std::size_t n_in = weights.layout.n_in;
  const std::size_t n_blocks = weights.layout.n_blocks();
  std::size_t next = 0;
  if (n_rows == 1) {
    // The two halves of the matrix at once; what does not pair follows.
    const std::size_t half = weights.layout.padded_out() / block / 2;
    for (std::size_t b = 0; b < half; ++b)
      block_pair<Isa, Operand>(block_of<Operand>(weights, b), block_of<Operand>(weights, half + b),
                               n_in, rows, output + b * block, output + (half + b) * block);
    next = 2 * half;
  }
  for (std::size_t b = next; b < n_blocks; ++b)
    block_rows<Isa, Operand>(block_of<Operand>(weights, b), n_in, rows, output + b * block,
                             output_stride, n_rows);
}

template <class Isa>
void linear(const packed_matrix& weights, const float* input, std::size_t input_stride,
            float* output, std::size_t output_stride, std::size_t n_rows) {
  if (weights.storage == weight_storage::bf16)
    multiply<Isa, plain_operand<std::uint16_t>>(weights, {input, input_stride}, output,
                                                output_stride, n_rows);
  else
    multiply<Isa, plain_operand<float>>(weights, {input, input_stride}, output, output_stride,
                                        n_rows);
}

template <class Isa>
void linear_quantised(const packed_matrix& weights, const quantised_group* input, float* output,
                      std::size_t output_stride, std::size_t n_rows) {
  const std::size_t stride = weights.layout.n_groups();
  if (weights.storage == weight_storage::int8)
    multiply<Isa, int8_operand>(weights, {input, stride}, output, output_stride, n_rows);
  else
    multiply<Isa, int4_operand>(weights, {input, stride}, output, output_stride, n_rows);
}

/// Magnitudes are compared as bits, so that what is not finite is the largest. Values are rounded
/// to the nearest, ties to even, by adding 1.5 * 2^23.
inline __attribute__((always_inline)) void quantise_group(const float* input,
                                                          quantised_group& output) {
  constexpr std::size_t group = packed_layout::group;
  std::int32_t bits = 0;
  for (std::size_t i = 0; i < group; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(input[i]) & 0x7fffffff;
    bits = magnitude > bits ? magnitude : bits;
  }
  const float largest = std::bit_cast<float>(bits);
  const bool nothing = largest < 0x1p-100f;
  const float inverse = nothing ? 0.0f : 127.0f / largest;
  output.scale = nothing ? 0.0f : largest / 127.0f;
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < group; ++i) {
    const float shifted = input[i] * inverse + 12582912.0f;
    const std::int32_t value = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
    output.values[i] = static_cast<std::int8_t>(value);
    sum += output.values[i];
  }
  output.sum = sum;
}

template <class Isa>
void quantise(const float* input, std::size_t n, quantised_group* groups) {
  constexpr std::size_t group = packed_layout::group;
  for (; n >= group; n -= group, input += group) quantise_group(input, *groups++);
  if (n > 0) {
    float padded[group] = {};
    std::memcpy(padded, input, n * sizeof(float));
    quantise_group(padded, *groups);
  }
}

/// One after the other in the expert kernel's scratch, each on a boundary of 64 bytes.
struct scratch_cursor {
  std::byte* next;
  template <class T>
  inline __attribute__((always_inline)) T* take(std::size_t n) {
    std::byte* place = next;
    next += (n * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(place);
  }
};

/// What lies between the products, blocks [first, last) of 64 inner units, into `product` as Down
/// reads it.
template <class Isa, class Wide, class Down>
void between_products(const packed_expert& expert, std::size_t first, std::size_t last,
                      row_span<Wide> rows, typename Down::row* product, std::size_t product_stride,
                      std::size_t n_rows, float* gates, float* ups) {
  const auto& layout = expert.up.layout;
  const bool gated = expert.gate.data != nullptr;
  for (std::size_t b = first; b < last; ++b) {
    const auto up = block_of<Wide>(expert.up, b);
    if (!gated) {
      block_rows<Isa, Wide>(up, layout.n_in, rows, ups, block, n_rows);
    } else if (n_rows == 1 && up.width == block) {
      block_pair<Isa, Wide>(block_of<Wide>(expert.gate, b), up, layout.n_in, rows, gates, ups);
    } else {
      block_rows<Isa, Wide>(block_of<Wide>(expert.gate, b), layout.n_in, rows, gates, block,
                            n_rows);
      block_rows<Isa, Wide>(up, layout.n_in, rows, ups, block, n_rows);
    }
    for (std::size_t i = 0; i < n_rows; ++i) {
      const float* raised = ups + i * block;
      alignas(64) float units[block];
      if (gated)
        silu_product<Isa>(gates + i * block, raised, units, up.valid);
      else
        for (std::size_t k = 0; k < up.valid; ++k) units[k] = raised[k] < 0.0f ? 0.0f : raised[k];
      if constexpr (Down::is_quantised)
        quantise<Isa>(units, up.valid,
                      product + i * product_stride + b * (block / packed_layout::group));
      else
        std::memcpy(product + i * product_stride + b * block, units, up.valid * sizeof(float));
    }
  }
}

/// use(wide, down): with the operands of an expert's two products.
template <class Use>
inline void with_operands(const packed_expert& expert, const Use& use) {
  const auto with_down = [&]<class Wide>(Wide wide) {
    switch (expert.down.storage) {
      case weight_storage::fp32:
        return use(wide, plain_operand<float>{});
      case weight_storage::bf16:
        return use(wide, plain_operand<std::uint16_t>{});
      case weight_storage::int8:
        return use(wide, int8_operand{});
      case weight_storage::int4:
        return use(wide, int4_operand{});
    }
  };
  switch (expert.up.storage) {
    case weight_storage::fp32:
      return with_down(plain_operand<float>{});
    case weight_storage::bf16:
      return with_down(plain_operand<std::uint16_t>{});
    case weight_storage::int8:
      return with_down(int8_operand{});
    case weight_storage::int4:
      return with_down(int4_operand{});
  }
}

/// Numbers or groups of a row that goes into a matrix.
template <class Operand>
constexpr std::size_t row_stride(const packed_layout& layout) {
  return Operand::is_quantised ? layout.n_groups() : layout.n_in;
}

template <class Isa>
void expert_units(const packed_expert& content, std::size_t first, std::size_t last,
                  const void* input, void* units, std::size_t n_rows, float* scratch) {
  with_operands(content, [&]<class Wide, class Down>(Wide, Down) {
    const row_span<Wide> rows{static_cast<const typename Wide::row*>(input),
                              row_stride<Wide>(content.up.layout)};
    between_products<Isa, Wide, Down>(
        content, first, last, rows, static_cast<typename Down::row*>(units),
        row_stride<Down>(content.down.layout), n_rows, scratch, scratch + n_rows * block);
  });
}

template <class Isa>
void expert(const packed_expert& content, const float* input, float* output, std::size_t n_rows,
            void* scratch) {
  with_operands(content, [&]<class Wide, class Down>(Wide, Down) {
    scratch_cursor free{static_cast<std::byte*>(scratch)};
    const auto& outer = content.up.layout;
    const auto& inner = content.down.layout;
    const std::size_t stride = row_stride<Down>(inner);
    row_span<Wide> rows{nullptr, row_stride<Wide>(outer)};
    if constexpr (Wide::is_quantised) {
      auto* groups = free.take<quantised_group>(n_rows * rows.stride);
      for (std::size_t i = 0; i < n_rows; ++i)
        quantise<Isa>(input + i * outer.n_in, outer.n_in, groups + i * rows.stride);
      rows.first = groups;
    } else {
      rows.first = input;
    }
    auto* gates = free.take<float>(n_rows * block);
    auto* ups = free.take<float>(n_rows * block);
    auto* product = free.take<typename Down::row>(n_rows * stride);
    between_products<Isa, Wide, Down>(content, 0, outer.n_blocks(), rows, product, stride, n_rows,
                                      gates, ups);
    multiply<Isa, Down>(content.down, {product, stride}, output, inner.n_out, n_rows);
  });
}

template <class Isa>
constexpr kernel_set make_set(const char* name) {
  return {name,
          &linear<Isa>,
          &quantise<Isa>,
          &linear_quantised<Isa>,
          &expert<Isa>,
          &expert_units<Isa>,
          &rms_norm<Isa>,
          &attention<Isa>,
          &softmax_weights<Isa>,
          &silu_product<Isa>,
          &rotate<Isa>};
}

}  // namespace ordermoe::model::bodies
