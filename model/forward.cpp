#include "model/forward.hpp"

#include <algorithm>

#include "model/routing.hpp"

namespace ordermoe::model {

void execute_slots(const transformer& model, layer_id layer, std::span<const float> normed,
                   const slot_table& slots, std::span<float> hidden) {
  const std::size_t width = model.config().hidden_size;
  ORDERMOE_CHECK(hidden.size() == slots.size() * width && normed.size() == hidden.size(),
                 "rows and slots differ in number");
  std::vector<std::size_t> first_slot(slots.size() + 1, 0);
  for (std::size_t i = 0; i < slots.size(); ++i)
    first_slot[i + 1] = first_slot[i] + slots[i].size();
  std::vector<float> outputs(first_slot.back() * width);
  std::vector<float> inputs;
  std::vector<float> results;
  struct place {
    std::size_t row;
    std::size_t slot;
  };
  std::vector<std::vector<place>> wanted(model.config().n_experts);
  for (std::size_t i = 0; i < slots.size(); ++i)
    for (std::size_t j = 0; j < slots[i].size(); ++j) {
      ORDERMOE_CHECK(slots[i][j].expert.index() < wanted.size(), "a slot of an expert beyond all");
      wanted[slots[i][j].expert.index()].push_back({i, first_slot[i] + j});
    }
  for (std::size_t e = 0; e < wanted.size(); ++e) {
    const auto& places = wanted[e];
    if (places.empty()) continue;
    if (places.size() == 1) {
      model.run_expert(layer, expert_id{e}, normed.subspan(places[0].row * width, width),
                       std::span(outputs).subspan(places[0].slot * width, width));
      continue;
    }
    inputs.resize(places.size() * width);
    results.resize(places.size() * width);
    for (std::size_t i = 0; i < places.size(); ++i)
      std::copy_n(normed.data() + places[i].row * width, width, inputs.data() + i * width);
    model.run_expert(layer, expert_id{e}, inputs, results);
    for (std::size_t i = 0; i < places.size(); ++i)
      std::copy_n(results.data() + i * width, width, outputs.data() + places[i].slot * width);
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

std::vector<executed_slot> routed_slots(std::span<const float> logits, const model_config& config) {
  std::vector<executed_slot> slots;
  slots.reserve(config.top_k);
  for (const auto& slot : choose_experts(logits, config.top_k, config.gates))
    slots.push_back({slot.expert, slot.gate});
  return slots;
}

std::vector<kv_cache> make_caches(const model_config& config, std::size_t capacity_rows) {
  return std::vector<kv_cache>(config.n_layers, kv_cache(capacity_rows, config.kv_row_size()));
}

void run_layer(const transformer& model, layer_id layer, kv_cache& cache, std::size_t first,
               std::span<float> hidden, const slot_override& override_slots) {
  const model_config& config = model.config();
  const std::size_t n = hidden.size() / config.hidden_size;
  std::vector<attention_row> rows(n);
  for (std::size_t i = 0; i < n; ++i) rows[i] = {&cache, first + i};
  model.attend(layer, rows, hidden);
  std::vector<float> normed(hidden.size());
  std::vector<float> scores(n * config.n_experts);
  model.route(layer, hidden, normed, scores);
  slot_table slots(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto row = std::span<const float>(scores).subspan(i * config.n_experts, config.n_experts);
    slots[i] = routed_slots(row, config);
    if (override_slots) override_slots(layer, first + i, row, slots[i]);
  }
  execute_slots(model, layer, normed, slots, hidden);
}

}  // namespace ordermoe::model
