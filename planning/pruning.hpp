#pragma once

#include <cstddef>
#include <vector>

#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Models without some of their experts: which ones are missed least, and what a router does without them.
namespace ordermoe::planning {

/// One expert less.
struct pruning_step {
  std::size_t layer = 0, expert = 0;
  double nats = 0;  ///< Expected loss of a token more, where all before it are gone.
  friend bool operator==(const pruning_step&, const pruning_step&) = default;
};

/// Experts in the order in which a model misses them least, until every layer has top_k left: each time the one that adds least to
///
///   sum over layers of damage * sum over target sets q of P(q) * sum over pruned r of q of regret(r, k)
///
/// with k the expert of least mean regret that is neither pruned, nor in q, nor in the place of another of q. Ties to the lower
/// layer, then the lower expert. Complexity: O(L E^2 S k) for S target sets a layer.
std::vector<pruning_step> pruning_order(const profile& profile);

/// Without the first n of them.
pruned_experts first_pruned(const std::vector<pruning_step>& order, std::size_t n_layers,
                            std::size_t n);

/// What each expert is worth by the order in which they go: [n_layers][n_experts] the nats of its step or, where that is more, of one
/// before it; twice the most for those that stay to the end. Above 0.
std::vector<std::vector<double>> worth_of_each(const std::vector<pruning_step>& order,
                                               const profile& profile);

/// The profile of a model without these experts, as far as times depend on it: in target sets and activation the expert of least
/// regret stands in for each of them. Precondition: every layer has top_k left.
profile with_pruned(const profile& profile, const pruned_experts& pruned);

}  // namespace ordermoe::planning
