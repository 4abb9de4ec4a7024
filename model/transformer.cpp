#include "model/transformer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "config/exact_exp.hpp"
#include "model/architecture/routing.hpp"
#include "model/transformer_weights.hpp"

namespace ordermoe::model {

transformer::transformer(std::unique_ptr<weights> content) : weights_(std::move(content)) {}
transformer::~transformer() = default;

const model_config& transformer::config() const {
  return weights_->config;
}

kv_precision transformer::kv() const {
  return weights_->kv;
}

std::size_t expert_bytes(const model_config& config, precision kept) {
  return expert_bytes(config.hidden_size, config.intermediate_size, kept,
                      !config.encoder_decoder.has_value());
}

bool transformer::hosts(layer_id layer, expert_id expert) const {
  ORDERMOE_CHECK(layer.index() < config().n_layers && expert.index() < config().n_experts,
                 fmt::format("expert {} of layer {}", expert.index(), layer.index()));
  return weights_->layers[layer.index()].experts[expert.index()].there();
}

std::size_t transformer::resident_bytes() const {
  const weights& all = *weights_;
  const auto of = [](std::span<const float> numbers) { return numbers.size_bytes(); };
  const auto of_blocks = [&](std::span<const block> blocks) {
    std::size_t bytes = 0;
    for (const auto& each : blocks) bytes += each.bytes();
    return bytes;
  };
  std::size_t bytes = all.embedding.bytes() + all.head.bytes() + of(all.final_norm) +
                      of(all.encoder_norm) + all.positions.rotary.bytes() +
                      all.positions.relative.bytes() + all.encoder_positions.bytes() +
                      of_blocks(all.encoder_end);
  for (const auto& layer : all.layers) {
    bytes += of_blocks(layer.blocks) + layer.router.bytes() + layer.shared.bytes() +
             layer.shared_gate.bytes();
    for (const auto& expert : layer.experts) bytes += expert.bytes();
  }
  return bytes;
}

void transformer::embed(std::span<const std::int32_t> ids, std::span<float> hidden) const {
  const std::size_t width = config().hidden_size;
  ORDERMOE_CHECK(hidden.size() == ids.size() * width, "hidden is not [n_ids, hidden_size]");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ORDERMOE_CHECK(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < config().vocab_size,
                   fmt::format("token {} of {}", ids[i], config().vocab_size));
    weights_->embedding.copy_row(static_cast<std::size_t>(ids[i]), hidden.data() + i * width);
  }
}

namespace {

/// Whether the rows are whole prompts, each prompt's rows one after the other from position 0.
bool are_whole_prompts(std::span<const attention_row> rows) {
  for (std::size_t i = 0; i < rows.size();) {
    if (rows.size() - i < rows[i].prompt || rows[i].prompt == 0) return false;
    for (std::size_t p = 0; p < rows[i].prompt; ++p) {
      const attention_row& row = rows[i + p];
      if (row.cache != rows[i].cache || row.position != p || row.prompt != rows[i].prompt)
        return false;
    }
    i += rows[i].prompt;
  }
  return true;
}

row_kind kind_of(const attention_row& row) {
  return row.position < row.prompt ? row_kind::prompt : row_kind::decoded;
}

bool is_unread(const attention_row& row) {
  return row.unread;
}
bool is_read(const attention_row& row) {
  return !row.unread;
}

/// run(rows, hidden) with those that belong, side by side; what it makes of their hidden states, [n, width], goes back to where
/// they were.
template <class Belongs, class Run>
void with_those(std::span<const attention_row> rows, std::span<float> hidden, std::size_t width,
                const Belongs& belongs, const Run& run) {
  const auto n = static_cast<std::size_t>(std::ranges::count_if(rows, belongs));
  if (n == rows.size()) return run(rows, hidden);
  if (n == 0) return;
  std::vector<attention_row> part;
  std::vector<float> numbers;
  part.reserve(n);
  numbers.reserve(n * width);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!belongs(rows[i])) continue;
    part.push_back(rows[i]);
    const auto state = hidden.subspan(i * width, width);
    numbers.insert(numbers.end(), state.begin(), state.end());
  }
  run(std::span<const attention_row>(part), std::span<float>(numbers));
  const float* from = numbers.data();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!belongs(rows[i])) continue;
    std::copy_n(from, width, hidden.data() + i * width);
    from += width;
  }
}

