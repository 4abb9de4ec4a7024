#include "planning/selection/selector.hpp"

#include <algorithm>

#include "planning/selection/selector_tables.hpp"

namespace ordermoe::planning {

result<std::shared_ptr<const selection_tables>> selection_tables::build(
    const profile& profile, const plan& placed, const cost_model& costs,
    const selection_policy& policy, loss_units token_budget, look_ahead_keys keys) {
  return selection::tables::make(profile, placed, costs, policy, token_budget, keys);
}

const char* to_string(candidate_rule rule) {
  switch (rule) {
    case candidate_rule::exact:
      return "exact";
    case candidate_rule::local_only:
      return "local-only";
    case candidate_rule::router_restricted:
      return "router-restricted";
    case candidate_rule::group:
      return "group";
    case candidate_rule::any:
      return "any";
    case candidate_rule::here_or_target:
      return "here-or-target";
    case candidate_rule::local_skip:
      return "local-skip";
    case candidate_rule::drop:
      return "drop";
    case candidate_rule::weigh:
      return "weigh";
  }
  return "unknown";
}

selection_weights adapt_weights(double omega_quality, double kappa, double mean_budget_use,
                                double mean_normalised_delay) {
  const double moved =
      std::clamp(omega_quality + kappa * (mean_budget_use - mean_normalised_delay), 0.0, 1.0);
  return {1 - moved, moved};
}

}  // namespace ordermoe::planning
