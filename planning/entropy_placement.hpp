#pragma once

#include <vector>

#include "config/cluster.hpp"
#include "planning/placement.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Placement by how spread out a layer's activation is.
namespace ordermoe::planning {

/// How many experts of each layer a server with room for `room` gets: one after the other to the layer with the largest
/// entropy over the experts that it would then have, ties to the lower, at most n_experts each. entropy: [n_layers], >= 0; where
/// all are 0 they count as equal.
std::vector<std::size_t> shares_by_entropy(const std::vector<double>& entropy, std::size_t room,
                                           std::size_t n_experts);

/// Prism (arXiv 2508.12851): few remote invocations, the sum over servers n, layers l and experts e of f_n^l(e) where e is not
/// at n. First how many experts of each layer a server gets, by the entropy of its activation there; where a layer would get fewer
/// than it has experts, servers give it some of the layer with most to spare. Then each server takes those that it invokes most,
/// and an expert that nobody took takes the place of a copy that costs least to lose.
///
/// Here f_n^l(e) is n's share of arrivals times the activation (5) of e: profiles know one distribution for all servers. Prism
/// moves experts when what that saves over its horizon is more than the time of moving; plans that change while requests run are
/// everybody's here (`--replan-on-drift`). R_l = {access server}. Errors: those of place_by_popularity.
result<plan> place_by_entropy(const profile& profile, const cluster& servers,
                              const cost_profile& costs, const placement_options& options);

}  // namespace ordermoe::planning