std::size_t likeliest(std::span<const float> logits) {
  return static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
}

/// Leaves those rows of an encoder's layer without slots that find their expert full.
void drop_overflow(std::size_t capacity, std::span<const attention_row> rows,
                   std::span<float> logits) {
  const std::size_t n_experts = logits.size() / rows.size();
  std::vector<std::size_t> taken(n_experts);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].position == 0) std::ranges::fill(taken, 0);
    const auto row = logits.subspan(i * n_experts, n_experts);
    if (taken[likeliest(row)]++ >= capacity) leave_without_slots(row);
  }
}

/// Which expert a row of a decoder's layer chose, as two numbers of its row in the cache: both are
/// whole and small enough for bf16.
struct kept_choice {
  static constexpr std::size_t base = 256;
  float low = 0, high = 0;

  static kept_choice of(std::size_t expert) {
    return {static_cast<float>(expert % base), static_cast<float>(expert / base)};
  }
  static kept_choice read(const kv_cache& cache, std::size_t position, std::size_t place) {
    return {cache.number(position, place), cache.number(position, place + 1)};
  }
  friend bool operator==(const kept_choice&, const kept_choice&) = default;
};

/// The same in a decoder's layer, by the choices of earlier rows, which their rows in the caches
/// have from number `place` on; the rows' own are written there first.
void drop_decoded_overflow(std::size_t capacity, std::size_t place,
                           std::span<const attention_row> rows, std::span<float> logits) {
  const std::size_t n_experts = logits.size() / rows.size();
  std::vector<kept_choice> choices(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (kind_of(rows[i]) != row_kind::decoded) continue;
    choices[i] = kept_choice::of(likeliest(logits.subspan(i * n_experts, n_experts)));
    const float numbers[] = {choices[i].low, choices[i].high};
    rows[i].cache->put(rows[i].position, place, numbers);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const attention_row& row = rows[i];
    const bool decoded = kind_of(row) == row_kind::decoded;
    std::size_t taken = 0;
    for (std::size_t p = row.prompt; decoded && p < row.position && taken < capacity; ++p)
      if (kept_choice::read(*row.cache, p, place) == choices[i]) ++taken;
    if (!decoded || taken >= capacity)
      leave_without_slots(logits.subspan(i * n_experts, n_experts));
  }
}

}  // namespace

void transformer::weights::attend_whole_prompts(std::span<const block> blocks,
                                                std::span<const attention_row> rows,
                                                std::span<float> hidden) const {
  for (const block& each : blocks) {
    attend_within_prompts(config, each.attention, encoder_positions, rows, hidden);
    if (each.dense.there()) feed_forward(config, each, hidden);
  }
}

void transformer::weights::attend_unread(const block& last, std::size_t offset,
                                         std::span<const attention_row> rows,
                                         std::span<float> hidden) const {
  with_those(rows, hidden, config.hidden_size, is_unread,
             [&](std::span<const attention_row> these, std::span<float> states) {
               keep_for_later(config, last.attention, positions, these, offset, states);
             });
  with_those(rows, hidden, config.hidden_size, is_read,
             [&](std::span<const attention_row> these, std::span<float> states) {
               attend_backwards(config, last.attention, positions, these, offset, states);
             });
}

void transformer::weights::attend_decoder(layer_id layer, std::span<const attention_row> rows,
                                          std::span<float> hidden) const {
  std::size_t offset = 0;
  const auto& blocks = layers[layer.index()].blocks;
  const bool has_unread = !config.encoder_decoder && std::ranges::any_of(rows, is_unread);
  for (const block& each : blocks) {
    if (has_unread && &each == &blocks.back())
      attend_unread(each, offset, rows, hidden);
    else
      attend_backwards(config, each.attention, positions, rows, offset, hidden);
    if (each.to_prompt) attend_to_prompt(config, *each.to_prompt, rows, offset, hidden);
    if (each.dense.there()) feed_forward(config, each, hidden);
    offset += 2 * config.kv_width();
  }
}

