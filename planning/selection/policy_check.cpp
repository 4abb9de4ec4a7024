#include "planning/selection/policy_check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

namespace ordermoe::planning::selection {

namespace {

error usage(std::string what) {
  return {errc::usage, "selection policy: " + std::move(what)};
}

}  // namespace

result<void> check_policy(const selection_policy& policy, std::size_t top_k,
                          loss_units token_budget) {
  if (policy.residence == residence_choice::with_slot && top_k > 1)
    return usage(fmt::format(
        "found residence with_slot for a top-{} model, expected top-1; choose a free residence",
        top_k));
  if (policy.budget_bins == 0)
    return usage("found 0 budget bins, expected at least 1; leave the default of 16");
  if (!(policy.omega_time >= 0) || !(policy.omega_quality >= 0) || std::isinf(policy.omega_time) ||
      std::isinf(policy.omega_quality))
    return usage(fmt::format(
        "found the weights {} and {}, expected finite numbers of at least 0; state both again",
        policy.omega_time, policy.omega_quality));
  if (!(policy.price_ns_per_loss >= 0) || std::isinf(policy.price_ns_per_loss))
    return usage(
        fmt::format("found a price of {} ns per loss, expected a finite number of at "
                    "least 0; 0 keeps the budget index",
                    policy.price_ns_per_loss));
  if (token_budget < 0 || token_budget > unbounded_budget)
    return usage(fmt::format("found a token budget of {} units, expected 0 to {}; state it again",
                             token_budget, unbounded_budget));
  return {};
}

}  // namespace ordermoe::planning::selection
