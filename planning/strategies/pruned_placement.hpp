#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/pruning.hpp"

/// Placement of models without some of their experts. What searches asks should_stop often, and then gives the best found so far.
namespace ordermoe::planning {

/// The model without the first n experts of pruning_order(), the same for everybody, on chains side by side (shard_chains.hpp),
/// best first. Error: infeasible where no chain fits.
result<std::vector<plan>> place_pruned(const profile& profile, const cluster& servers,
                                       const cost_profile& costs, std::size_t n_pruned,
                                       double concurrency, std::size_t n_most,
                                       std::function<bool()> should_stop = {});

/// plan::strategy of what place_around_core() places.
inline constexpr const char* core_planner = "core";
/// What is missed most on the ways of place_pruned(), and the first n experts of `order`, which is pruning_order() of the profile, too, each where there is room for it and the way there
/// and back from where its layer runs is shortest, by arrivals; those that are missed most first. Nothing is pruned: a target that is
/// far away runs there, or something on the way stands in for it. Ties to the lower server. Error: infeasible where no chain fits, or
/// where there is no room for the others.
result<std::vector<plan>> place_around_core(const profile& profile,
                                            const std::vector<pruning_step>& order,
                                            const cluster& servers, const cost_profile& costs,
                                            std::size_t n_outside, double concurrency,
                                            std::size_t n_most,
                                            std::function<bool()> should_stop = {});

/// The model on every site by itself, without as many experts of pruning_order() as do not fit there: the site's servers are a chain
/// or several, and users are served at their own site or, where that has too little room for top_k experts a layer, at the
/// nearest that has. Sites are made by joining the two whose servers are nearest, from as many as servers on, until `n_sites`
/// are left (1 to n_servers). Error: infeasible where no site has room.
result<plan> place_pruned_sites(const profile& profile, const cluster& servers,
                                const cost_profile& costs, std::size_t n_sites, double concurrency,
                                std::function<bool()> should_stop = {});

/// MoE^2 (arXiv 2501.09410) gates whole language models: offline it chooses the experts, each on its server, that are feasible under
/// delay and memory, online it gates among those. Adapted to the experts of a layer: copies fill the memory so that what the
/// model would miss most (pruning_order()) is within `reach_ns` of the users' homes, a hidden state there, the expert and
/// the way back; the router of an access server's users chooses among the experts within reach, top_k at least, and the
/// nearest copy runs.
struct reachable_options {
  double reach_ns = 0;  ///< Experts at the home itself are always within reach.
  std::size_t n_hubs =
      64;  ///< Users are at the nearest of so many servers, those where positions are over soonest; at most n_servers.
  bool prunes = true;  ///< False: an expert that somebody cannot reach is an error.
};
/// Errors: infeasible where a layer has fewer than top_k experts somewhere, or where nothing may be pruned and memory is short.
result<plan> place_reachable(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const reachable_options& options);

/// How far experts can be from homes, each once, the farthest first; at last 0, which is the home itself.
std::vector<double> reaches_of(const cluster& servers, const cost_profile& costs);

}  // namespace ordermoe::planning