void transformer::weights::leave_for_decoder(layer_id layer, std::span<const attention_row> rows,
                                             std::span<float> hidden) const {
  if (layer.index() == config.encoder_decoder->encoder_layers) {
    ORDERMOE_CHECK(are_whole_prompts(rows), "rows of a part of a prompt behind the encoder");
    attend_whole_prompts(encoder_end, rows, hidden);
    norm_rows(config, encoder_norm, hidden, hidden);
  }
  std::size_t offset = 0;
  for (const block& each : layers[layer.index()].blocks) {
    keep_for_decoder(config, *each.to_prompt, rows, offset, hidden);
    offset += 2 * config.kv_width();
  }
}

void transformer::weights::route_read(const layer_weights& content, std::span<float> hidden,
                                      std::span<float> normed, std::span<float> logits) const {
  norm_rows(config, content.blocks.back().feed_forward_norm, hidden, normed);
  content.router.apply(normed.data(), logits.data(), hidden.size() / config.hidden_size);
}

void transformer::weights::run_shared(const layer_weights& content, std::span<const float> normed,
                                      std::span<float> hidden) const {
  if (config.shared_intermediate_size == 0) return;
  const std::size_t width = config.hidden_size;
  const std::size_t n = hidden.size() / width;
  thread_local scratch_buffer output_room, weight_room;
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    float* output = output_room.room(count * width);
    float* weight = weight_room.room(count);
    content.shared.apply(normed.data() + start * width, output, count);
    content.shared_gate.apply(normed.data() + start * width, weight, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto gate =
          static_cast<float>(1.0 / (1.0 + exact_exp(-static_cast<double>(weight[i]))));
      float* target = hidden.data() + (start + i) * width;
      for (std::size_t k = 0; k < width; ++k) target[k] += gate * output[i * width + k];
    }
  }
}

void transformer::weights::route_apart(const layer_weights& content,
                                       std::span<const attention_row> rows, std::span<float> hidden,
                                       std::span<float> normed, std::span<float> logits) const {
  const std::size_t width = config.hidden_size, n_experts = config.n_experts;
  ORDERMOE_CHECK(rows.size() * width == hidden.size(), "rows and hidden differ in number");
  std::vector<float> read_normed, read_logits;
  with_those(rows, hidden, width, is_read,
             [&](std::span<const attention_row> these, std::span<float> states) {
               read_normed.resize(these.size() * width);
               read_logits.resize(these.size() * n_experts);
               route_read(content, states, read_normed, read_logits);
               run_shared(content, read_normed, states);
             });
  const float *from = read_normed.data(), *scores = read_logits.data();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].unread) {
      leave_without_slots(logits.subspan(i * n_experts, n_experts));
      continue;
    }
    std::copy_n(from, width, normed.data() + i * width);
    std::copy_n(scores, n_experts, logits.data() + i * n_experts);
    from += width;
    scores += n_experts;
  }
}

void transformer::attend(layer_id layer, std::span<const attention_row> rows,
                         std::span<float> hidden) const {
  const model_config& shape = config();
  ORDERMOE_CHECK(layer.index() < shape.n_layers, fmt::format("layer {}", layer.index()));
  ORDERMOE_CHECK(hidden.size() == rows.size() * shape.hidden_size,
                 "hidden is not [n_rows, hidden_size]");
  const std::size_t row_size = shape.kv_row_size(layer);
  for (const auto& row : rows)
    ORDERMOE_CHECK(row.cache != nullptr && row.cache->row_size() >= row_size,
                   "a row without a cache of this layer's rows");
  if (rows.empty()) return;
  if (shape.of_encoder(layer)) {
    ORDERMOE_CHECK(are_whole_prompts(rows), "rows of a part of a prompt in the encoder");
    return weights_->attend_whole_prompts(weights_->layers[layer.index()].blocks, rows, hidden);
  }
  if (!shape.encoder_decoder) return weights_->attend_decoder(layer, rows, hidden);
  for (const auto kind : {row_kind::prompt, row_kind::decoded})
    with_those(
        rows, hidden, shape.hidden_size,
        [&](const attention_row& row) { return kind_of(row) == kind; },
        [&](std::span<const attention_row> these, std::span<float> states) {
          if (kind == row_kind::prompt)
            weights_->leave_for_decoder(layer, these, states);
          else
            weights_->attend_decoder(layer, these, states);
        });
}

void transformer::route(layer_id layer, std::span<float> hidden, std::span<float> normed,
                        std::span<float> logits) const {
  ORDERMOE_CHECK(!config().encoder_decoder, "rows of an encoder-decoder routed without caches");
  route(layer, {}, hidden, normed, logits);
}

