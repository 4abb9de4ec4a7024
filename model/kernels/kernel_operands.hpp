#pragma once

#include <cstddef>
#include <cstdint>

#include "model/kernels/kernel_bodies.hpp"

/// What each storage of weights does differently in a product, under the rules of kernel_bodies.hpp: how a block of 64
/// outputs lies in memory and how a tile of it is multiplied. For quantised numbers `Isa` supplies
/// `bytes` (16 outputs x 4 inputs, unsigned), load_bytes, low_halves and high_halves (each byte's
/// four bits), set1_ints, to_floats, and dot(sums, bytes, values): each lane plus its four bytes
/// times the four int8 values, exactly. Where sums_nibbles is true, dot_nibbles does so with bytes below 16, in two sums of
/// 16 bits a lane. A group's begin with -4 times the sum of its values (begin_nibbles) and end between -2^15 and 2^15, whatever they
/// are on the way: 16 products of -4 to 11 and 16 of -4 by int8 are 30,720 at most. of_nibbles() is a lane's sum of the two. For all it says into which cache a tile fetches what it needs soon, and what other passes
/// will need (soon_into, share_into; 0: not at all).
namespace ordermoe::model::bodies {

/// Into the cache of this level; 0: not at all.
template <int Level>
inline __attribute__((always_inline)) void fetch_into([[maybe_unused]] const std::uint8_t* place) {
  if constexpr (Level > 0) __builtin_prefetch(place, 0, 4 - Level);
}

/// Which lines a tile fetches while it multiplies, with those at byte `at` of a panel. Here: what it will soon need itself.
template <class Isa>
struct fetch_soon {
  static constexpr std::ptrdiff_t bytes_ahead = 4096;

  inline __attribute__((always_inline)) std::ptrdiff_t from(std::size_t at) const {
    return bytes_ahead + static_cast<std::ptrdiff_t>(at);
  }
  static inline __attribute__((always_inline)) void fetch(const std::uint8_t* place) {
    fetch_into<Isa::soon_into>(place);
  }
};

/// Likewise, what other passes will need, at distance + at / 2^shift.
template <class Isa>
struct fetch_share {
  std::ptrdiff_t distance;
  unsigned shift;

  inline __attribute__((always_inline)) std::ptrdiff_t from(std::size_t at) const {
    return distance + static_cast<std::ptrdiff_t>(at >> shift);
  }
  static inline __attribute__((always_inline)) void fetch(const std::uint8_t* place) {
    fetch_into<Isa::share_into>(place);
  }
};

/// One block of a packed matrix; `valid` of its `width` outputs are not padding.
struct block_place {
  const std::uint8_t* first;
  std::size_t width;
  std::size_t valid;
  std::size_t n_in;
};

/// Where the weights of 16 outputs of a block begin, from some input on, and, where they lie apart, their scales.
struct panel_place {
  const std::uint8_t* weights;
  const std::uint8_t* scales;
};

/// Panels side by side in one block, or all of two blocks.
template <int Panels>
struct panel_places {
  static constexpr int in_a_block = block / lane;
  static constexpr std::size_t panel_bytes = 64;
  panel_place first, second;

  inline __attribute__((always_inline)) const std::uint8_t* weights(int p) const {
    const auto& from = p < in_a_block ? first : second;
    return from.weights + static_cast<std::size_t>(p % in_a_block) * panel_bytes;
  }
  /// Of so many bytes for an output.
  inline __attribute__((always_inline)) const std::uint8_t* scales(int p, std::size_t bytes) const {
    const auto& from = p < in_a_block ? first : second;
    return from.scales + static_cast<std::size_t>(p % in_a_block) * lane * bytes;
  }
};

template <class Isa>
struct plain_fma {
  inline __attribute__((always_inline)) typename Isa::vec operator()(
      const typename Isa::vec& a, const typename Isa::vec& b, const typename Isa::vec& c) const {
    return Isa::fma(a, b, c);
  }
};
/// Denormal numbers are zeros of their sign, in what goes in and in what comes out; vectors rely on
/// the flushing scope for it.
template <class Isa>
struct flushed_fma {
  inline __attribute__((always_inline)) typename Isa::vec operator()(
      const typename Isa::vec& a, const typename Isa::vec& b, const typename Isa::vec& c) const {
    return Isa::flushed_fma(a, b, c);
  }
};

/// Adds to the sums what one input of each row, the first of `rows`, gives with the weights load(panel).
template <class Isa, int Rows, int Panels, class Row, class Load, class Fma>
inline __attribute__((always_inline)) void add_products(const Row* rows, std::size_t stride,
                                                        const Load& load, const Fma& fma,
                                                        typename Isa::vec (&sums)[Rows][Panels]) {
  typename Isa::vec w[Panels];
  for (int p = 0; p < Panels; ++p) w[p] = load(p);
  for (int r = 0; r < Rows; ++r) {
    const auto x = Isa::set1(std::bit_cast<float>(rows[r * stride]));
    for (int p = 0; p < Panels; ++p) sums[r][p] = fma(x, w[p], sums[r][p]);
  }
}

/// body(0), body(1) and so on: one after the other in the code where registers suffice for that.
template <class Isa, std::size_t N, class Body>
inline __attribute__((always_inline)) void each_step(const Body& body) {
  if constexpr (Isa::many_registers) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < N; ++j) body(j);
  } else {
#pragma GCC unroll 1
    for (std::size_t j = 0; j < N; ++j) body(j);
  }
}

