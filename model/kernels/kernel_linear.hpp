#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/kernels/kernel_attention.hpp"
#include "model/kernels/kernel_operands.hpp"
#include "model/kernels/kernel_rows.hpp"

/// Bodies of the products with packed matrices, for the sources that include kernel_bodies.hpp and
/// under its rules. What a storage does differently is in one operand each (kernel_operands.hpp).
namespace ordermoe::model::bodies {

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

/// What store_panel() stored.
template <class Isa>
inline __attribute__((always_inline)) typename Isa::vec stored_panel(const float* output,
                                                                     std::size_t width) {
  if (width >= lane) return Isa::load(output);
  float lanes[lane] = {};
  std::memcpy(lanes, output, width * sizeof(float));
  return Isa::load(lanes);
}

/// Rows that are multiplied: `stride` is in numbers, words or groups.
template <class Operand>
struct row_span {
  const typename Operand::row* first;
  std::size_t stride;
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
          width, valid, layout.n_in};
}

/// Inputs [first, first + n) of n_in that rows pass over before the next ones: the sums of those
/// before are in the outputs.
struct input_part {
  std::size_t first, n, n_in;

  bool begins() const { return first == 0; }
  bool ends() const { return first + n == n_in; }
};

/// `rows` begin with the part's inputs, `output` with the block's outputs.
template <class Isa, class Operand, int Rows, int Panels, class Ahead>
__attribute__((noinline)) void block_panels(const block_place& from, std::size_t first_panel,
                                            const input_part& part, const row_span<Operand>& rows,
                                            float* output, std::size_t output_stride,
                                            const Ahead& ahead) {
  const panel_places<Panels> panels{Operand::panel(from, part.first, first_panel), {}};
  typename Isa::vec sums[Rows][Panels];
  for (auto& row : sums)
    for (auto& sum : row) sum = Isa::zero();
  const auto each_sum = [&](const auto& body) {
    for (int r = 0; r < Rows; ++r)
      for (int p = 0; p < Panels; ++p) {
        const std::size_t o = (first_panel + static_cast<std::size_t>(p)) * lane;
        body(sums[r][p], output + r * output_stride + o, from.valid - o);
      }
  };
  if (!part.begins())
    each_sum([](auto& sum, const float* place, std::size_t width) {
      sum = stored_panel<Isa>(place, width);
    });
  Operand::template tile<Isa, Rows, Panels>(panels, from.width, part.n, rows.first, rows.stride,
                                            ahead, sums);
  if (part.ends()) Operand::template finish<Isa, Rows, Panels>(panels, sums);
  each_sum([](const auto& sum, float* place, std::size_t width) {
    store_panel<Isa>(sum, place, width);
  });
}

/// How many panels of a block a tile of Rows rows takes at once, and the most rows of which one tile takes all. With more rows a
/// block is tiles side by side: fetching a line of every four ahead, each for itself, memory gave half to two thirds of what it gives in order (on a Zen 3).
template <class Isa, class Operand, int Rows>
constexpr int panels_at_once =
    Operand::is_quantised ? Isa::template quantised_panels<Rows> : Isa::template block_panels<Rows>;
template <class Isa, class Operand, int Rows = 1>
constexpr std::size_t most_rows_of_whole_blocks() {
  if constexpr (Rows > 6)
    return 6;
  else if constexpr (panels_at_once<Isa, Operand, Rows> < static_cast<int>(block / lane))
    return Rows - 1;
  else
    return most_rows_of_whole_blocks<Isa, Operand, Rows + 1>();
}

/// Rows rows of one block. `ahead_of(i)`: what the i-th of the tiles side by side fetches.
template <class Isa, class Operand, int Rows, class AheadOf>
inline void block_tile(const block_place& from, const input_part& part,
                       const row_span<Operand>& rows, float* output, std::size_t output_stride,
                       const AheadOf& ahead_of) {
  constexpr int wide = panels_at_once<Isa, Operand, Rows>;
  const std::size_t n_panels = from.width / lane;
  std::size_t p = 0;
  const auto take = [&]<int Panels>() {
    for (; p + Panels <= n_panels; p += Panels)
      block_panels<Isa, Operand, Rows, Panels>(from, p, part, rows, output, output_stride,
                                               ahead_of(p / Panels));
  };
  if constexpr (wide > 1) take.template operator()<wide>();
  take.template operator()<1>();
}

