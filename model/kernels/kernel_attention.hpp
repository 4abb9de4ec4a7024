#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "model/kernels/kernel_attention_tiles.hpp"

/// Which way of attention rows take (kernel_attention_rows.hpp, kernel_attention_tiles.hpp), under the rules of
/// kernel_bodies.hpp.
namespace ordermoe::model::bodies {

/// The heads of some query rows that share a key and value head.
template <class Isa, class Number>
struct shared_heads {
  std::span<const attention_query> rows;
  std::size_t group, dim;
  std::size_t kv_head;
  float scale;
  row_reader<Number> keys, values;

  shared_heads(const attention_shape& shape, std::size_t which,
               std::span<const attention_query> queries)
      : rows(queries),
        group(shape.n_heads / shape.n_kv_heads),
        dim(shape.head_dim),
        kv_head(which),
        scale(shape.scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(dim)) : shape.scale),
        keys(queries.front().view, which * stride_of(shape, queries)),
        values(queries.front().view, (shape.n_kv_heads + which) * stride_of(shape, queries)) {}

  static std::size_t stride_of(const attention_shape& shape,
                               std::span<const attention_query> queries) {
    const std::size_t stride = queries.front().view.head_stride;
    return stride == 0 ? shape.head_dim : stride;
  }
  std::size_t count() const { return rows.size() * group; }
  /// Head number `n` of all these is head n % group of row n / group.
  void set(auto& of, std::size_t at, std::size_t n) const {
    of.set(at, rows[n / group], kv_head * group + n % group, dim);
  }

  /// Heads from number `first` on, as many as there is room for, block by block of keys and values. Returns how many.
  std::size_t attend_more(std::size_t first, float* scratch) const {
    many_heads<Isa> of;
    of.dim = dim;
    of.scale = scale;
    const std::size_t room = attention_block / dim;
    const std::size_t most = room < most_heads_at_once ? room : most_heads_at_once;
    for (; of.count < most && first + of.count < count(); ++of.count)
      set(of, of.count, first + of.count);
    of.most = of.most_rows(0, of.count);
    of.stride = (of.most + lane - 1) / lane * lane + lane;
    of.block = scratch;
    of.sums = of.queries = of.block + attention_block;
    of.scores = of.queries + attention_block;
    attend_many<Isa, Number>(of, keys, values);
    return of.count;
  }

  template <int Heads>
  void attend_few(std::size_t first, float* scratch) const {
    query_heads<Heads> of;
    for (std::size_t h = 0; h < Heads; ++h) set(of, h, first + h);
    attend_heads<Isa, Number, Heads>(of, keys, values, dim, scale, scratch);
  }
};

/// Heads from which on widening keys and values once for all of them pays.
constexpr std::size_t many_heads_from = 20;

template <class Isa, class Number>
void attend_shared(const attention_shape& shape, std::size_t kv_head,
                   std::span<const attention_query> rows, float* scratch) {
  const shared_heads<Isa, Number> of(shape, kv_head, rows);
  std::size_t next = 0;
  if (of.dim % lane == 0 && attention_block / lane >= of.dim)
    while (of.count() - next >= many_heads_from) next += of.attend_more(next, scratch);
  for (constexpr int most = Isa::most_heads; of.count() - next >= most; next += most)
    of.template attend_few<most>(next, scratch);
  for (; of.count() - next >= 4; next += 4) of.template attend_few<4>(next, scratch);
  for (; of.count() - next >= 2; next += 2) of.template attend_few<2>(next, scratch);
  if (next < of.count()) of.template attend_few<1>(next, scratch);
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
