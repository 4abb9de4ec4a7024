#include "model/blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/error.hpp"
#include "model/kernels/kernels.hpp"
#include "model/kernels/thread_team.hpp"

namespace ordermoe::model {

namespace {

/// Most numbers in a table of angles.
constexpr std::size_t most_angles = std::size_t{1} << 22;

/// output = weights * norm(hidden), in parts that bound the scratch memory.
void project_rows(const model_config& config, std::span<const float> norm,
                  const projection& weights, std::span<const float> hidden, float* output) {
  const std::size_t width = config.hidden_size;
  const std::size_t n = hidden.size() / width;
  thread_local scratch_buffer normed_room;
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    const std::span normed(normed_room.room(count * width), count * width);
    norm_rows(config, norm, hidden.subspan(start * width, count * width), normed);
    weights.apply(normed.data(), output + start * weights.n_out(), count);
  }
}

/// Queries, keys and values of all rows, as far as positions have no say, but for the first `skipped` numbers of the queries:
/// [n, (n_heads + 2 * n_kv_heads) * head_dim - skipped]. What is left of queries then means nothing.
void project_self(const model_config& config, const self_attention& weights,
                  std::span<const float> hidden, float* projected, std::size_t skipped = 0) {
  if (skipped == 0)
    project_rows(config, weights.norm, weights.query_key_value, hidden, projected);
  else
    project_rows(config, weights.norm, *weights.query_key_value.without_first(skipped), hidden,
                 projected);
  const std::size_t n = hidden.size() / config.hidden_size;
  const std::size_t width = config.n_heads * config.head_dim - skipped;
  const std::size_t joint = width + 2 * config.kv_width();
  if (!weights.bias.empty())
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < joint; ++k) projected[i * joint + k] += weights.bias[skipped + k];
  if (weights.query_norm.empty()) return;
  const auto normalise = [&](float* numbers, std::size_t size, std::span<const float> weight) {
    const std::size_t step = config.qk_norm == query_key_norm::per_head ? config.head_dim : size;
    for (std::size_t at = 0; at < size; at += step)
      kernels().rms_norm(numbers + at, weight.data(), static_cast<float>(config.rms_norm_eps),
                         numbers + at, step);
  };
  for (std::size_t i = 0; i < n; ++i) {
    if (skipped == 0) normalise(projected + i * joint, width, weights.query_norm);
    normalise(projected + i * joint + width, config.kv_width(), weights.key_norm);
  }
}

/// Whether the attention kernel may take them together.
bool read_alike(const attention_view& a, const attention_view& b) {
  return a.pages == b.pages && a.first == b.first && a.offset == b.offset &&
         a.row_size == b.row_size && a.head_stride == b.head_stride &&
         a.page_shift == b.page_shift && a.precision == b.precision && a.bias_size == b.bias_size;
}

/// Query rows that are given to the attention kernel in one call, at most.
constexpr std::size_t most_queries = most_heads_at_once;

/// Where runs of rows begin that may be taken together, and where the last one ends.
void find_runs(std::span<const attention_query> rows, std::vector<std::size_t>& starts) {
  starts.assign(1, 0);
  for (std::size_t i = 1; i < rows.size(); ++i)
    if (i - starts.back() == most_queries || !read_alike(rows[i - 1].view, rows[i].view))
      starts.push_back(i);
  starts.push_back(rows.size());
}

/// Heads [first, last) of those that share keys, for rows that may be taken together.
void attend_run(const attention_shape& heads, std::size_t first, std::size_t last,
                std::span<const attention_query> rows) {
  thread_local scratch_buffer score_room;
  std::size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.view.n_rows);
  const std::size_t sharing = rows.size() * (heads.n_heads / heads.n_kv_heads);
  kernels().attention(heads, first, last, rows,
                      score_room.room(attention_scratch(longest, sharing)));
}