/// What passes over a block's part, or tiles side by side in it, fetch while they multiply, where they are several: the first two or four
/// each their share of the part that comes next. Passes of fewer rows may have fewer tiles, and fetch a share once more.
struct part_fetching {
  std::ptrdiff_t to_next;  ///< Bytes from this part to the next; 0: nothing is fetched.
  std::size_t part_bytes;
  std::size_t n_passes;

  template <class Isa>
  fetch_share<Isa> of_pass(std::size_t pass) const {
    const unsigned shift = n_passes >= 4 ? 2 : 1;
    if (to_next == 0 || pass >> shift != 0) return {0, 0};
    return {to_next + static_cast<std::ptrdiff_t>(pass * (part_bytes >> shift)), shift};
  }
};

/// All rows of a block's part, in as few passes as there can be, as alike as they can be.
template <class Isa, class Operand>
inline void pass_over(const block_place& from, const input_part& part, row_span<Operand> rows,
                      float* output, std::size_t output_stride, std::size_t n_rows,
                      std::ptrdiff_t to_next) {
  static_assert(Isa::most_rows <= 6);
  const std::size_t most = Operand::template most_rows<Isa>(n_rows);
  const std::size_t n_passes = (n_rows + most - 1) / most;
  const std::size_t part_bytes = Operand::bytes_before(from.width, part.n);
  for (std::size_t i = 0; i < n_passes; ++i) {
    const std::size_t n = n_rows / n_passes + (i < n_rows % n_passes ? 1 : 0);
    const auto pass = [&]<std::size_t Rows>() {
      if constexpr (Rows <= Operand::template most_rows<Isa>(SIZE_MAX)) {
        constexpr int n_at_once = static_cast<int>(Rows);
        constexpr std::size_t n_tiles = block / lane / panels_at_once<Isa, Operand, n_at_once>;
        const auto tile = [&](const auto& ahead_of) {
          block_tile<Isa, Operand, n_at_once>(from, part, rows, output, output_stride, ahead_of);
        };
        if (n_passes == 1 && n_tiles == 1)
          tile([](std::size_t) { return fetch_soon<Isa>(); });
        else
          tile([&](std::size_t which) {
            return part_fetching{to_next, part_bytes, n_passes * n_tiles}.of_pass<Isa>(i * n_tiles +
                                                                                       which);
          });
      }
    };
    switch (n) {
      case 1:
        pass.template operator()<1>();
        break;
      case 2:
        pass.template operator()<2>();
        break;
      case 3:
        pass.template operator()<3>();
        break;
      case 4:
        pass.template operator()<4>();
        break;
      case 5:
        pass.template operator()<5>();
        break;
      default:
        pass.template operator()<6>();
    }
    rows.first += n * rows.stride;
    output += n * output_stride;
  }
}

/// All rows of one block. Where they take several passes, or tiles side by side, these go over so many of its inputs that
/// they stay in a near cache, then over the next. `next`: the block that comes after this one;
/// null: none.
template <class Isa, class Operand>
__attribute__((noinline)) void block_rows(const block_place& from, const row_span<Operand>& rows,
                                          float* output, std::size_t output_stride,
                                          std::size_t n_rows, const std::uint8_t* next) {
  const std::size_t n_in = from.n_in;
  const std::size_t most = Operand::template most_rows<Isa>(n_rows);
  constexpr std::size_t whole = most_rows_of_whole_blocks<Isa, Operand>();
  const std::size_t at_once =
      n_rows <= (most < whole ? most : whole) ? n_in : Operand::inputs_at_once;
  for (std::size_t k = 0; k < n_in; k += at_once) {
    const input_part part{k, n_in - k < at_once ? n_in - k : at_once, n_in};
    const std::uint8_t* here = from.first + Operand::bytes_before(from.width, k);
    const std::uint8_t* then =
        part.ends() ? next : from.first + Operand::bytes_before(from.width, k + at_once);
    using form = row_form<Isa, typename Operand::row>;
    pass_over<Isa, Operand>(from, part, {rows.first + form::at(k), rows.stride}, output,
                            output_stride, n_rows, then == nullptr ? 0 : then - here);
  }
}

