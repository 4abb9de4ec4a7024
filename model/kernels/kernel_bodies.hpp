#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "model/kernels/kernels.hpp"

/// The kernels' bodies, included once by the source of each instruction set after its target
/// options are in force. `Isa` supplies `vec`, 16 fp32 lanes, with zero, load, store, set1, fma,
/// mul and load_weights (fp32 or bf16), most_heads (4 or 8), score_keys and value_panels (how many keys,
/// and how many 16 numbers of a value, fit its registers with so many heads), and `ints`, 16 int32 lanes, with what
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

/// Heads of one query row or of several that share their keys and values.
template <int Heads>
struct query_heads {
  const float* query[Heads];
  float* output[Heads];
  const float* bias[Heads];  ///< null: none
  std::size_t n_rows[Heads];
  std::size_t fewest = SIZE_MAX, most = 0;  ///< Of n_rows.

  void set(int h, const attention_query& row, std::size_t head, std::size_t dim) {
    query[h] = row.query + head * dim;
    output[h] = row.output + head * dim;
    bias[h] = row.view.bias == nullptr ? nullptr : row.view.bias + head * row.view.bias_size;
    n_rows[h] = row.view.n_rows;
    fewest = n_rows[h] < fewest ? n_rows[h] : fewest;
    most = n_rows[h] > most ? n_rows[h] : most;
  }
};

inline __attribute__((always_inline)) float larger(float a, float b) {
  return b > a ? b : a;
}