/// The attention of all rows, shared out by runs of rows and by heads that share keys. Runs of one head follow one another
/// where they may read the same keys; heads of one row where each row has keys of its own.
void attend_rows(const attention_shape& heads, std::span<const attention_query> rows) {
  thread_local std::vector<std::size_t> start_room;
  find_runs(rows, start_room);
  const std::span<const std::size_t> starts = start_room;
  const std::size_t n_runs = starts.size() - 1;
  const auto run_at = [&](std::size_t run) {
    return rows.subspan(starts[run], starts[run + 1] - starts[run]);
  };
  const std::size_t width = heads.n_heads * heads.head_dim;
  const std::size_t kv_width = 2 * heads.n_kv_heads * heads.head_dim;
  // A core multiplies four times while it reads a byte.
  const double row_work =
      std::max(static_cast<double>(kv_width * sizeof(float)), static_cast<double>(2 * width) / 4);
  double work = 0;
  for (const auto& row : rows) work += row_work * static_cast<double>(row.view.n_rows);
  const auto by_head = [&](std::size_t first, std::size_t last) {
    for (; first < last; ++first) {
      const std::size_t head = first / n_runs;
      attend_run(heads, head, head + 1, run_at(first % n_runs));
    }
  };
  const auto by_row = [&](std::size_t first, std::size_t last) {
    while (first < last) {
      const std::size_t run = first / heads.n_kv_heads;
      const std::size_t begin = run * heads.n_kv_heads;
      const std::size_t end = std::min(last, begin + heads.n_kv_heads);
      attend_run(heads, first - begin, end - begin, run_at(run));
      first = end;
    }
  };
  const std::size_t n_parts = n_runs * heads.n_kv_heads;
  if (n_runs == rows.size())
    share_out(n_parts, work, by_row);
  else
    share_out(n_parts, work, by_head);
}

/// hidden += output(attention of each row): row i's query is at queries + i * stride, what it
/// attends to is view_of(i).
template <class ViewOf>
void add_attention(const model_config& config, const float* queries, std::size_t stride,
                   const projection& output, std::span<float> hidden, const ViewOf& view_of) {
  const std::size_t width = config.n_heads * config.head_dim;
  const std::size_t n = hidden.size() / config.hidden_size;
  thread_local scratch_buffer mixed_room;
  thread_local std::vector<attention_query> rows;
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    float* mixed = mixed_room.room(count * (width + config.hidden_size));
    float* update = mixed + count * width;
    rows.clear();
    for (std::size_t i = 0; i < count; ++i)
      rows.push_back({queries + (start + i) * stride, mixed + i * width, view_of(start + i)});
    attend_rows(attention_heads(config), rows);
    output.apply(mixed, update, count);
    float* target = hidden.data() + start * config.hidden_size;
    for (std::size_t i = 0; i < count * config.hidden_size; ++i) target[i] += update[i];
  }
}

/// Where a distance's number lies in the table.
std::size_t bucket_of(std::size_t distance, std::size_t n_buckets, std::size_t most_distance) {
  const std::size_t half = n_buckets / 2;
  if (distance < half) return distance;
  const double share = std::log(static_cast<double>(distance) / static_cast<double>(half)) /
                       std::log(static_cast<double>(most_distance) / static_cast<double>(half));
  const auto further = static_cast<std::size_t>(share * static_cast<double>(n_buckets - half));
  return std::min(half + further, n_buckets - 1);
}

}  // namespace

rotary_angles::rotary_angles(const model_config& config)
    : head_dim_(config.head_dim), theta_(config.rope_theta) {
  const std::size_t n = std::min(config.max_context, most_angles / head_dim_);
  tabulated_.resize(n * head_dim_);
  for (std::size_t p = 0; p < n; ++p) compute(p, tabulated_.data() + p * head_dim_);
}

const float* rotary_angles::at(std::size_t position, float* spare) const {
  if ((position + 1) * head_dim_ <= tabulated_.size())
    return tabulated_.data() + position * head_dim_;
  compute(position, spare);
  return spare;
}

void rotary_angles::compute(std::size_t position, float* numbers) const {
  const std::size_t half = head_dim_ / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_dim_);
    const double angle = static_cast<double>(position) * std::pow(theta_, exponent);
    numbers[i] = static_cast<float>(std::cos(angle));
    numbers[half + i] = static_cast<float>(std::sin(angle));
  }
}

relative_bias::relative_bias(std::span<const float> table, const model_config& config,
                             direction reach) {
  const encoder_decoder_shape& shape = *config.encoder_decoder;
  const bool both = reach == direction::both;
  const std::size_t n_buckets = both ? shape.relative_buckets / 2 : shape.relative_buckets;
  most_ = config.max_context - 1;
  size_ = both ? 2 * most_ + 1 : most_ + 1;
  numbers_.resize(config.n_heads * size_);
  for (std::size_t i = 0; i < size_; ++i) {
    const bool behind = i > most_;  // The key comes after the query.
    const std::size_t bucket =
        bucket_of(behind ? i - most_ : most_ - i, n_buckets, shape.relative_max_distance) +
        (behind ? n_buckets : 0);
    for (std::size_t h = 0; h < config.n_heads; ++h)
      numbers_[h * size_ + i] = table[bucket * config.n_heads + h];
  }
}

