#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "model/kv_cache.hpp"
#include "model/torch/matrix_torch.hpp"
#include "model/torch/transfers_torch.hpp"

namespace ordermoe::model {

namespace {

/// Rows of a cache go into attention so many at a time: what lies behind a row's own position counts nothing, so that a row's
/// bits depend on its position alone.
constexpr std::int64_t step_rows = 64;

std::int64_t whole_steps(std::int64_t n) {
  return (n + step_rows - 1) / step_rows * step_rows;
}

/// What kv_mirror::content holds: keys, then values, [2, n_kv_heads, capacity, head_dim], in the cache's precision. Zeros
/// where no row is yet.
struct mirrored_rows {
  at::Tensor numbers;
};

/// Rows of one batch that lie side by side in it and in their cache.
struct run_of_rows {
  kv_cache* cache;
  std::size_t place, n;  ///< In the batch.
  std::size_t first;     ///< Position of the first.
};

std::vector<run_of_rows> runs_of(std::span<const attention_row> rows) {
  std::vector<run_of_rows> runs;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool goes_on = !runs.empty() && runs.back().cache == rows[i].cache &&
                         runs.back().first + runs.back().n == rows[i].position;
    if (goes_on)
      ++runs.back().n;
    else
      runs.push_back({rows[i].cache, i, 1, rows[i].position});
  }
  return runs;
}

class torch_attention final : public device_attention {
 public:
  torch_attention(at::Device device, device_attention_parts parts)
      : device_(device),
        parts_(std::move(parts)),
        heads_(side(parts_.n_heads)),
        kv_heads_(side(parts_.n_kv_heads)),
        head_dim_(side(parts_.head_dim)) {
    const auto row = [&](const std::vector<float>& numbers) {
      return numbers.empty() ? at::Tensor()
                             : at::tensor(at::ArrayRef<float>(numbers), at::kFloat).to(device_);
    };
    bias_ = row(parts_.bias);
    query_norm_ = row(parts_.query_norm);
    key_norm_ = row(parts_.key_norm);
    choose_tile();
  }

  result<void> attend(std::span<const attention_row> rows, std::size_t offset, const float* angles,
                      const float* normed, float* update) const override {
    if (rows.empty()) return {};
    return guarded_by_torch(device_, [&] {
      const c10::InferenceMode guard;
      transfers crossing(device_);
      std::vector<float> kept(rows.size() * kv_numbers());
      const auto places = positions_of(rows);
      const auto at = crossing.up(places.data(), rows.size(), rows.size(), 1);
      const auto [query, keys_values] = project(crossing, rows.size(), angles, normed);
      crossing.down(keys_values, kept.data(), rows.size());
      const auto ends = mirror(rows, offset, keys_values);
      const auto mixed = attend_all(rows, offset, query, at);
      crossing.down(output().of_rows(mixed).contiguous(), update, rows.size());
      crossing.finish();
      store(rows, offset, kept, ends);
    });
  }

  result<void> keep(std::span<const attention_row> rows, std::size_t offset, const float* angles,
                    const float* normed) const override {
    if (rows.empty()) return {};
    return guarded_by_torch(device_, [&] {
      const c10::InferenceMode guard;
      transfers crossing(device_);
      std::vector<float> kept(rows.size() * kv_numbers());
      const auto keys_values = project(crossing, rows.size(), angles, normed).second;
      crossing.down(keys_values, kept.data(), rows.size());
      const auto ends = mirror(rows, offset, keys_values);
      crossing.finish();
      store(rows, offset, kept, ends);
    });
  }

 private:
  using cache_ends = std::map<kv_cache*, std::size_t>;

  const torch_matrix& query_key_value() const {
    return static_cast<const torch_matrix&>(*parts_.query_key_value);
  }
  const torch_matrix& output() const { return static_cast<const torch_matrix&>(*parts_.output); }
  std::size_t kv_numbers() const { return 2 * parts_.n_kv_heads * parts_.head_dim; }

  static std::vector<float> positions_of(std::span<const attention_row> rows) {
    std::vector<float> positions;
    for (const auto& row : rows) positions.push_back(static_cast<float>(row.position));
    return positions;
  }

  /// Of heads [n, *, head_dim], or of all numbers of a row.
  at::Tensor normalise(const at::Tensor& heads, const at::Tensor& weight) const {
    return each_row(heads, [&](const at::Tensor& each) {
      const auto numbers = parts_.norm_per_head ? each : each.reshape({each.size(0), 1, -1});
      const auto mean = at::mean(at::mul(numbers, numbers), {-1}, true);
      const auto scale = at::reciprocal(at::sqrt(at::add(mean, parts_.norm_epsilon)));
      return at::mul(at::mul(numbers, scale), weight).reshape(each.sizes());
    });
  }

