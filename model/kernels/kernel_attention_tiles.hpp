#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "model/kernels/kernel_attention_rows.hpp"

/// Attention of many heads that share keys and values, block by block of these: a block is widened once, and stays in the
/// nearest cache while all heads take it. Every sum is taken in the order in which attend_heads() takes it, so bits are the same:
/// of a score the sums of 16 lanes, which are then added by the tree of lane_sum(), of a value one position after the other.
///
/// `Isa` supplies, beside what kernel_bodies.hpp names, add and transpose, and what fits its registers: tile_heads heads by
/// score_panels times 16 keys, of which lanes_at_once (1 or 2) lanes are summed side by side, and value_heads<Panels> heads by
/// 16 * Panels numbers of a value, Panels being value_panels_at_once or 1. block_keys keys at most are a block.
namespace ordermoe::model::bodies {

/// Heads whose scores are kept at once.
template <class Isa>
struct many_heads {
  const float* query[most_heads_at_once];
  float* output[most_heads_at_once];
  const float* bias[most_heads_at_once];  ///< null: none
  std::size_t n_rows[most_heads_at_once];
  std::size_t count = 0, dim = 0;
  std::size_t most = 0;  ///< Of n_rows.
  float scale = 0;
  float* block = nullptr;    ///< Keys or values as tiles take them, attention_block numbers.
  float* queries = nullptr;  ///< As score_tile() takes them, [count, dim].
  float* sums = nullptr;     ///< Of weighted values, [count, dim], in the room of the queries.
  float* scores = nullptr;   ///< Head h's from scores + h * stride on.
  std::size_t stride = 0;

