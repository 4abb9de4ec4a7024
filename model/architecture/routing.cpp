#include "model/architecture/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/error.hpp"
#include "config/exact_exp.hpp"

namespace ordermoe::model {

namespace {

/// Gates by the rule, each rounded once, of experts named by their place in a list.
template <class ExpertOf, class Keep>
void weigh(std::span<const float> logits, std::size_t n, gate_rule rule, const ExpertOf& expert,
           const Keep& keep) {
  for (std::size_t j = 0; j < n; ++j)
    ORDERMOE_CHECK(expert(j).index() < logits.size(),
                   fmt::format("expert {} of {}", expert(j).index(), logits.size()));
  thread_local std::vector<double> p;
  if (rule == gate_rule::probabilities) {
    p.resize(logits.size());
    softmax(logits, p);
    for (std::size_t j = 0; j < n; ++j) keep(j, static_cast<float>(p[expert(j).index()]));
    return;
  }
  thread_local std::vector<float> own;
  own.resize(n);
  p.resize(n);
  for (std::size_t j = 0; j < n; ++j) own[j] = logits[expert(j).index()];
  softmax(own, p);
  for (std::size_t j = 0; j < n; ++j) keep(j, static_cast<float>(p[j]));
}

}  // namespace

void softmax(std::span<const float> logits, std::span<double> p) {
  float largest = -INFINITY;
  for (const float logit : logits) largest = std::max(largest, logit);
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    p[i] = exact_exp(static_cast<double>(logits[i]) - largest);
    total += p[i];
  }
  for (std::size_t i = 0; i < logits.size(); ++i) p[i] /= total;
}

bool has_slots(std::span<const float> logits) {
  return logits.empty() || logits[0] != -INFINITY;
}

void leave_without_slots(std::span<float> logits) {
  std::ranges::fill(logits, -INFINITY);
}

void weigh_experts(std::span<const float> logits, gate_rule rule, std::span<route_slot> slots) {
  weigh(
      logits, slots.size(), rule, [&](std::size_t j) { return slots[j].expert; },
      [&](std::size_t j, float gate) { slots[j].gate = gate; });
}

void choose_experts(std::span<const float> logits, gate_rule rule, std::span<route_slot> slots) {
  const auto top_k = slots.size();
  ORDERMOE_CHECK(top_k > 0 && top_k <= logits.size(),
                 fmt::format("top {} of {} experts", top_k, logits.size()));
  std::size_t n = 0;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    // Insertion behind every expert of at least this logit keeps ties in the order of their ids.
    std::size_t at = n;
    while (at > 0 && logits[slots[at - 1].expert.index()] < logits[e]) --at;
    if (at == top_k) continue;
    n = std::min(n + 1, top_k);
    for (std::size_t i = n - 1; i > at; --i) slots[i] = slots[i - 1];
    slots[at] = {expert_id{e}, 0};
  }
  weigh_experts(logits, rule, slots);
}

std::vector<route_slot> choose_experts(std::span<const float> logits, std::size_t top_k,
                                       gate_rule rule) {
  std::vector<route_slot> slots(top_k);
  choose_experts(logits, rule, slots);
  return slots;
}

std::vector<float> gates_of(std::span<const float> logits, std::span<const expert_id> experts,
                            gate_rule rule) {
  std::vector<float> gates(experts.size());
  weigh(
      logits, experts.size(), rule, [&](std::size_t j) { return experts[j]; },
      [&](std::size_t j, float gate) { gates[j] = gate; });
  return gates;
}

}  // namespace ordermoe::model
