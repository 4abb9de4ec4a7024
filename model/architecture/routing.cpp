#include "model/architecture/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "config/error.hpp"

namespace ordermoe::model {

namespace {

/// The softmax over the logits of some experts: in double precision, rounded once; the sum runs in
/// the order given.
template <class ExpertOf, class Keep>
void softmax_over(std::span<const float> logits, std::size_t n, const ExpertOf& expert,
                  const Keep& keep) {
  float largest = -INFINITY;
  for (std::size_t j = 0; j < n; ++j) {
    ORDERMOE_CHECK(expert(j).index() < logits.size(),
                   fmt::format("expert {} of {}", expert(j).index(), logits.size()));
    largest = std::max(largest, logits[expert(j).index()]);
  }
  const auto weight = [&](std::size_t j) {
    return std::exp(static_cast<double>(logits[expert(j).index()]) - largest);
  };
  constexpr std::size_t few = 16;
  std::array<double, few> kept;
  double total = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const double w = weight(j);
    if (j < few) kept[j] = w;
    total += w;
  }
  for (std::size_t j = 0; j < n; ++j)
    keep(j, static_cast<float>((j < few ? kept[j] : weight(j)) / total));
}

/// Gates of some experts as their probabilities among all; the sum runs in the order of the ids.
template <class ExpertOf, class Keep>
void softmax_among_all(std::span<const float> logits, std::size_t n, const ExpertOf& expert,
                       const Keep& keep) {
  const float largest = *std::ranges::max_element(logits);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - largest);
  for (std::size_t j = 0; j < n; ++j) {
    ORDERMOE_CHECK(expert(j).index() < logits.size(),
                   fmt::format("expert {} of {}", expert(j).index(), logits.size()));
    const double weight = std::exp(static_cast<double>(logits[expert(j).index()]) - largest);
    keep(j, static_cast<float>(weight / total));
  }
}

template <class ExpertOf, class Keep>
void weigh(std::span<const float> logits, std::size_t n, gate_rule rule, const ExpertOf& expert,
           const Keep& keep) {
  switch (rule) {
    case gate_rule::renormalised:
      return softmax_over(logits, n, expert, keep);
    case gate_rule::probabilities:
      return softmax_among_all(logits, n, expert, keep);
  }
}

}  // namespace

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
