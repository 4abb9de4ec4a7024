#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "model/kernels/kernel_bodies.hpp"

/// Attention of few heads that share keys and values, under the rules of kernel_bodies.hpp: each key and value goes through
/// registers once for all of them.
namespace ordermoe::model::bodies {

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

  inline __attribute__((always_inline)) void set(std::size_t h, const attention_query& row,
                                                 std::size_t head, std::size_t dim) {
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

inline __attribute__((always_inline)) float largest_of(const float* scores, std::size_t n_rows) {
  float lanes[lane];
  for (float& x : lanes) x = -INFINITY;
  std::size_t t = 0;
  for (; t + lane <= n_rows; t += lane)
    for (std::size_t j = 0; j < lane; ++j) lanes[j] = larger(lanes[j], scores[t + j]);
  for (std::size_t j = 0; t < n_rows; ++t, ++j) lanes[j] = larger(lanes[j], scores[t]);
  float largest = -INFINITY;
  for (const float x : lanes) largest = larger(largest, x);
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

}  // namespace ordermoe::model::bodies