  static at::Tensor rotate(const at::Tensor& heads, const at::Tensor& cosines,
                           const at::Tensor& sines) {
    const auto half = heads.size(2) / 2;
    const auto low = heads.narrow(2, 0, half), high = heads.narrow(2, half, half);
    return at::cat({at::sub(at::mul(low, cosines), at::mul(high, sines)),
                    at::add(at::mul(high, cosines), at::mul(low, sines))},
                   2);
  }

  /// Queries [n, n_heads, head_dim], and keys and values [n, 2 * n_kv_heads * head_dim].
  std::pair<at::Tensor, at::Tensor> project(transfers& crossing, std::size_t n, const float* angles,
                                            const float* normed) const {
    const auto width = static_cast<std::size_t>(query_key_value().content().size(1));
    const auto turns = crossing.up(angles, n, n, parts_.head_dim).unsqueeze(1);
    auto all = query_key_value().of_rows(crossing.up(normed, n, n, width));
    if (bias_.defined()) all = at::add(all, bias_);
    all = all.reshape({side(n), heads_ + 2 * kv_heads_, head_dim_});
    auto query = all.narrow(1, 0, heads_), key = all.narrow(1, heads_, kv_heads_);
    const auto value = all.narrow(1, heads_ + kv_heads_, kv_heads_);
    if (query_norm_.defined()) query = normalise(query, query_norm_);
    if (key_norm_.defined()) key = normalise(key, key_norm_);
    const auto half = head_dim_ / 2;
    const auto cosines = turns.narrow(2, 0, half), sines = turns.narrow(2, half, half);
    key = rotate(key, cosines, sines);
    return {rotate(query, cosines, sines),
            at::cat({key, value}, 1).reshape({side(n), 2 * kv_heads_ * head_dim_})};
  }

  // ------------------------------------------------------------------------------------- keys and values

  static at::ScalarType kept_as(const kv_cache& cache) {
    return cache.precision() == kv_precision::fp32 ? at::kFloat : at::kBFloat16;
  }

  /// With room for so many rows.
  at::Tensor& numbers_of(kv_mirror& mirror, const kv_cache& cache, std::size_t n_rows) const {
    if (!mirror.content) mirror.content = std::make_shared<mirrored_rows>();
    auto& numbers = static_cast<mirrored_rows*>(mirror.content.get())->numbers;
    const auto room = numbers.defined() ? numbers.size(2) : 0;
    const auto needed = whole_steps(side(n_rows));
    if (room >= needed) return numbers;
    const auto wanted = std::max(needed, std::min(2 * room, whole_steps(side(cache.capacity()))));
    auto larger = at::zeros({2, kv_heads_, wanted, head_dim_},
                            at::TensorOptions(kept_as(cache)).device(device_));
    if (room > 0) larger.narrow(2, 0, room).copy_(numbers);
    numbers = std::move(larger);
    return numbers;
  }

  /// Rows [n, 2 * n_kv_heads * head_dim] to positions from `first` on.
  void write(at::Tensor& numbers, std::size_t first, const at::Tensor& rows) const {
    numbers.narrow(2, side(first), rows.size(0))
        .copy_(rows.reshape({rows.size(0), 2, kv_heads_, head_dim_}).permute({1, 2, 0, 3}));
  }

  /// Rows that came from elsewhere since this was last here.
  void fetch(kv_cache& cache, at::Tensor& numbers, std::size_t offset, std::size_t first,
             std::size_t end) const {
    std::vector<float> rows((end - first) * kv_numbers());
    for (std::size_t row = first; row < end; ++row) {
      ORDERMOE_CHECK(cache.has(row),
                     fmt::format("attention behind row {}, which is not there", row));
      cache.read_part(row, offset,
                      std::span(rows).subspan((row - first) * kv_numbers(), kv_numbers()));
    }
    write(numbers, first,
          at::from_blob(rows.data(), {side(end - first), side(kv_numbers())}, at::kFloat)
              .to(device_));
  }

  /// Writes the batch's rows to the mirrors of their caches; returns how many rows each has then.
  cache_ends mirror(std::span<const attention_row> rows, std::size_t offset,
                    const at::Tensor& keys_values) const {
    cache_ends ends;
    for (const auto& run : runs_of(rows)) {
      auto& mirror = run.cache->mirror(offset, kv_numbers());
      auto& numbers = numbers_of(mirror, *run.cache, run.first + run.n);
      auto& end = ends.try_emplace(run.cache, mirror.n_rows).first->second;
      if (end < run.first) fetch(*run.cache, numbers, offset, end, run.first);
      write(numbers, run.first, keys_values.narrow(0, side(run.place), side(run.n)));
      end = std::max(end, run.first + run.n);
    }
    return ends;
  }