/// One row of two whole blocks of the same shape at a time, so that memory is read from two places.
template <class Isa, class Operand>
__attribute__((noinline)) void block_pair(const block_place& a, const block_place& b,
                                          const row_span<Operand>& row, float* output_a,
                                          float* output_b) {
  if constexpr (Isa::pairs) {
    constexpr int panels_each = block / lane;
    const panel_places<2 * panels_each> panels{Operand::panel(a, 0, 0), Operand::panel(b, 0, 0)};
    typename Isa::vec sums[1][2 * panels_each];
    for (auto& sum : sums[0]) sum = Isa::zero();
    Operand::template tile<Isa, 1, 2 * panels_each>(panels, block, a.n_in, row.first, row.stride,
                                                    fetch_soon<Isa>(), sums);
    Operand::template finish<Isa, 1, 2 * panels_each>(panels, sums);
    for (int p = 0; p < panels_each; ++p) {
      const auto o = static_cast<std::size_t>(p) * lane;
      store_panel<Isa>(sums[0][p], output_a + o, a.valid - o);
      store_panel<Isa>(sums[0][panels_each + p], output_b + o, b.valid - o);
    }
  } else {
    const input_part all{0, a.n_in, a.n_in};
    const auto soon = [](std::size_t) { return fetch_soon<Isa>(); };
    block_tile<Isa, Operand, 1>(a, all, row, output_a, 0, soon);
    block_tile<Isa, Operand, 1>(b, all, row, output_b, 0, soon);
  }
}

/// While it lives, the thread's arithmetic is what the operand's products need. What computes
/// meanwhile are functions that are not inlined, or the compiler might move arithmetic out of it.
template <class Isa, class Operand>
struct arithmetic_scope {
  struct as_it_is {};
  [[no_unique_address]] std::conditional_t<Operand::is_rounded, typename Isa::flushing, as_it_is>
      held;
};

template <class Isa, class Operand>
void multiply(const packed_matrix& weights, row_span<Operand> rows, float* output,
              std::size_t output_stride, std::size_t n_rows) {
  const std::size_t n_blocks = weights.layout.n_blocks();
  [[maybe_unused]] const arithmetic_scope<Isa, Operand> scope{};
  std::size_t next = 0;
  if (n_rows == 1) {
    // The two halves of the matrix at once; what does not pair follows.
    const std::size_t half = weights.layout.padded_out() / block / 2;
    for (std::size_t b = 0; b < half; ++b)
      block_pair<Isa, Operand>(block_of<Operand>(weights, b), block_of<Operand>(weights, half + b),
                               rows, output + b * block, output + (half + b) * block);
    next = 2 * half;
  }
  for (std::size_t b = next; b < n_blocks; ++b) {
    const auto after = b + 1 < n_blocks ? block_of<Operand>(weights, b + 1).first : nullptr;
    block_rows<Isa, Operand>(block_of<Operand>(weights, b), rows, output + b * block, output_stride,
                             n_rows, after);
  }
}

template <class Isa>
void linear(const packed_matrix& weights, const float* input, std::size_t input_stride,
            float* output, std::size_t output_stride, std::size_t n_rows) {
  if (weights.storage == weight_storage::bf16)
    multiply<Isa, paired_operand>(weights, {input, input_stride}, output, output_stride, n_rows);
  else
    multiply<Isa, plain_operand>(weights, {input, input_stride}, output, output_stride, n_rows);
}