  void set(std::size_t h, const attention_query& row, std::size_t head, std::size_t size) {
    query[h] = row.query + head * size;
    output[h] = row.output + head * size;
    bias[h] = row.view.bias == nullptr ? nullptr : row.view.bias + head * row.view.bias_size;
    n_rows[h] = row.view.n_rows;
  }
  std::size_t most_rows(std::size_t first, std::size_t last) const {
    std::size_t longest = 0;
    for (std::size_t h = first; h < last; ++h) longest = n_rows[h] > longest ? n_rows[h] : longest;
    return longest;
  }
  std::size_t fewest_rows(std::size_t first, std::size_t last) const {
    std::size_t least = most;
    for (std::size_t h = first; h < last; ++h) least = n_rows[h] < least ? n_rows[h] : least;
    return least;
  }
};

/// In which order lanes of a sum are taken: what is added first in the tree of halves stands together.
constexpr unsigned char lanes_by_tree[lane] = {0, 8, 4, 12, 2, 10, 6, 14,
                                               1, 9, 5, 13, 3, 11, 7, 15};

/// Keys [first, first + n), n at most `width`, by numbers: a vector is a number of 16 keys. Numbers of the same lane of a sum
/// lie one after the other, `width` apart, and lanes as the tree takes them. Keys behind the last one repeat it.
template <class Isa, class Number>
inline void pack_keys(const row_reader<Number>& keys, std::size_t first, std::size_t n,
                      std::size_t dim, std::size_t width, float* packed) {
  const std::size_t steps = dim / lane;
  for (std::size_t t = 0; t < width; t += lane) {
    const Number* rows[lane];
    for (std::size_t r = 0; r < lane; ++r)
      rows[r] = t + r < n ? keys.at(first + t + r) : keys.at(first + n - 1);
    for (std::size_t step = 0; step < steps; ++step) {
      typename Isa::vec square[lane];
      for (std::size_t r = 0; r < lane; ++r) square[r] = Isa::load_weights(rows[r] + step * lane);
      Isa::transpose(square);
      for (std::size_t j = 0; j < lane; ++j)
        Isa::store(packed + (j * steps + step) * width + t, square[lanes_by_tree[j]]);
    }
  }
}

/// Queries of `Heads` heads from number `h` on, number by number in the order of pack_keys().
template <class Isa, int Heads>
inline void pack_queries(const many_heads<Isa>& of, std::size_t h, float* packed) {
  for (const std::size_t j : lanes_by_tree)
    for (std::size_t at = j; at < of.dim; at += lane)
      for (std::size_t i = 0; i < Heads; ++i) *packed++ = of.query[h + i][at];
}

/// Scores of `Heads` heads from number `h` on, for 16 * Panels keys of a block from key `t` of all on. Some lanes of the sums
/// are taken at once.
template <class Isa, int Heads, int Panels>
inline void score_tile(const many_heads<Isa>& of, std::size_t h, const float* packed,
                       std::size_t width, std::size_t t) {
  using vec = typename Isa::vec;
  constexpr unsigned at_once = Isa::lanes_at_once;
  constexpr unsigned levels = std::countr_zero(lane / at_once);
  const std::size_t steps = of.dim / lane;
  const float* query = of.queries + h * of.dim;
  // Sums of so many times 1, 2, 4... lanes that wait for as many others.
  vec pending[levels][Heads][Panels];
  for (unsigned n = 0; n < lane / at_once; ++n) {
    vec sums[at_once][Heads][Panels];
    for (auto& one : sums)
      for (auto& row : one)
        for (auto& sum : row) sum = Isa::zero();
    for (std::size_t step = 0; step < steps; ++step, packed += width, query += Heads)
      for (unsigned j = 0; j < at_once; ++j) {
        vec part[Panels];
        for (int p = 0; p < Panels; ++p) part[p] = Isa::load(packed + j * steps * width + p * lane);
        for (int i = 0; i < Heads; ++i) {
          const auto number = Isa::set1(query[j * steps * Heads + i]);
          for (int p = 0; p < Panels; ++p) sums[j][i][p] = Isa::fma(number, part[p], sums[j][i][p]);
        }
      }
    packed += (at_once - 1) * steps * width;
    query += (at_once - 1) * steps * Heads;
    static_assert(at_once <= 2);
    if constexpr (at_once == 2)
      for (int i = 0; i < Heads; ++i)
        for (int p = 0; p < Panels; ++p) sums[0][i][p] = Isa::add(sums[0][i][p], sums[1][i][p]);
    unsigned level = 0;
    for (; (n >> level & 1) != 0; ++level)
      for (int i = 0; i < Heads; ++i)
        for (int p = 0; p < Panels; ++p)
          sums[0][i][p] = Isa::add(pending[level][i][p], sums[0][i][p]);
    if (level < levels) {
      for (int i = 0; i < Heads; ++i)
        for (int p = 0; p < Panels; ++p) pending[level][i][p] = sums[0][i][p];
      continue;
    }
    const auto scale = Isa::set1(of.scale);
    for (int i = 0; i < Heads; ++i)
      for (int p = 0; p < Panels; ++p)
        Isa::store(of.scores + (h + static_cast<std::size_t>(i)) * of.stride + t + p * lane,
                   Isa::mul(sums[0][i][p], scale));
  }
}

/// Numbers [d, d + 16 * Panels) of the sums of `Heads` heads from number `h` on go on over values [first, last), of which
/// `values` has these numbers.
template <class Isa, int Heads, int Panels>
inline void value_tile(const many_heads<Isa>& of, std::size_t h, const float* values,
                       std::size_t first, std::size_t last, std::size_t d) {
  typename Isa::vec sums[Heads][Panels];
  const float* weights[Heads];
  for (int i = 0; i < Heads; ++i) {
    const std::size_t head = h + static_cast<std::size_t>(i);
    weights[i] = of.scores + head * of.stride;
    for (int p = 0; p < Panels; ++p) sums[i][p] = Isa::load(of.sums + head * of.dim + d + p * lane);
  }
  for (std::size_t t = first; t < last; ++t, values += Panels * lane) {
    typename Isa::vec value[Panels];
    for (int p = 0; p < Panels; ++p) value[p] = Isa::load(values + p * lane);
    for (int i = 0; i < Heads; ++i) {
      const auto weight = Isa::set1(weights[i][t]);
      for (int p = 0; p < Panels; ++p) sums[i][p] = Isa::fma(weight, value[p], sums[i][p]);
    }
  }
  for (int i = 0; i < Heads; ++i)
    for (int p = 0; p < Panels; ++p)
      Isa::store(of.sums + (h + static_cast<std::size_t>(i)) * of.dim + d + p * lane, sums[i][p]);
}

/// body(number of heads, first head) for all of them, as many at once as there are registers for.
template <int Heads, class Body>
inline void each_tile(std::size_t first, std::size_t count, const Body& body) {
  for (; first + Heads <= count; first += Heads) body(std::integral_constant<int, Heads>{}, first);
  if constexpr (Heads > 1)
    if (first < count) each_tile<Heads / 2>(first, count, body);
}

/// Fetches rows, some with each tile that is computed meanwhile: more at once would wait for each other.
template <class Isa, class Number>
class rows_to_come {
 public:
  rows_to_come(const row_reader<Number>& rows, std::size_t first, std::size_t last, std::size_t dim,
               std::size_t n_tiles)
      : rows_(rows),
        next_(first),
        last_(last),
        dim_(dim),
        step_((last - first + n_tiles - 1) / n_tiles) {}

  void fetch() {
    for (std::size_t i = 0; i < step_ && next_ < last_; ++i, ++next_)
      fetch_row(rows_.at(next_), dim_);
  }