std::size_t block::bytes() const {
  std::size_t numbers = attention.norm.size() + attention.bias.size() +
                        attention.query_norm.size() + attention.key_norm.size() +
                        feed_forward_norm.size();
  std::size_t bytes = attention.query_key_value.bytes() + attention.output.bytes() + dense.bytes();
  if (to_prompt) {
    numbers += to_prompt->norm.size();
    bytes += to_prompt->query.bytes() + to_prompt->key_value.bytes() + to_prompt->output.bytes();
  }
  return bytes + numbers * sizeof(float);
}

attention_shape attention_heads(const model_config& config) {
  // T5 takes the division by sqrt(head_dim) into its weights.
  return {config.n_heads, config.n_kv_heads, config.head_dim, config.encoder_decoder ? 1.0f : 0.0f};
}

void attend_on_device(const model_config& config, const compute_place& place,
                      self_attention& weights) {
  if (place.device == nullptr || config.encoder_decoder) return;
  auto made = place.device->attention({.n_heads = config.n_heads,
                                       .n_kv_heads = config.n_kv_heads,
                                       .head_dim = config.head_dim,
                                       .norm_per_head = config.qk_norm == query_key_norm::per_head,
                                       .norm_epsilon = static_cast<float>(config.rms_norm_eps),
                                       .query_key_value = weights.query_key_value.on_device(),
                                       .output = weights.output.on_device(),
                                       .bias = weights.bias,
                                       .query_norm = weights.query_norm,
                                       .key_norm = weights.key_norm});
  if (!made) throw device_failure(made.error().message);
  weights.on_device = std::move(*made);
}

namespace {

/// What a device needs of rows: them behind their norm, and the angles of their positions.
struct rows_for_device {
  std::vector<float> normed, angles;
};

rows_for_device for_device(const model_config& config, const self_attention& weights,
                           const position_rule& positions, std::span<const attention_row> rows,
                           std::span<const float> hidden) {
  rows_for_device made;
  made.normed.resize(hidden.size());
  norm_rows(config, weights.norm, hidden, made.normed);
  made.angles.resize(rows.size() * config.head_dim);
  std::vector<float> spare(config.head_dim);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy_n(positions.rotary.at(rows[i].position, spare.data()), config.head_dim,
                made.angles.data() + i * config.head_dim);
  return made;
}

void attend_there(const model_config& config, const self_attention& weights,
                  const position_rule& positions, std::span<const attention_row> rows,
                  std::size_t offset, std::span<float> hidden) {
  const auto given = for_device(config, weights, positions, rows, hidden);
  thread_local scratch_buffer room;
  float* update = room.room(hidden.size());
  const auto done =
      weights.on_device->attend(rows, offset, given.angles.data(), given.normed.data(), update);
  if (!done) throw device_failure("attention on " + done.error().message);
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] += update[i];
}

}  // namespace

void attend_backwards(const model_config& config, const self_attention& weights,
                      const position_rule& positions, std::span<const attention_row> rows,
                      std::size_t offset, std::span<float> hidden) {
  if (weights.on_device != nullptr)
    return attend_there(config, weights, positions, rows, offset, hidden);
  const std::size_t n = rows.size();
  const std::size_t width = config.n_heads * config.head_dim;
  const std::size_t joint = width + 2 * config.kv_width();
  const std::size_t half = config.head_dim / 2;
  const bool rotary = !config.encoder_decoder;
  thread_local scratch_buffer joint_room, angle_room;
  float* projected = joint_room.room(n * joint);
  float* spare_angles = angle_room.room(config.head_dim);
  project_self(config, weights, hidden, projected);
  for (std::size_t i = 0; i < n; ++i) {
    float* query = projected + i * joint;
    if (rotary) {
      const float* angles = positions.rotary.at(rows[i].position, spare_angles);
      // Keys lie behind the queries, so both are rotated as one run of heads.
      kernels().rotate(angles, angles + half, query, config.n_heads + config.n_kv_heads,
                       config.head_dim);
    }
    rows[i].cache->put(rows[i].position, offset, {query + width, 2 * config.kv_width()});
  }
  add_attention(config, projected, joint, weights.output, hidden, [&](std::size_t i) {
    const attention_row& row = rows[i];
    ORDERMOE_CHECK(row.cache->contiguous() > row.position,
                   fmt::format("attention at position {} with only the first {} rows there",
                               row.position, row.cache->contiguous()));
    const std::size_t first = rotary ? 0 : row.prompt;
    auto view = row.cache->rows(first, row.position + 1 - first, offset);
    if (!rotary) {
      view.bias = positions.relative.line(row.position - first);
      view.bias_size = positions.relative.size();
    }
    return view;
  });
}

