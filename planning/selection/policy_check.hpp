#pragma once

#include <cstddef>

#include "config/error.hpp"
#include "config/loss_units.hpp"
#include "planning/selection/selector.hpp"

namespace ordermoe::planning::selection {

/// Whether selectors can go by the policy, for a model of so many experts a token and a token's budget. Error: usage.
result<void> check_policy(const selection_policy& policy, std::size_t top_k,
                          loss_units token_budget);

}  // namespace ordermoe::planning::selection
