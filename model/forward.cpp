#include "model/forward.hpp"

#include <algorithm>

#include "model/architecture/routing.hpp"
#include "model/expert_weights.hpp"

namespace ordermoe::model {

void execute_slots(const transformer& model, layer_id layer, std::span<const float> normed,
                   const slot_table& slots, std::span<float> hidden) {
  execute_slots(
      model.config(),
      [&](layer_id at, std::span<const expert_rows> work) { model.run_experts(at, work); }, layer,
      normed, slots, hidden);
}

namespace {

/// Rows whose slots run together, which bounds what they take besides.
constexpr std::size_t most_rows_of_slots = 512;

/// execute_slots of no more rows than that.
void execute_some(const model_config& config, const expert_runner& run, layer_id layer,
                  std::span<const float> normed, std::span<const std::vector<executed_slot>> slots,
                  std::span<float> hidden) {
  const std::size_t width = config.hidden_size;
  std::vector<std::size_t> first_slot(slots.size() + 1, 0);
  for (std::size_t i = 0; i < slots.size(); ++i)
    first_slot[i + 1] = first_slot[i] + slots[i].size();
  struct place {
    std::size_t row;
    std::size_t slot;
  };
  std::vector<std::vector<place>> wanted(config.n_experts);
  for (std::size_t i = 0; i < slots.size(); ++i)
    for (std::size_t j = 0; j < slots[i].size(); ++j) {
      ORDERMOE_CHECK(slots[i][j].expert.index() < wanted.size(), "a slot of an expert beyond all");
      wanted[slots[i][j].expert.index()].push_back({i, first_slot[i] + j});
    }
  // Rows side by side, expert after expert; a single row is where it is already.
  thread_local scratch_buffer output_room, input_room, result_room;
  const std::size_t n_numbers = first_slot.back() * width;
  const std::span outputs(output_room.room(n_numbers), n_numbers);
  const std::span inputs(input_room.room(n_numbers), n_numbers);
  const std::span results(result_room.room(n_numbers), n_numbers);
  std::vector<expert_rows> work;
  std::size_t begin = 0;
  for (std::size_t e = 0; e < wanted.size(); ++e) {
    const auto& places = wanted[e];
    if (places.empty()) continue;
    if (places.size() == 1) {
      work.push_back({expert_id{e}, normed.subspan(places[0].row * width, width),
                      outputs.subspan(places[0].slot * width, width)});
      continue;
    }
    for (std::size_t i = 0; i < places.size(); ++i)
      std::copy_n(normed.data() + places[i].row * width, width, inputs.data() + begin + i * width);
    const auto n = places.size() * width;
    work.push_back({expert_id{e}, inputs.subspan(begin, n), results.subspan(begin, n)});
    begin += n;
  }
  if (!work.empty()) run(layer, work);
  begin = 0;
  for (const auto& places : wanted) {
    if (places.size() < 2) continue;
    for (std::size_t i = 0; i < places.size(); ++i)
      std::copy_n(results.data() + begin + i * width, width,
                  outputs.data() + places[i].slot * width);
    begin += places.size() * width;
  }
  std::vector<float> gates;
  std::vector<const float*> sources;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].empty()) continue;
    gates.clear();
    sources.clear();
    for (std::size_t j = 0; j < slots[i].size(); ++j) {
      gates.push_back(slots[i][j].gate);
      sources.push_back(outputs.data() + (first_slot[i] + j) * width);
    }
    add_slots(hidden.subspan(i * width, width), gates, sources);
  }
}

}  // namespace

void execute_slots(const model_config& config, const expert_runner& run, layer_id layer,
                   std::span<const float> normed, const slot_table& slots,
                   std::span<float> hidden) {
  const std::size_t width = config.hidden_size;
  ORDERMOE_CHECK(hidden.size() == slots.size() * width && normed.size() == hidden.size(),
                 "rows and slots differ in number");
  for (std::size_t first = 0; first < slots.size(); first += most_rows_of_slots) {
    const std::size_t n = std::min(most_rows_of_slots, slots.size() - first);
    execute_some(config, run, layer, normed.subspan(first * width, n * width),
                 std::span(slots).subspan(first, n), hidden.subspan(first * width, n * width));
  }
}