/// What holds for an operand that does not say otherwise.
struct operand_rules {
  static constexpr bool is_quantised = false, is_rounded = false;

  /// That a pass takes, of so many.
  template <class Isa>
  static constexpr std::size_t most_rows(std::size_t) {
    return Isa::most_rows;
  }
  /// After the last input.
  template <class Isa, int Rows, int Panels>
  static inline __attribute__((always_inline)) void finish(const panel_places<Panels>&,
                                                           typename Isa::vec (&)[Rows][Panels]) {}
};

/// fp32 weights.
struct plain_operand : operand_rules {
  using row = float;

  static constexpr std::size_t inputs_at_once = 256;

  static constexpr std::size_t bytes_before(std::size_t width, std::size_t k) {
    return width * k * sizeof(float);
  }
  static constexpr std::size_t block_bytes(std::size_t width, std::size_t n_in) {
    return bytes_before(width, n_in);
  }
  static inline __attribute__((always_inline)) panel_place panel(const block_place& block,
                                                                 std::size_t k, std::size_t p) {
    return {block.first + bytes_before(block.width, k) + p * lane * sizeof(float), nullptr};
  }

  /// Rows x (16 * Panels) outputs in registers, added to what the sums have; likewise below.
  template <class Isa, int Rows, int Panels, class Ahead>
  static inline __attribute__((always_inline)) void tile(const panel_places<Panels>& panels,
                                                         std::size_t width, std::size_t n_in,
                                                         const float* rows, std::size_t stride,
                                                         const Ahead& ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    for (std::size_t k = 0; k < n_in; ++k) {
      const std::size_t at = k * width * sizeof(float);
      for (int p = 0; p < Panels; ++p) Ahead::fetch(panels.weights(p) + ahead.from(at));
      add_products<Isa>(
          rows + k, stride,
          [&](int p) { return Isa::load(reinterpret_cast<const float*>(panels.weights(p) + at)); },
          plain_fma<Isa>(), sums);
    }
  }
};

/// bf16 weights: inputs 2 j and 2 j + 1 of 16 outputs are a line.
struct bf16_operand : operand_rules {
  static constexpr std::size_t pair_bytes = 4;

  static constexpr std::size_t inputs_at_once = 512;

  template <class Isa>
  static constexpr std::size_t most_rows(std::size_t) {
    return Isa::most_bf16_rows;
  }

  static constexpr std::size_t n_pairs(std::size_t n_in) { return (n_in + 1) / 2; }
  static constexpr std::size_t bytes_before(std::size_t width, std::size_t k) {
    return width * n_pairs(k) * pair_bytes;
  }
  static constexpr std::size_t block_bytes(std::size_t width, std::size_t n_in) {
    return bytes_before(width, n_in);
  }
  static inline __attribute__((always_inline)) panel_place panel(const block_place& block,
                                                                 std::size_t k, std::size_t p) {
    return {block.first + bytes_before(block.width, k) + p * lane * pair_bytes, nullptr};
  }
};

/// bf16 weights by rows as they are.
struct paired_operand : bf16_operand {
  using row = float;

  template <class Isa, int Rows, int Panels, class Ahead>
  static inline __attribute__((always_inline)) void tile(const panel_places<Panels>& panels,
                                                         std::size_t width, std::size_t n_in,
                                                         const float* rows, std::size_t stride,
                                                         const Ahead& ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    const auto add_even = [&](std::size_t k, std::size_t at) {
      add_products<Isa>(
          rows + k, stride, [&](int p) { return Isa::load_even(panels.weights(p) + at); },
          plain_fma<Isa>(), sums);
    };
    std::size_t k = 0, at = 0;
    for (; k + 2 <= n_in; k += 2, at += width * pair_bytes) {
      for (int p = 0; p < Panels; ++p) Ahead::fetch(panels.weights(p) + ahead.from(at));
      add_even(k, at);
      add_products<Isa>(
          rows + k + 1, stride, [&](int p) { return Isa::load_odd(panels.weights(p) + at); },
          plain_fma<Isa>(), sums);
    }
    if (k < n_in) add_even(k, at);
  }
};