template <class Isa>
void linear_rounded(const packed_matrix& weights, const std::uint32_t* input, float* output,
                    std::size_t output_stride, std::size_t n_rows) {
  const std::size_t stride = weights.layout.n_pairs() * Isa::rounded_words;
  multiply<Isa, rounded_operand>(weights, {input, stride}, output, output_stride, n_rows);
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

/// What lies between the products, blocks [first, last) of 64 inner units, into `product` in the
/// form that the second one reads.
template <class Isa, class Wide, class Row>
void between_products(const packed_expert& expert, std::size_t first, std::size_t last,
                      row_span<Wide> rows, Row* product, std::size_t product_stride,
                      std::size_t n_rows, float* gates, float* ups) {
  const bool gated = expert.gate.data != nullptr;
  const packed_matrix& begins_with = gated ? expert.gate : expert.up;
  for (std::size_t b = first; b < last; ++b) {
    const auto up = block_of<Wide>(expert.up, b);
    const auto after = b + 1 < last ? block_of<Wide>(begins_with, b + 1).first : nullptr;
    {
      [[maybe_unused]] const arithmetic_scope<Isa, Wide> scope{};
      if (!gated) {
        block_rows<Isa, Wide>(up, rows, ups, block, n_rows, after);
      } else if (n_rows == 1 && up.width == block) {
        block_pair<Isa, Wide>(block_of<Wide>(expert.gate, b), up, rows, gates, ups);
      } else {
        block_rows<Isa, Wide>(block_of<Wide>(expert.gate, b), rows, gates, block, n_rows, up.first);
        block_rows<Isa, Wide>(up, rows, ups, block, n_rows, after);
      }
    }
    using form = row_form<Isa, Row>;
    for (std::size_t i = 0; i < n_rows; ++i) {
      const float* raised = ups + i * block;
      alignas(64) float units[block];
      if (gated)
        silu_product<Isa>(gates + i * block, raised, units, up.valid);
      else
        for (std::size_t k = 0; k < up.valid; ++k) units[k] = raised[k] < 0.0f ? 0.0f : raised[k];
      form::make(units, up.valid, product + i * product_stride + form::at(b * block));
    }
  }
}

/// use(operand): with that of a matrix.
template <class Use>
inline void with_operand(const packed_matrix& matrix, const Use& use) {
  switch (matrix.storage) {
    case weight_storage::fp32:
      return use(plain_operand{});
    case weight_storage::bf16:
      return matrix.rows == row_precision::bf16 ? use(rounded_operand{}) : use(paired_operand{});
    case weight_storage::int8:
      return use(int8_operand{});
    case weight_storage::int4:
      return use(int4_operand{});
  }
}

/// use(wide, row): with the operand of an expert's first products, and rows of its second one in their form.
template <class Use>
inline void with_forms(const packed_expert& expert, const Use& use) {
  with_operand(expert.up, [&]<class Wide>(Wide wide) {
    if (quantised(expert.down.storage))
      use(wide, quantised_group{});
    else if (rounds_rows(expert.down))
      use(wide, std::uint32_t{});
    else
      use(wide, float{});
  });
}

template <class Isa>
void expert_units(const packed_expert& content, std::size_t first, std::size_t last,
                  const void* input, void* units, std::size_t n_rows, float* scratch) {
  with_forms(content, [&]<class Wide, class Row>(Wide, Row) {
    const row_span<Wide> rows{static_cast<const typename Wide::row*>(input),
                              row_form<Isa, typename Wide::row>::stride(content.up.layout)};
    between_products<Isa, Wide, Row>(content, first, last, rows, static_cast<Row*>(units),
                                     row_form<Isa, Row>::stride(content.down.layout), n_rows,
                                     scratch, scratch + n_rows * block);
  });
}

template <class Isa>
void expert(const packed_expert& content, const float* input, float* output, std::size_t n_rows,
            void* scratch) {
  scratch_cursor free{static_cast<std::byte*>(scratch)};
  const auto& inner = content.down.layout;
  auto* gates = free.take<float>(n_rows * block);
  auto* ups = free.take<float>(n_rows * block);
  auto* product = free.take<std::byte>(n_rows * row_bytes(content.down));
  with_forms(content, [&]<class Wide, class Row>(Wide, Row) {
    const auto& outer = content.up.layout;
    using form = row_form<Isa, typename Wide::row>;
    row_span<Wide> rows{nullptr, form::stride(outer)};
    if constexpr (std::is_same_v<typename Wide::row, float>) {
      rows.first = input;
    } else {
      auto* made = free.take<typename Wide::row>(n_rows * rows.stride);
      for (std::size_t i = 0; i < n_rows; ++i)
        form::make(input + i * outer.n_in, outer.n_in, made + i * rows.stride);
      rows.first = made;
    }
    between_products<Isa, Wide, Row>(content, 0, outer.n_blocks(), rows,
                                     reinterpret_cast<Row*>(product),
                                     row_form<Isa, Row>::stride(inner), n_rows, gates, ups);
  });
  with_operand(content.down, [&]<class Down>(Down) {
    using row = typename Down::row;
    multiply<Isa, Down>(content.down,
                        {reinterpret_cast<const row*>(product), row_form<Isa, row>::stride(inner)},
                        output, inner.n_out, n_rows);
  });
}

template <class Isa>
constexpr kernel_set make_set(const char* name) {
  return {name,
          Isa::rounded_words,
          &linear<Isa>,
          &round_row<Isa>,
          &linear_rounded<Isa>,
          &quantise<Isa>,
          &linear_quantised<Isa>,
          &expert<Isa>,
          &expert_units<Isa>,
          &rms_norm<Isa>,
          &attention<Isa>,
          &softmax_weights<Isa>,
          &exact_weights<Isa>,
          &silu_product<Isa>,
          &rotate<Isa>};
}

}  // namespace ordermoe::model::bodies
