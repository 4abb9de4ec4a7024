#pragma once

#include <span>
#include <vector>

#include "planning/search/search.hpp"

namespace ordermoe::planning {

/// estimate_plan() of several plans, in their order; infinite from the one on before which options.should_stop says so.
std::vector<double> estimate_plans(const profile& profile, std::span<const plan> placed,
                                   const cluster& servers, const cost_profile& costs,
                                   const search_options& options);

}  // namespace ordermoe::planning