void transformer::route(layer_id layer, std::span<const attention_row> rows,
                        std::span<float> hidden, std::span<float> normed,
                        std::span<float> logits) const {
  const model_config& shape = config();
  const std::size_t width = shape.hidden_size;
  const std::size_t n = hidden.size() / width;
  ORDERMOE_CHECK(layer.index() < shape.n_layers, fmt::format("layer {}", layer.index()));
  ORDERMOE_CHECK(normed.size() == n * width && hidden.size() == n * width,
                 "normed or hidden is not [n, hidden_size]");
  ORDERMOE_CHECK(logits.size() == n * shape.n_experts, "logits are not [n, n_experts]");
  if (n == 0) return;
  const layer_weights& content = weights_->layers[layer.index()];
  if (!shape.encoder_decoder && std::ranges::any_of(rows, is_unread))
    return weights_->route_apart(content, rows, hidden, normed, logits);
  weights_->route_read(content, hidden, normed, logits);
  if (!shape.encoder_decoder) return weights_->run_shared(content, normed, hidden);
  ORDERMOE_CHECK(rows.size() == n, "rows and hidden differ in number");
  const std::size_t capacity = shape.encoder_decoder->expert_capacity;
  if (shape.of_encoder(layer))
    drop_overflow(capacity, rows, logits);
  else
    drop_decoded_overflow(capacity, shape.kv_row_size(layer) - 2, rows, logits);
}

void transformer::run_expert(layer_id layer, expert_id expert, std::span<const float> normed,
                             std::span<float> output) const {
  const expert_rows work{expert, normed, output};
  run_experts(layer, {&work, 1});
}

void transformer::run_experts(layer_id layer, std::span<const expert_rows> work) const {
  const model_config& shape = config();
  const std::size_t width = shape.hidden_size;
  std::vector<expert_rows> elsewhere;
  for (const auto& each : work) {
    const std::size_t n = each.normed.size() / width;
    ORDERMOE_CHECK(layer.index() < shape.n_layers && each.expert.index() < shape.n_experts,
                   fmt::format("expert {} of layer {}", each.expert.index(), layer.index()));
    ORDERMOE_CHECK(each.normed.size() == n * width && each.output.size() == n * width,
                   "normed or output is not [n, hidden_size]");
    const expert_weights& content = weights_->layers[layer.index()].experts[each.expert.index()];
    if (!content.there() && !weights_->elsewhere)
      throw expert_failure({errc::failed, fmt::format("expert {} of layer {} is not here",
                                                      each.expert.index(), layer.index())});
    if (!content.there())
      elsewhere.push_back(each);
    else
      content.apply(each.normed.data(), each.output.data(), n);
  }
  if (!elsewhere.empty()) weights_->elsewhere->run(layer, weights_->expert_precision, elsewhere);
}

void transformer::head(std::span<const float> hidden, std::span<float> logits) const {
  const model_config& shape = config();
  const std::size_t width = shape.hidden_size;
  const std::size_t n = hidden.size() / width;
  ORDERMOE_CHECK(hidden.size() == n * width && logits.size() == n * shape.vocab_size,
                 "hidden is not [n, hidden_size] or logits are not [n, vocab_size]");
  const float scale = weights_->head_scale;
  thread_local scratch_buffer normed_room;

  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    const std::span normed(normed_room.room(count * width), count * width);
    norm_rows(shape, weights_->final_norm, hidden.subspan(start * width, count * width), normed);
    if (scale != 1.0f)
      for (float& x : normed) x *= scale;
    weights_->head.apply(normed.data(), logits.data() + start * shape.vocab_size, count);
  }
}

void weigh_slots(std::span<float> sum, std::span<const float> gates,
                 std::span<const float* const> outputs) {
  ORDERMOE_CHECK(gates.size() == outputs.size() && !gates.empty(),
                 "gates and outputs differ in number, or there are none");
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = gates[0] * outputs[0][i];
  for (std::size_t j = 1; j < gates.size(); ++j) {
    const float gate = gates[j];
    const float* output = outputs[j];
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gate * output[i];
  }
}

void add_slots(std::span<float> hidden, std::span<const float> gates,
               std::span<const float* const> outputs) {
  std::vector<float> sum(hidden.size());
  weigh_slots(sum, gates, outputs);
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] += sum[i];
}

}  // namespace ordermoe::model