 private:
  const row_reader<Number>& rows_;
  std::size_t next_, last_, dim_, step_;
};

template <class Isa, class Number>
inline void score_block(const many_heads<Isa>& of, const row_reader<Number>& keys,
                        std::size_t first, std::size_t n) {
  constexpr int panels = Isa::score_panels;
  const std::size_t width = (n + lane - 1) / lane * lane;
  const std::size_t end = first + 2 * n < of.most ? first + 2 * n : of.most;
  rows_to_come<Isa, Number> ahead(keys, first + n, end, of.dim, of.count / Isa::tile_heads + 1);
  pack_keys<Isa>(keys, first, n, of.dim, width, of.block);
  each_tile<Isa::tile_heads>(
      0, of.count, [&]<int Heads>(std::integral_constant<int, Heads>, std::size_t h) {
        ahead.fetch();
        const std::size_t own_end = of.most_rows(h, h + Heads);
        std::size_t t = 0;
        for (; t + panels * lane <= width && first + t < own_end; t += panels * lane)
          score_tile<Isa, Heads, panels>(of, h, of.block + t, width, first + t);
        if constexpr (panels > 1)
          for (; t < width && first + t < own_end; t += lane)
            score_tile<Isa, Heads, 1>(of, h, of.block + t, width, first + t);
      });
}

/// Numbers [d, d + 16 * Panels) of a block's values, for all heads.
template <class Isa, int Panels, class Number>
inline void value_panels(const many_heads<Isa>& of, const row_reader<Number>& values,
                         std::size_t first, std::size_t n, std::size_t d,
                         rows_to_come<Isa, Number>& ahead) {
  constexpr std::size_t width = Panels * lane;
  for (std::size_t t = 0; t < n; ++t) {
    const Number* row = values.at(first + t) + d;
    for (std::size_t i = 0; i < width; i += lane)
      Isa::store(of.block + t * width + i, Isa::load_weights(row + i));
  }
  each_tile<Isa::template value_heads<Panels>>(
      0, of.count, [&]<int Heads>(std::integral_constant<int, Heads>, std::size_t h) {
        ahead.fetch();
        const std::size_t fewest = of.fewest_rows(h, h + Heads);
        std::size_t end = fewest < first ? first : fewest < first + n ? fewest : first + n;
        value_tile<Isa, Heads, Panels>(of, h, of.block, first, end, d);
        if constexpr (Heads > 1)  // What some of them have alone.
          for (std::size_t i = h; end < first + n && i < h + Heads; ++i) {
            const std::size_t own_end = of.n_rows[i] < first + n ? of.n_rows[i] : first + n;
            if (own_end > end)
              value_tile<Isa, 1, Panels>(of, i, of.block + (end - first) * width, end, own_end, d);
          }
      });
}

template <class Isa, class Number>
inline void value_block(const many_heads<Isa>& of, const row_reader<Number>& values,
                        std::size_t first, std::size_t n) {
  constexpr int wide = Isa::value_panels_at_once;
  const std::size_t end = first + 2 * n < of.most ? first + 2 * n : of.most;
  rows_to_come<Isa, Number> ahead(values, first + n, end, of.dim,
                                  (of.count / Isa::tile_heads + 1) * (of.dim / lane / wide + 1));
  std::size_t d = 0;
  for (; d + wide * lane <= of.dim; d += wide * lane)
    value_panels<Isa, wide>(of, values, first, n, d, ahead);
  if constexpr (wide > 1)
    for (; d < of.dim; d += lane) value_panels<Isa, 1>(of, values, first, n, d, ahead);
}

/// Precondition: `dim` is a multiple of 16, and 16 rows of it have room in a block.
template <class Isa, class Number>
void attend_many(const many_heads<Isa>& of, const row_reader<Number>& keys,
                 const row_reader<Number>& values) {
  const std::size_t room = attention_block / of.dim / lane * lane;
  const std::size_t step = room < Isa::block_keys ? room : Isa::block_keys;
  const auto each_block = [&](const auto& body) {
    for (std::size_t t = 0; t < of.most; t += step)
      body(t, of.most - t < step ? of.most - t : step);
  };
  each_tile<Isa::tile_heads>(0, of.count,
                             [&]<int Heads>(std::integral_constant<int, Heads>, std::size_t h) {
                               pack_queries<Isa, Heads>(of, h, of.queries + h * of.dim);
                             });
  each_block([&](std::size_t first, std::size_t n) { score_block<Isa>(of, keys, first, n); });
  float totals[most_heads_at_once];
  for (std::size_t h = 0; h < of.count; ++h) {
    float* scores = of.scores + h * of.stride;
    const float largest = of.bias[h] != nullptr ? add_bias(of.bias[h], of.n_rows[h], scores)
                                                : largest_of(scores, of.n_rows[h]);
    totals[h] = exponentials(scores, of.n_rows[h], largest);
  }
  for (std::size_t i = 0; i < of.count * of.dim; ++i) of.sums[i] = 0.0f;
  each_block([&](std::size_t first, std::size_t n) { value_block<Isa>(of, values, first, n); });
  for (std::size_t h = 0; h < of.count; ++h)
    for (std::size_t d = 0; d < of.dim; ++d) of.output[h][d] = of.sums[h * of.dim + d] / totals[h];
}

}  // namespace ordermoe::model::bodies
