#include <fmt/format.h>

#include "planning/selection/selector_tables.hpp"

/// What every decision begins with, and who makes it.
namespace ordermoe::planning::selection {

void tables::slot_losses(std::size_t layer, std::uint32_t target, float gate,
                         std::span<const float> probabilities, std::span<loss_units> losses) const {
  const auto& facts = layers_[layer];
  if (!facts.allows_all) {
    std::fill(losses.begin(), losses.end(), forbidden);
    const auto candidates = facts.candidates_of(target);
    const double* distances = facts.candidate_distances_of(target);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto k = candidates[i];
      losses[k] = to_substitute_units(policy_.metric == loss_metric::token_gate
                                          ? (static_cast<double>(probabilities[target]) -
                                             static_cast<double>(probabilities[k])) *
                                                facts.damage
                                          : loss_at(facts, distances[i], gate));
    }
  } else if (policy_.metric == loss_metric::token_gate) {
    const double routed = probabilities[target];
    for (std::size_t k = 0; k < n_experts_; ++k)
      losses[k] =
          to_substitute_units((routed - static_cast<double>(probabilities[k])) * facts.damage);
  } else {
    for (std::size_t k = 0; k < n_experts_; ++k)
      losses[k] = to_substitute_units(predicted_loss(facts, target, k, gate));
  }
  losses[target] = 0;
}

decision tables::select(const decision_query& query) const {
  const auto count = query.slots.size();
  ORDERMOE_CHECK(count >= 1 && count <= top_k_,
                 fmt::format("a decision was asked for {} slots of a top-{} model", count, top_k_));
  ORDERMOE_CHECK(
      query.layer < n_layers_ && query.server < n_servers_ && query.access < n_servers_ &&
          (query.wait_ns.empty() || query.wait_ns.size() == n_servers_) &&
          (query.link_ns.empty() || query.link_ns.size() == hidden_to_.size()),
      fmt::format("a decision was asked for layer {}, server {} and access server {} with {} waits "
                  "of servers and {} links",
                  query.layer, query.server, query.access, query.wait_ns.size(),
                  query.link_ns.size()));
  const auto rule = policy_.candidates;
  const bool knows_losses =
      rule == candidate_rule::exact || (ranks_alike() && query.probabilities.size() == n_experts_);
  for (const auto& slot : query.slots)
    ORDERMOE_CHECK(slot.target < n_experts_ && (slot.loss.size() == n_experts_ || knows_losses),
                   fmt::format("a slot has target {} and {} losses, the layer {} experts",
                               slot.target, slot.loss.size(), n_experts_));
  const bool leaves = (leaves_out(rule) || policy_.may_leave_out) && !leaves_with_the_rest();
  return leaves ? select_leaving(query) : select_all(query);
}

void tables::check_found(const decision_query& query, double cost) {
  ORDERMOE_CHECK(cost < infinity, fmt::format("no server can run layer {} for a token at server {}",
                                              query.layer, query.server));
}

tables::situation tables::situation_of(const decision_query& query) const {
  situation now{query,
                layers_[query.layer],
                residencies_[residency_of_[query.access]].layers[query.layer],
                ignores_budgets()    ? unbounded_budget
                : token_budget_ == 0 ? 0
                                     : std::max<loss_units>(0, query.budget_left),
                per_unit_ * query.price_scale,
                links_of(query),
                {}};
  const bool waits = !query.wait_ns.empty();
  for (std::size_t m = 0; m < n_servers_; ++m)
    now.ready[m] = now.links[m * n_servers_ + query.server] +
                   (waits ? static_cast<double>(query.wait_ns[m]) : 0);
  return now;
}

decision tables::select_all(const decision_query& query) const {
  if (has_expert_keys()) return select_many(query);
  const auto now = situation_of(query);
  const auto asked = now.table.next_mask & query.residences;
  const auto residences = asked != 0 ? asked : now.table.next_mask;
  if (!is_monotone()) return select_any(now, residences);
  if (query.slots.size() == 1 && policy_.candidates != candidate_rule::router_restricted)
    return select_one(now, residences);
  if (query.slots.size() == 2) return select_two(now, residences);
  return select_any(now, residences);
}

}  // namespace ordermoe::planning::selection