/// scores[h][t] = scale * (query h . key t) of the heads' own rows, and further ones, which mean
/// nothing, as far as `padded`; largest[h] is that of the own rows.
template <class Isa, class Number, int Heads>
inline void attention_scores(const query_heads<Heads>& of, const row_reader<Number>& keys,
                             std::size_t dim, float scale, std::size_t padded, float* scores,
                             float (&largest)[Heads]) {
  for (float& x : largest) x = -INFINITY;
  if (dim % lane != 0) {
    for (int h = 0; h < Heads; ++h)
      for (std::size_t t = 0; t < of.n_rows[h]; ++t) {
        const float score = dot<Isa>(of.query[h], keys.at(t), dim) * scale;
        scores[h * padded + t] = score;
        largest[h] = larger(largest[h], score);
      }
    return;
  }
  constexpr std::size_t keys_at_once = Isa::template score_keys<Heads>;
  const auto scales = Isa::set1(scale);
  typename Isa::vec most[Heads];
  for (auto& x : most) x = Isa::set1(-INFINITY);
  for (std::size_t t = 0; t < of.most; t += lane) {
    const Number* rows[lane];
    for (std::size_t r = 0; r < lane; ++r) {
      rows[r] = t + r < of.most ? keys.at(t + r) : rows[r - 1];
      if (t + r + rows_ahead < of.most) fetch_row(keys.at(t + r + rows_ahead), dim);
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
          const auto part = Isa::load(of.query[h] + i);
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
      if (t + lane <= of.fewest) {
        most[h] = Isa::max(most[h], block);
        continue;
      }
      for (std::size_t own = t; own < t + lane && own < of.n_rows[h]; ++own)
        largest[h] = larger(largest[h], scores[h * padded + own]);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    alignas(64) float lanes[lane];
    Isa::store(lanes, most[h]);
    for (const float x : lanes) largest[h] = larger(largest[h], x);
  }
}

/// output[h] = sum over the head's rows t, in order, of weights[h][t] * value t; numbers
/// [d, d + 16 * Panels) of each value.
template <class Isa, class Number, int Heads, int Panels>
inline void weighted_values(const query_heads<Heads>& of, const float* weights, std::size_t padded,
                            const row_reader<Number>& values, std::size_t d) {
  typename Isa::vec sums[Heads][Panels];
  for (int h = 0; h < Heads; ++h)
    for (int p = 0; p < Panels; ++p) sums[h][p] = Isa::zero();
  for (std::size_t t = 0; t < of.fewest; ++t) {
    const Number* row = values.at(t) + d;
    if (t + rows_ahead < of.most) fetch_row(values.at(t + rows_ahead) + d, Panels * lane);
    typename Isa::vec value[Panels];
    for (int p = 0; p < Panels; ++p) value[p] = Isa::load_weights(row + p * lane);
    for (int h = 0; h < Heads; ++h) {
      const auto weight = Isa::set1(weights[h * padded + t]);
      for (int p = 0; p < Panels; ++p) sums[h][p] = Isa::fma(weight, value[p], sums[h][p]);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    for (std::size_t t = of.fewest; t < of.n_rows[h]; ++t) {
      const auto weight = Isa::set1(weights[h * padded + t]);
      for (int p = 0; p < Panels; ++p)
        sums[h][p] = Isa::fma(weight, Isa::load_weights(values.at(t) + d + p * lane), sums[h][p]);
    }
    for (int p = 0; p < Panels; ++p) Isa::store(of.output[h] + d + p * lane, sums[h][p]);
  }
}

/// Adds a number of its own to every score; returns the largest sum.
inline __attribute__((always_inline)) float add_bias(const float* bias, std::size_t n_rows,
                                                     float* scores) {
  float largest = -INFINITY;
  for (std::size_t t = 0; t < n_rows; ++t) {
    scores[t] += bias[t];
    largest = larger(largest, scores[t]);
  }
  return largest;
}

/// Scores become weights, e^(score - largest); returns their sum.
inline __attribute__((always_inline)) float exponentials(float* scores, std::size_t n_rows,
                                                         float largest) {
  const std::size_t padded = (n_rows + lane - 1) / lane * lane;
  // Padding positions weigh exactly nothing: their lanes are set to +0 after the exponential.
  for (std::size_t t = n_rows; t < padded; ++t) scores[t] = largest;
  for (std::size_t t = 0; t < padded; ++t) scores[t] = exponential(scores[t] - largest);
  for (std::size_t t = n_rows; t < padded; ++t) scores[t] = 0.0f;
  alignas(64) float lanes[lane] = {};
  for (std::size_t t = 0; t < padded; t += lane)
    for (std::size_t j = 0; j < lane; ++j) lanes[j] += scores[t + j];
  return lane_sum(lanes);
}

template <class Isa>
float softmax_weights(const float* numbers, std::size_t n, float largest, float scale,
                      float* weights) {
  for (std::size_t i = 0; i < n; ++i) {
    const float x = (numbers[i] - largest) * scale;
    const float weight = exponential(x);
    weights[i] = x >= -87.0f ? weight : 0.0f;
  }
  alignas(64) float lanes[lane] = {};
  std::size_t i = 0;
  for (; i + lane <= n; i += lane)
    for (std::size_t j = 0; j < lane; ++j) lanes[j] += weights[i + j];
  for (std::size_t j = 0; i < n; ++i, ++j) lanes[j] += weights[i];
  return lane_sum(lanes);
}

template <class Isa, class Number, int Heads>
inline void attend_heads(const query_heads<Heads>& of, const row_reader<Number>& keys,
                         const row_reader<Number>& values, std::size_t dim, float scale,
                         float* scratch) {
  const std::size_t padded = (of.most + lane - 1) / lane * lane;
  float totals[Heads], largest[Heads];
  attention_scores<Isa, Number, Heads>(of, keys, dim, scale, padded, scratch, largest);
  for (int h = 0; h < Heads; ++h) {
    float* scores = scratch + h * padded;
    if (of.bias[h] != nullptr) largest[h] = add_bias(of.bias[h], of.n_rows[h], scores);
    totals[h] = exponentials(scores, of.n_rows[h], largest[h]);
  }
  std::size_t d = 0;
  constexpr int wide = Isa::template value_panels<Heads>;
  for (; d + wide * lane <= dim; d += wide * lane)
    weighted_values<Isa, Number, Heads, wide>(of, scratch, padded, values, d);
  if constexpr (wide > 2)
    for (; d + 2 * lane <= dim; d += 2 * lane)
      weighted_values<Isa, Number, Heads, 2>(of, scratch, padded, values, d);
  for (; d + lane <= dim; d += lane)
    weighted_values<Isa, Number, Heads, 1>(of, scratch, padded, values, d);
  for (; d < dim; ++d)
    for (int h = 0; h < Heads; ++h) {
      float sum = 0;
      for (std::size_t t = 0; t < of.n_rows[h]; ++t)
        sum = std::fma(scratch[h * padded + t], widen(values.at(t)[d]), sum);
      of.output[h][d] = sum;
    }
  for (int h = 0; h < Heads; ++h)
    for (std::size_t i = 0; i < dim; ++i) of.output[h][i] /= totals[h];
}

/// Those of a key and value head, row by row, as many at once as there are registers for.
template <class Isa, class Number>
void attend_shared(const attention_shape& shape, std::size_t kv_head,
                   std::span<const attention_query> rows, float* scratch) {
  const std::size_t dim = shape.head_dim;
  const std::size_t group = shape.n_heads / shape.n_kv_heads;
  const float scale = shape.scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(dim)) : shape.scale;
  const attention_view& view = rows.front().view;
  const std::size_t stride = view.head_stride == 0 ? dim : view.head_stride;
  const row_reader<Number> keys(view, kv_head * stride);
  const row_reader<Number> values(view, (shape.n_kv_heads + kv_head) * stride);
  const std::size_t n = rows.size() * group;
  for (std::size_t next = 0; next < n;) {
    const auto attend = [&]<int Heads>(std::integral_constant<int, Heads>) {
      query_heads<Heads> of;
      for (int h = 0; h < Heads; ++h, ++next)
        of.set(h, rows[next / group], kv_head * group + next % group, dim);
      attend_heads<Isa, Number, Heads>(of, keys, values, dim, scale, scratch);
    };
    constexpr int most = Isa::most_heads;
    if (n - next >= most)
      attend(std::integral_constant<int, most>{});
    else if (n - next >= 4)
      attend(std::integral_constant<int, 4>{});
    else if (n - next >= 2)
      attend(std::integral_constant<int, 2>{});
    else
      attend(std::integral_constant<int, 1>{});
  }
}

template <class Isa>
void attention(const attention_shape& shape, std::size_t first, std::size_t last,
               std::span<const attention_query> rows, float* scratch) {
  const bool halved = rows.front().view.precision == kv_precision::bf16;
  for (std::size_t h = first; h < last; ++h)
    if (halved)
      attend_shared<Isa, std::uint16_t>(shape, h, rows, scratch);
    else
      attend_shared<Isa, float>(shape, h, rows, scratch);
}

}  // namespace ordermoe::model::bodies