  /// Into the caches, which then have what their mirrors have.
  void store(std::span<const attention_row> rows, std::size_t offset,
             const std::vector<float>& kept, const cache_ends& ends) const {
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i].cache->put(rows[i].position, offset,
                         std::span(kept).subspan(i * kv_numbers(), kv_numbers()));
    for (const auto& [cache, end] : ends) cache->mirror(offset, kv_numbers()).n_rows = end;
  }

  // ----------------------------------------------------------------------------------------- attention

  /// Query rows [tile, n_heads, head_dim] at their positions [tile, 1] over rows 0 to n of one cache: [tile, n_heads *
  /// head_dim].
  at::Tensor attend_tile(const at::Tensor& query, const at::Tensor& positions,
                         const at::Tensor& keys, const at::Tensor& values) const {
    const auto n = keys.size(1), tile = query.size(0);
    const auto group = heads_ / kv_heads_;
    const auto alike = [&](const at::Tensor& rows) {
      return rows.unsqueeze(1)
          .expand({kv_heads_, group, n, head_dim_})
          .reshape({heads_, n, head_dim_});
    };
    const auto scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
    auto scores =
        at::mul(at::bmm(query.transpose(0, 1).contiguous(), alike(keys).transpose(1, 2)), scale);
    const auto later = at::arange(n, positions.options()).unsqueeze(0).gt(positions);
    scores = scores.masked_fill(later, -std::numeric_limits<float>::infinity());
    return at::bmm(at::softmax(scores, -1), alike(values))
        .transpose(0, 1)
        .reshape({tile, heads_ * head_dim_});
  }

  /// Query rows of one cache that see the same number of whole steps.
  void attend_part(const at::Tensor& query, const at::Tensor& positions, const at::Tensor& numbers,
                   std::vector<at::Tensor>& made) const {
    const auto keys = numbers.select(0, 0).to(at::kFloat),
               values = numbers.select(0, 1).to(at::kFloat);
    for (std::int64_t first = 0; first < query.size(0); first += tile_) {
      const auto n = std::min(tile_, query.size(0) - first);
      const auto padded = [&](const at::Tensor& rows) {
        const auto part = rows.narrow(0, first, n).reshape({n, -1});
        return n == tile_ ? part : at::constant_pad_nd(part, {0, 0, 0, tile_ - n});
      };
      const auto of_tile = attend_tile(padded(query).reshape({tile_, heads_, head_dim_}),
                                       padded(positions), keys, values);
      made.push_back(of_tile.narrow(0, 0, n));
    }
  }

  at::Tensor attend_all(std::span<const attention_row> rows, std::size_t offset,
                        const at::Tensor& query, const at::Tensor& positions) const {
    std::vector<at::Tensor> made;
    const auto seen = [&](std::size_t i) { return whole_steps(side(rows[i].position) + 1); };
    for (std::size_t i = 0; i < rows.size();) {
      std::size_t end = i + 1;
      while (end < rows.size() && rows[end].cache == rows[i].cache && seen(end) == seen(i)) ++end;
      const auto& mirror = rows[i].cache->mirror(offset, kv_numbers());
      const auto& numbers = static_cast<mirrored_rows*>(mirror.content.get())->numbers;
      attend_part(query.narrow(0, side(i), side(end - i)),
                  positions.narrow(0, side(i), side(end - i)), numbers.narrow(2, 0, seen(i)), made);
      i = end;
    }
    return at::cat(made);
  }

  /// Query rows that were seen to keep their bits beside each other.
  void choose_tile() {
    const auto width = heads_ * head_dim_;
    const auto run = [&](std::int64_t n) {
      return [this, n](const at::Tensor& rows) {
        const auto some = at::linspace(-1, 1, kv_heads_ * n * head_dim_, at::kFloat)
                              .reshape({kv_heads_, n, head_dim_})
                              .to(device_);
        const auto at_end = at::full({rows.size(0), 1}, static_cast<float>(n - 1),
                                     at::TensorOptions(at::kFloat).device(device_));
        return attend_tile(rows.reshape({rows.size(0), heads_, head_dim_}), at_end, some, some);
      };
    };
    tile_ = std::min(rows_of_tile(run(step_rows), width, device_),
                     rows_of_tile(run(5 * step_rows), width, device_));
  }

  at::Device device_;
  device_attention_parts parts_;
  std::int64_t heads_, kv_heads_, head_dim_, tile_ = 1;
  at::Tensor bias_, query_norm_, key_norm_;
};

}  // namespace

std::shared_ptr<const device_attention> make_attention(at::Device device,
                                                       device_attention_parts parts) {
  return std::make_shared<torch_attention>(device, std::move(parts));
}

}  // namespace ordermoe::model
