#pragma once

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/search/search.hpp"

/// Plans for clusters with servers that have no users of their own and only help the others.
namespace ordermoe::planning {

/// The plan of place_by_search, or of the same search without the last helper, the last two or the last three, whichever the
/// planner estimates to be the fastest (estimate_plan): a search over more servers may end at a worse plan, and a helper
/// that is added behind up to two others makes this one no slower. What is left out hosts nothing, and users that come there
/// nevertheless have their requests where those of the nearest server are. Up to four searches; errors: those of
/// place_by_search with all.
result<plan> place_with_helpers(const profile& profile, const cluster& servers,
                                const cost_profile& costs, const search_options& options);

}  // namespace ordermoe::planning
