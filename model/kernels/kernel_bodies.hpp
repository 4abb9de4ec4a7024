#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "model/kernels/kernels.hpp"

/// The kernels' bodies, included once by the source of each instruction set after its target
/// options are in force. `Isa` supplies `vec`, 16 fp32 lanes, with zero, load, store, set1, fma,
/// mul and load_weights (fp32 or bf16), score_keys and value_panels (how many keys, and how many 16
/// numbers of a value, fit its registers with so many heads), and `ints`, 16 int32 lanes, with what
/// linear products of quantised numbers take (kernel_linear.hpp).
///
/// Bodies are templates over a type of the including source, so that no two sources share an
/// instantiation and the linker cannot hand one set's code to another.
namespace ordermoe::model::bodies {

constexpr std::size_t lane = packed_layout::lane;
constexpr std::size_t block = packed_layout::block;

/// The fixed tree: halves are added until one lane is left.
inline __attribute__((always_inline)) float lane_sum(const float (&lanes)[lane]) {
  float eight[8];
  float four[4];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

inline __attribute__((always_inline)) float widen(float x) {
  return x;
}
inline __attribute__((always_inline)) float widen(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

/// Sum of a[i] * b[i] in 16 lanes. Lanes start at +0 and so are never -0: leaving the last
/// elements' missing lanes alone is the same as adding zeros to them.
template <class Isa, class Number>
inline __attribute__((always_inline)) float dot(const float* a, const Number* b, std::size_t n) {
  auto sum = Isa::zero();
  std::size_t i = 0;
  for (; i + lane <= n; i += lane) sum = Isa::fma(Isa::load(a + i), Isa::load_weights(b + i), sum);
  alignas(64) float lanes[lane];
  Isa::store(lanes, sum);
  for (std::size_t j = 0; i < n; ++i, ++j) lanes[j] = std::fma(a[i], widen(b[i]), lanes[j]);
  return lane_sum(lanes);
}

/// e^x to within 2 units in the last place for x in [-87, 88], clamped outside: 2^n times a
/// polynomial on
/// [-ln 2 / 2, ln 2 / 2] (the Taylor series to the seventh power), n found by adding 1.5 * 2^23.
inline __attribute__((always_inline)) float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = std::fma(x, 1.44269504088896341f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040.0f;
  p = std::fma(p, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const auto exponent = (std::bit_cast<std::int32_t>(shifted) - 0x4b400000 + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

template <class Isa>
void rms_norm(const float* input, const float* weight, float epsilon, float* output,
              std::size_t n) {
  const float mean = dot<Isa>(input, input, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  for (std::size_t i = 0; i < n; ++i) output[i] = weight[i] * (input[i] * scale);
}

template <class Isa>
void silu_product(const float* gate, const float* up, float* output, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) output[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

template <class Isa>
void rotate(const float* cosines, const float* sines, float* heads, std::size_t n_heads,
            std::size_t head_dim) {
  const std::size_t half = head_dim / 2;
  for (std::size_t h = 0; h < n_heads; ++h) {
    float* low = heads + h * head_dim;
    float* high = low + half;
    for (std::size_t i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = std::fma(a, cosines[i], -(b * sines[i]));
      high[i] = std::fma(b, cosines[i], a * sines[i]);
    }
  }
}

/// The rows of an attention_view from number `offset` of each on.
template <class Number>
struct row_reader {
  const void* const* pages;
  std::size_t first;
  std::size_t mask;  ///< Rows of a page, less one.
  std::size_t row_size;
  std::size_t offset;
  unsigned shift;

  inline __attribute__((always_inline)) row_reader(const attention_view& view, std::size_t more)
      : pages(view.pages),
        first(view.first),
        mask((std::size_t{1} << view.page_shift) - 1),
        row_size(view.row_size),
        offset(view.offset + more),
        shift(view.page_shift) {}

  inline __attribute__((always_inline)) const Number* at(std::size_t t) const {
    const std::size_t row = first + t;
    return static_cast<const Number*>(pages[row >> shift]) + (row & mask) * row_size + offset;
  }
};

/// How many rows ahead of their use keys and values are fetched: rows lie too far apart for the
/// processor to foresee them.
constexpr std::size_t rows_ahead = 32;

template <class Number>
inline __attribute__((always_inline)) void fetch_row(const Number* row, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 64 / sizeof(Number)) __builtin_prefetch(row + i, 0, 3);
}

/// scores[h][t] = scale * (query h . key t) for Heads heads that share their keys, also for the
/// padding up to a multiple of 16, whose scores mean nothing; largest[h] is that of the first
/// n_rows.
template <class Isa, class Number, int Heads>
inline void attention_scores(const float* query, const row_reader<Number>& keys, std::size_t dim,
                             float scale, std::size_t n_rows, std::size_t padded, float* scores,
                             float (&largest)[Heads]) {
  for (float& x : largest) x = -INFINITY;
  if (dim % lane != 0) {
    for (int h = 0; h < Heads; ++h)
      for (std::size_t t = 0; t < n_rows; ++t) {
        const float score = dot<Isa>(query + h * dim, keys.at(t), dim) * scale;
        scores[h * padded + t] = score;
        largest[h] = score > largest[h] ? score : largest[h];
      }
    return;
  }
  constexpr std::size_t keys_at_once = Isa::template score_keys<Heads>;
  const auto scales = Isa::set1(scale);
  typename Isa::vec most[Heads];
  for (auto& x : most) x = Isa::set1(-INFINITY);
  for (std::size_t t = 0; t < n_rows; t += lane) {
    const Number* rows[lane];
    for (std::size_t r = 0; r < lane; ++r) {
      // Padding repeats the last key, which changes no maximum.
      rows[r] = t + r < n_rows ? keys.at(t + r) : rows[r - 1];
      if (t + r + rows_ahead < n_rows) fetch_row(keys.at(t + r + rows_ahead), dim);
    }
    typename Isa::vec sums[Heads][lane];
    for (std::size_t r = 0; r < lane; r += keys_at_once) {
      typename Isa::vec tile[Heads][keys_at_once];
      for (int h = 0; h < Heads; ++h)
        for (std::size_t k = 0; k < keys_at_once; ++k) tile[h][k] = Isa::zero();
      for (std::size_t i = 0; i < dim; i += lane) {
        typename Isa::vec key[keys_at_once];
        for (std::size_t k = 0; k < keys_at_once; ++k) key[k] = Isa::load_weights(rows[r + k] + i);
        for (int h = 0; h < Heads; ++h) {
          const auto part = Isa::load(query + h * dim + i);
          for (std::size_t k = 0; k < keys_at_once; ++k)
            tile[h][k] = Isa::fma(part, key[k], tile[h][k]);
        }
      }
      for (int h = 0; h < Heads; ++h)
        for (std::size_t k = 0; k < keys_at_once; ++k) sums[h][r + k] = tile[h][k];
    }
    for (int h = 0; h < Heads; ++h) {
      const auto block = Isa::mul(Isa::lane_sums(sums[h]), scales);
      Isa::store(scores + h * padded + t, block);
      most[h] = Isa::max(most[h], block);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    alignas(64) float lanes[lane];
    Isa::store(lanes, most[h]);
    for (const float x : lanes) largest[h] = x > largest[h] ? x : largest[h];
  }
}

/// out[h] = sum over rows t, in order, of weights[h][t] * value t, for Heads heads that share their
/// values; numbers [d, d + 16 * Panels) of each value.
template <class Isa, class Number, int Heads, int Panels>
inline void weighted_values(const float* weights, std::size_t padded,
                            const row_reader<Number>& values, std::size_t d, std::size_t n_rows,
                            float* out, std::size_t dim) {
  typename Isa::vec sums[Heads][Panels];
  for (int h = 0; h < Heads; ++h)
    for (int p = 0; p < Panels; ++p) sums[h][p] = Isa::zero();
  for (std::size_t t = 0; t < n_rows; ++t) {
    const Number* row = values.at(t) + d;
    if (t + rows_ahead < n_rows) fetch_row(values.at(t + rows_ahead) + d, Panels * lane);
    typename Isa::vec value[Panels];
    for (int p = 0; p < Panels; ++p) value[p] = Isa::load_weights(row + p * lane);
    for (int h = 0; h < Heads; ++h) {
      const auto weight = Isa::set1(weights[h * padded + t]);
      for (int p = 0; p < Panels; ++p) sums[h][p] = Isa::fma(weight, value[p], sums[h][p]);
    }
  }
  for (int h = 0; h < Heads; ++h)
    for (int p = 0; p < Panels; ++p) Isa::store(out + h * dim + d + p * lane, sums[h][p]);
}

/// Adds a number of its own to every score; returns the largest sum.
inline __attribute__((always_inline)) float add_bias(const float* bias, std::size_t n_rows,
                                                     float* scores) {
  float largest = -INFINITY;
  for (std::size_t t = 0; t < n_rows; ++t) {
    scores[t] += bias[t];
    largest = scores[t] > largest ? scores[t] : largest;
  }
  return largest;
}

/// Heads heads that share one key and value head. bias: of the first of them, or null.
template <class Isa, class Number, int Heads>
inline void attend_heads(const float* query, const row_reader<Number>& keys,
                         const row_reader<Number>& values, std::size_t dim, float scale,
                         const float* bias, std::size_t bias_size, std::size_t n_rows,
                         float* scratch, float* output) {
  const std::size_t padded = (n_rows + lane - 1) / lane * lane;
  float totals[Heads], all_largest[Heads];
  attention_scores<Isa, Number, Heads>(query, keys, dim, scale, n_rows, padded, scratch,
                                       all_largest);
  for (int h = 0; h < Heads; ++h) {
    float* scores = scratch + h * padded;
    float largest = all_largest[h];
    if (bias != nullptr) largest = add_bias(bias + h * bias_size, n_rows, scores);
    // Padding positions weigh exactly nothing: their lanes are set to +0 after the exponential.
    for (std::size_t t = n_rows; t < padded; ++t) scores[t] = largest;
    for (std::size_t t = 0; t < padded; ++t) scores[t] = exponential(scores[t] - largest);
    for (std::size_t t = n_rows; t < padded; ++t) scores[t] = 0.0f;
    alignas(64) float lanes[lane] = {};
    for (std::size_t t = 0; t < padded; t += lane)
      for (std::size_t j = 0; j < lane; ++j) lanes[j] += scores[t + j];
    totals[h] = lane_sum(lanes);
  }
  std::size_t d = 0;
  constexpr int wide = Isa::template value_panels<Heads>;
  if constexpr (wide > 2) {
    for (; d + wide * lane <= dim; d += wide * lane)
      weighted_values<Isa, Number, Heads, wide>(scratch, padded, values, d, n_rows, output, dim);
  }
  for (; d + 2 * lane <= dim; d += 2 * lane)
    weighted_values<Isa, Number, Heads, 2>(scratch, padded, values, d, n_rows, output, dim);
  for (; d + lane <= dim; d += lane)
    weighted_values<Isa, Number, Heads, 1>(scratch, padded, values, d, n_rows, output, dim);
  for (; d < dim; ++d)
    for (int h = 0; h < Heads; ++h) {
      float sum = 0;
      for (std::size_t t = 0; t < n_rows; ++t)
        sum = std::fma(scratch[h * padded + t], widen(values.at(t)[d]), sum);
      output[h * dim + d] = sum;
    }
  for (int h = 0; h < Heads; ++h)
    for (std::size_t i = 0; i < dim; ++i) output[h * dim + i] /= totals[h];
}

template <class Isa, class Number>
void attention_over(const attention_shape& shape, std::size_t first, std::size_t last,
                    const float* query, const attention_view& view, float* scratch, float* output) {
  const std::size_t dim = shape.head_dim;
  const std::size_t width = shape.n_kv_heads * dim;
  const float scale = shape.scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(dim)) : shape.scale;
  const std::size_t group = shape.n_heads / shape.n_kv_heads;
  for (std::size_t h = first * group; h < last * group;) {
    const std::size_t left = group - h % group;
    const row_reader<Number> keys(view, h / group * dim);
    const row_reader<Number> values(view, h / group * dim + width);
    const float* bias = view.bias == nullptr ? nullptr : view.bias + h * view.bias_size;
    const auto attend = [&]<int Heads>(std::integral_constant<int, Heads>) {
      attend_heads<Isa, Number, Heads>(query + h * dim, keys, values, dim, scale, bias,
                                       view.bias_size, view.n_rows, scratch, output + h * dim);
      h += Heads;
    };
    if (left >= 4)
      attend(std::integral_constant<int, 4>{});
    else if (left >= 2)
      attend(std::integral_constant<int, 2>{});
    else
      attend(std::integral_constant<int, 1>{});
  }
}

template <class Isa>
void attention(const attention_shape& shape, std::size_t first, std::size_t last,
               const float* query, const attention_view& view, float* scratch, float* output) {
  if (view.precision == kv_precision::bf16)
    attention_over<Isa, std::uint16_t>(shape, first, last, query, view, scratch, output);
  else
    attention_over<Isa, float>(shape, first, last, query, view, scratch, output);
}

}  // namespace ordermoe::model::bodies
