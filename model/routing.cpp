#include "model/routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/error.hpp"

namespace ordermoe::model {

std::vector<route_slot> choose_experts(std::span<const float> logits, std::size_t top_k) {
  ORDERMOE_CHECK(top_k > 0 && top_k <= logits.size(),
                 fmt::format("top {} of {} experts", top_k, logits.size()));
  std::vector<expert_id> ranked;
  ranked.reserve(top_k + 1);
  for (std::size_t e = 0; e < logits.size(); ++e) {
    // Insertion behind every expert of at least this logit keeps ties in the order of their ids.
    auto at = ranked.end();
    while (at != ranked.begin() && logits[(at - 1)->index()] < logits[e]) --at;
    if (at == ranked.end() && ranked.size() == top_k) continue;
    ranked.insert(at, expert_id{e});
    if (ranked.size() > top_k) ranked.pop_back();
  }
  const auto gates = gates_of(logits, ranked);
  std::vector<route_slot> slots(top_k);
  for (std::size_t j = 0; j < top_k; ++j) slots[j] = {ranked[j], gates[j]};
  return slots;
}

std::vector<float> gates_of(std::span<const float> logits, std::span<const expert_id> experts) {
  std::vector<float> gates(experts.size());
  float largest = -INFINITY;
  for (const expert_id e : experts) {
    ORDERMOE_CHECK(e.index() < logits.size(),
                   fmt::format("expert {} of {}", e.index(), logits.size()));
    largest = std::max(largest, logits[e.index()]);
  }
  // In double precision, rounded once; the sum runs in the order given.
  double total = 0;
  std::vector<double> weights(experts.size());
  for (std::size_t j = 0; j < experts.size(); ++j) {
    weights[j] = std::exp(static_cast<double>(logits[experts[j].index()]) - largest);
    total += weights[j];
  }
  for (std::size_t j = 0; j < experts.size(); ++j)
    gates[j] = static_cast<float>(weights[j] / total);
  return gates;
}

}  // namespace ordermoe::model