/// bf16 weights by rows that are rounded to bf16.
struct rounded_operand : bf16_operand {
  using row = std::uint32_t;
  static constexpr bool is_rounded = true;

  template <class Isa, int Rows, int Panels, class Ahead>
  static inline __attribute__((always_inline)) void tile(const panel_places<Panels>& panels,
                                                         std::size_t width, std::size_t n_in,
                                                         const std::uint32_t* rows,
                                                         std::size_t stride, const Ahead& ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    for (std::size_t j = 0; j < n_pairs(n_in); ++j) {
      const std::size_t at = j * width * pair_bytes;
      for (int p = 0; p < Panels; ++p) Ahead::fetch(panels.weights(p) + ahead.from(at));
      if constexpr (Isa::rounded_words == 1) {
        typename Isa::bf16_pairs w[Panels];
        for (int p = 0; p < Panels; ++p) w[p] = Isa::load_pairs(panels.weights(p) + at);
        for (int r = 0; r < Rows; ++r) {
          const auto x = Isa::set1_pair(rows[r * stride + j]);
          for (int p = 0; p < Panels; ++p) sums[r][p] = Isa::add_pairs(sums[r][p], w[p], x);
        }
      } else {
        add_products<Isa>(
            rows + 2 * j + 1, stride, [&](int p) { return Isa::load_odd(panels.weights(p) + at); },
            flushed_fma<Isa>(), sums);
        add_products<Isa>(
            rows + 2 * j, stride, [&](int p) { return Isa::load_even(panels.weights(p) + at); },
            flushed_fma<Isa>(), sums);
      }
    }
  }

  template <class Isa, int Rows, int Panels>
  static inline __attribute__((always_inline)) void finish(
      const panel_places<Panels>&, typename Isa::vec (&sums)[Rows][Panels]) {
    for (auto& row : sums)
      for (auto& sum : row) sum = Isa::one_nan(sum);
  }
};

struct int8_operand : operand_rules {
  using row = quantised_group;
  static constexpr bool is_quantised = true;
  static constexpr std::size_t group = packed_layout::group;

  static constexpr std::size_t inputs_at_once = 1024;

  /// Passes of fewer rows over more outputs while reading the weights is what takes the time.
  template <class Isa>
  static constexpr std::size_t most_rows(std::size_t n_rows) {
    return n_rows <= 2 * Isa::few_rows ? Isa::few_rows : Isa::most_rows;
  }

  static constexpr std::size_t bytes_before(std::size_t width, std::size_t k) {
    return width * ((k + group - 1) / group * group);
  }
  static constexpr std::size_t block_bytes(std::size_t width, std::size_t n_in) {
    return bytes_before(width, n_in) + width * sizeof(float);
  }
  static inline __attribute__((always_inline)) panel_place panel(const block_place& block,
                                                                 std::size_t k, std::size_t p) {
    return {block.first + bytes_before(block.width, k) + p * lane * 4,
            block.first + bytes_before(block.width, block.n_in) + p * lane * sizeof(float)};
  }

  template <class Isa, int Rows, int Panels, class Ahead>
  static inline __attribute__((always_inline)) void tile(const panel_places<Panels>& panels,
                                                         std::size_t width, std::size_t n_in,
                                                         const quantised_group* rows,
                                                         std::size_t stride, const Ahead& ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    const std::size_t n_groups = (n_in + group - 1) / group;
    for (std::size_t g = 0; g < n_groups; ++g) {
      const std::size_t start = g * width * group;
      const std::ptrdiff_t there = ahead.from(start);
      typename Isa::ints whole[Rows][Panels];
      for (int r = 0; r < Rows; ++r)
        for (int p = 0; p < Panels; ++p)
          whole[r][p] = Isa::set1_ints(-128 * rows[r * stride + g].sum);
      each_step<Isa, 8>([&](std::size_t j) {
        const std::size_t at = j * width * 4;
        typename Isa::bytes w[Panels];
        for (int p = 0; p < Panels; ++p) {
          Ahead::fetch(panels.weights(p) + there + at);
          w[p] = Isa::load_bytes(panels.weights(p) + start + at);
        }
        for (int r = 0; r < Rows; ++r)
          for (int p = 0; p < Panels; ++p)
            whole[r][p] = Isa::dot(whole[r][p], w[p], rows[r * stride + g].values + 4 * j);
      });
      for (int r = 0; r < Rows; ++r) {
        const auto scale = Isa::set1(rows[r * stride + g].scale);
        for (int p = 0; p < Panels; ++p)
          sums[r][p] = Isa::fma(Isa::to_floats(whole[r][p]), scale, sums[r][p]);
      }
    }
  }