void keep_for_later(const model_config& config, const self_attention& weights,
                    const position_rule& positions, std::span<const attention_row> rows,
                    std::size_t offset, std::span<const float> hidden) {
  if (weights.on_device != nullptr) {
    const auto given = for_device(config, weights, positions, rows, hidden);
    const auto done =
        weights.on_device->keep(rows, offset, given.angles.data(), given.normed.data());
    if (!done) throw device_failure("attention on " + done.error().message);
    return;
  }
  const std::size_t queries = config.n_heads * config.head_dim;
  const std::size_t whole_blocks = queries / packed_layout::block * packed_layout::block;
  const bool on_host = weights.query_key_value.without_first(0).has_value();
  const std::size_t skipped = on_host ? whole_blocks : 0;
  const std::size_t joint = queries - skipped + 2 * config.kv_width();
  const std::size_t half = config.head_dim / 2;
  thread_local scratch_buffer joint_room, angle_room;
  float* projected = joint_room.room(rows.size() * joint);
  float* spare_angles = angle_room.room(config.head_dim);
  project_self(config, weights, hidden, projected, skipped);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    float* key = projected + i * joint + queries - skipped;
    const float* angles = positions.rotary.at(rows[i].position, spare_angles);
    kernels().rotate(angles, angles + half, key, config.n_kv_heads, config.head_dim);
    rows[i].cache->put(rows[i].position, offset, {key, 2 * config.kv_width()});
  }
}

void attend_within_prompts(const model_config& config, const self_attention& weights,
                           const relative_bias& positions, std::span<const attention_row> rows,
                           std::span<float> hidden) {
  const std::size_t n = rows.size();
  const std::size_t width = config.n_heads * config.head_dim;
  const std::size_t joint = width + 2 * config.kv_width();
  thread_local scratch_buffer joint_room;
  float* projected = joint_room.room(n * joint);
  project_self(config, weights, hidden, projected);
  const void* page = projected;
  add_attention(config, projected, joint, weights.output, hidden, [&](std::size_t i) {
    const attention_row& row = rows[i];
    attention_view view;
    view.pages = &page;
    view.first = i - row.position;
    view.n_rows = row.prompt;
    view.row_size = joint;
    view.offset = width;
    view.bias = positions.line(row.position);
    view.bias_size = positions.size();
    return view;
  });
}

void keep_for_decoder(const model_config& config, const prompt_attention& weights,
                      std::span<const attention_row> rows, std::size_t offset,
                      std::span<const float> hidden) {
  const std::size_t size = 2 * config.kv_width();
  thread_local scratch_buffer room;
  for (std::size_t start = 0; start < rows.size(); start += most_rows) {
    const std::size_t count = std::min(most_rows, rows.size() - start);
    float* made = room.room(count * size);
    weights.key_value.apply(hidden.data() + start * config.hidden_size, made, count);
    for (std::size_t i = 0; i < count; ++i)
      rows[start + i].cache->put(rows[start + i].position, offset, {made + i * size, size});
  }
}

void attend_to_prompt(const model_config& config, const prompt_attention& weights,
                      std::span<const attention_row> rows, std::size_t offset,
                      std::span<float> hidden) {
  const std::size_t width = config.n_heads * config.head_dim;
  thread_local scratch_buffer query_room;
  float* queries = query_room.room(rows.size() * width);
  project_rows(config, weights.norm, weights.query, hidden, queries);
  add_attention(config, queries, width, weights.output, hidden,
                [&](std::size_t i) { return rows[i].cache->rows(0, rows[i].prompt, offset); });
}

void feed_forward(const model_config& config, const block& weights, std::span<float> hidden) {
  const std::size_t width = config.hidden_size;
  const std::size_t n = hidden.size() / width;
  thread_local scratch_buffer room;
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    const std::span normed(room.room(2 * count * width), count * width);
    float* output = normed.data() + count * width;
    float* target = hidden.data() + start * width;
    norm_rows(config, weights.feed_forward_norm, {target, count * width}, normed);
    weights.dense.apply(normed.data(), output, count);
    for (std::size_t i = 0; i < count * width; ++i) target[i] += output[i];
  }
}

void norm_rows(const model_config& config, std::span<const float> weight,
               std::span<const float> source, std::span<float> target) {
  const std::size_t width = config.hidden_size;
  for (std::size_t at = 0; at < source.size(); at += width)
    kernels().rms_norm(source.data() + at, weight.data(), static_cast<float>(config.rms_norm_eps),
                       target.data() + at, width);
}

}  // namespace ordermoe::model
