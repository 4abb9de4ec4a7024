#include "model/replaced_experts.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "config/random.hpp"

namespace ordermoe::model {

namespace {

/// Gates of the experts that run.
void weigh_anew(gate_rule rule, std::span<const float> logits, std::vector<executed_slot>& slots) {
  std::vector<expert_id> executed;
  for (const auto& slot : slots) executed.push_back(slot.expert);
  const auto gates = gates_of(logits, executed, rule);
  for (std::size_t j = 0; j < slots.size(); ++j) slots[j].gate = gates[j];
}

}  // namespace

std::vector<char> draw_available(std::size_t n_experts, std::uint64_t seed, std::size_t layer,
                                 std::size_t draw) {
  random_stream random(seed, mix64(layer) ^ draw);
  std::vector<std::size_t> order(n_experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = n_experts; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  std::vector<char> available(n_experts, 0);
  for (std::size_t i = 0; i < (n_experts + 1) / 2; ++i) available[order[i]] = 1;
  return available;
}

double substitute(loss_metric kind, gate_rule rule, const std::vector<double>& similarity,
                  const std::vector<char>& available, std::span<const float> logits,
                  std::vector<executed_slot>& slots) {
  const std::size_t n_experts = available.size();
  double predicted = 0;
  if (kind == loss_metric::token_gate) {
    std::vector<double> p(n_experts);
    softmax(logits, p);
    std::vector<char> taken(n_experts, 0);
    for (const auto& slot : slots) taken[slot.expert.index()] = 1;
    bool changed = false;
    for (auto& slot : slots) {
      const std::size_t r = slot.expert.index();
      if (available[r] != 0) continue;
      std::optional<std::size_t> best;
      for (std::size_t k = 0; k < n_experts; ++k)
        if (available[k] != 0 && taken[k] == 0 && (!best || logits[k] > logits[*best])) best = k;
      if (!best) continue;
      predicted += std::max(0.0, p[r] - p[*best]);
      taken[*best] = 1;
      slot.expert = expert_id{*best};
      changed = true;
    }
    if (!changed) return 0;
    weigh_anew(rule, logits, slots);
    return predicted;
  }
  for (auto& slot : slots) {
    const std::size_t r = slot.expert.index();
    if (available[r] != 0) continue;
    const double gate = slot.gate;
    std::optional<std::size_t> best;
    double least = 0;
    for (std::size_t k = 0; k < n_experts; ++k) {
      if (available[k] == 0) continue;
      const double loss = gate * (1.0 - similarity[r * n_experts + k]) / 2.0;
      if (!best || loss < least) {
        best = k;
        least = loss;
      }
    }
    if (!best) continue;
    predicted += least;
    slot.expert = expert_id{*best};
  }
  return predicted;
}

std::vector<std::size_t> counts_to_leave_out(std::size_t top_k, std::size_t most_passes) {
  std::vector<std::size_t> counts;
  const auto most = top_k - 1;
  for (std::size_t pass = 0; most > 0 && pass < most_passes; ++pass) {
    const auto n = most_passes == 1 ? 1 : 1 + pass * (most - 1) / (most_passes - 1);
    if (counts.empty() || n > counts.back()) counts.push_back(n);
  }
  return counts;
}

double leave_out(std::size_t n_out, gate_rule rule, std::span<const float> logits,
                 std::vector<executed_slot>& slots) {
  double predicted = 0;
  for (std::size_t n = 0; n < n_out; ++n) {
    auto least = slots.begin();
    for (auto slot = slots.begin(); slot != slots.end(); ++slot)
      if (slot->gate <= least->gate) least = slot;
    predicted += static_cast<double>(least->gate) * static_cast<double>(least->gate);
    slots.erase(least);
  }
  weigh_anew(rule, logits, slots);
  return predicted;
}

}  // namespace ordermoe::model