  template <class Isa, int Rows, int Panels>
  static inline __attribute__((always_inline)) void finish(
      const panel_places<Panels>& panels, typename Isa::vec (&sums)[Rows][Panels]) {
    for (int p = 0; p < Panels; ++p) {
      const auto scale = Isa::load(reinterpret_cast<const float*>(panels.scales(p, sizeof(float))));
      for (int r = 0; r < Rows; ++r) sums[r][p] = Isa::mul(sums[r][p], scale);
    }
  }
};

struct int4_operand : operand_rules {
  using row = quantised_group;
  static constexpr bool is_quantised = true;
  static constexpr std::size_t group = packed_layout::group;
  /// Of one output and 32 inputs: 16 of weights, 2 of the scale.
  static constexpr std::size_t group_bytes = 18;

  static constexpr std::size_t inputs_at_once = 2048;

  /// Unpacking halves of bytes for more outputs at once is worth more than for more rows.
  template <class Isa>
  static constexpr std::size_t most_rows(std::size_t) {
    return Isa::few_rows;
  }

  static constexpr std::size_t bytes_before(std::size_t width, std::size_t k) {
    return width * ((k + group - 1) / group) * group_bytes;
  }
  static constexpr std::size_t block_bytes(std::size_t width, std::size_t n_in) {
    return bytes_before(width, n_in);
  }
  static inline __attribute__((always_inline)) panel_place panel(const block_place& block,
                                                                 std::size_t k, std::size_t p) {
    const std::uint8_t* first = block.first + bytes_before(block.width, k);
    return {first + p * lane * 4, first + block.width * 16 + p * lane * 2};
  }

  template <class Isa, int Rows, int Panels, class Ahead>
  static inline __attribute__((always_inline)) void tile(const panel_places<Panels>& panels,
                                                         std::size_t width, std::size_t n_in,
                                                         const quantised_group* rows,
                                                         std::size_t stride, const Ahead& ahead,
                                                         typename Isa::vec (&sums)[Rows][Panels]) {
    const std::size_t n_groups = (n_in + group - 1) / group;
    for (std::size_t g = 0; g < n_groups; ++g) {
      const std::size_t start = g * width * group_bytes;
      const std::ptrdiff_t there = ahead.from(start);
      const auto each_product = [&](const auto& add) __attribute__((always_inline)) {
        each_step<Isa, 4>([&](std::size_t j) {
          const std::size_t at = j * width * 4;
          for (int p = 0; p < Panels; ++p) {
            Ahead::fetch(panels.weights(p) + there + at);
            const auto both = Isa::load_bytes(panels.weights(p) + start + at);
            const auto low = Isa::low_halves(both);
            const auto high = Isa::high_halves(both);
            for (int r = 0; r < Rows; ++r) {
              const std::int8_t* values = rows[r * stride + g].values + 4 * j;
              add(r, p, low, values);
              add(r, p, high, values + 16);
            }
          }
        });
      };
      typename Isa::ints whole[Rows][Panels];
      if constexpr (Isa::sums_nibbles) {
        typename Isa::nibble_sums of_group[Rows][Panels];
        for (int r = 0; r < Rows; ++r)
          for (int p = 0; p < Panels; ++p)
            of_group[r][p] = Isa::begin_nibbles(rows[r * stride + g].sum);
        each_product([&](int r, int p, const auto& w, const std::int8_t* values) __attribute__((
            always_inline)) { of_group[r][p] = Isa::dot_nibbles(of_group[r][p], w, values); });
        for (int r = 0; r < Rows; ++r)
          for (int p = 0; p < Panels; ++p) whole[r][p] = Isa::of_nibbles(of_group[r][p]);
      } else {
        for (int r = 0; r < Rows; ++r)
          for (int p = 0; p < Panels; ++p)
            whole[r][p] = Isa::set1_ints(-8 * rows[r * stride + g].sum);
        each_product([&](int r, int p, const auto& w, const std::int8_t* values) __attribute__((
            always_inline)) { whole[r][p] = Isa::dot(whole[r][p], w, values); });
      }
      for (int p = 0; p < Panels; ++p) {
        Ahead::fetch(panels.scales(p, 2) + there);
        const auto scale =
            Isa::load_weights(reinterpret_cast<const std::uint16_t*>(panels.scales(p, 2) + start));
        for (int r = 0; r < Rows; ++r)
          sums[r][p] = Isa::fma(Isa::to_floats(whole[r][p]),
                                Isa::mul(scale, Isa::set1(rows[r * stride + g].scale)), sums[r][p]);
      }
    }
  }
};

}  // namespace ordermoe::model::bodies