std::vector<executed_slot> routed_slots(std::span<const float> logits, const model_config& config) {
  std::vector<executed_slot> slots;
  if (!has_slots(logits)) return slots;
  slots.reserve(config.top_k);
  for (const auto& slot : choose_experts(logits, config.top_k, config.gates))
    slots.push_back({slot.expert, slot.gate});
  return slots;
}

std::vector<kv_cache> make_caches(const transformer& model, std::size_t capacity_rows) {
  const model_config& config = model.config();
  std::vector<kv_cache> caches;
  caches.reserve(config.n_layers);
  for (std::size_t l = 0; l < config.n_layers; ++l)
    caches.push_back(model.make_cache(layer_id{l}, capacity_rows));
  return caches;
}

std::vector<attention_row> rows_at(const model_config& config, layer_id layer, kv_cache& cache,
                                   sequence_rows which, std::size_t n_rows) {
  std::size_t end = which.first + n_rows;
  if (config.of_encoder(layer)) end = std::max(which.first, std::min(end, which.prompt));
  std::vector<attention_row> rows;
  rows.reserve(end - which.first);
  const std::size_t read = layer.index() + 1 < config.n_layers || config.encoder_decoder
                               ? which.first
                               : which.first + which.unread;
  for (std::size_t p = which.first; p < end; ++p)
    rows.push_back({&cache, p, which.prompt, p < read});
  return rows;
}

void run_layer(const transformer& model, layer_id layer, kv_cache& cache, sequence_rows which,
               std::span<float> hidden, const slot_override& override_slots) {
  const model_config& config = model.config();
  const auto rows = rows_at(config, layer, cache, which, hidden.size() / config.hidden_size);
  const std::size_t n = rows.size();
  const auto states = hidden.first(n * config.hidden_size);
  model.attend(layer, rows, states);
  std::vector<float> normed(states.size());
  std::vector<float> scores(n * config.n_experts);
  model.route(layer, rows, states, normed, scores);
  slot_table slots(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto row = std::span<const float>(scores).subspan(i * config.n_experts, config.n_experts);
    slots[i] = routed_slots(row, config);
    if (override_slots && !slots[i].empty()) override_slots(layer, which.first + i, row, slots[i]);
  }
  execute_slots(model, layer, normed, slots, states);
}

teacher_forced as_rows(const model_config& config, std::span<const std::int32_t> ids,
                       std::size_t prompt) {
  ORDERMOE_CHECK(prompt > 0 && prompt < ids.size(), "a text without a prompt or a continuation");
  teacher_forced made;
  made.ids.assign(ids.begin(), ids.end());
  made.targets.assign(ids.begin() + 1, ids.end());
  if (config.encoder_decoder) {
    const auto behind = static_cast<std::ptrdiff_t>(prompt);
    made.prompt = made.first = prompt;
    made.ids.pop_back();
    made.ids.insert(made.ids.begin() + behind, config.encoder_decoder->decoder_start_id);
    made.targets.erase(made.targets.begin(), made.targets.begin() + behind - 1);
  }
  return made;
}

std::vector<float> target_logits(const transformer& model, const teacher_forced& text,
                                 std::span<const float> hidden) {
  const std::size_t width = model.config().hidden_size;
  std::vector<float> logits(text.targets.size() * model.config().vocab_size);
  model.head(hidden.subspan(text.first * width, text.targets.size() * width), logits);
  return logits;
}

std::vector<double> target_losses(const transformer& model, const teacher_forced& text,
                                  std::span<const float> hidden) {
  const std::size_t vocabulary = model.config().vocab_size;
  const auto scores = target_logits(model, text, hidden);
  std::vector<double> losses;
  losses.reserve(text.targets.size());
  for (std::size_t i = 0; i < text.targets.size(); ++i)
    losses.push_back(negative_log_likelihood(
        std::span<const float>(scores).subspan(i * vocabulary, vocabulary), text.targets[i]));
  return losses;
}

}  // namespace ordermoe::model
