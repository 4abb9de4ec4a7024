#pragma once

#include <cstdint>
#include <vector>

#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "planning/plan.hpp"

/// What servers keep while requests end under one plan and begin under the next.
///
/// KV rows of both are one account: reservations of either plan come out of the same kv_bytes of a server, and are granted
/// or wait whatever they are for. What has to fit beside is the weights.
namespace ordermoe::serving {

/// [n_servers] bytes of the experts that one plan, the other or both place there.
std::vector<std::int64_t> bytes_of_both(const planning::plan& before, const planning::plan& after,
                                        const cluster& servers, const cost_profile& costs);

/// Whether every server has room for the experts of both. Error: infeasible, naming the server that lacks most, what it
/// would keep and what it may. Precondition: both are valid for this cluster.
result<void> check_both_fit(const planning::plan& before, const planning::plan& after,
                            const cluster& servers, const cost_profile& costs);

/// Plans that lead from one to the other, of which `after` is the last, so that any two that follow one another fit into every
/// server's memory together: where copies to come have no room yet, others that are not needed go first, and every expert
/// keeps one as the model has it. Those between have the residency and groups of `before`; epochs count on from it. Empty where
/// no way of `most` plans is found. Precondition: both are valid for this cluster and keep experts in the same precisions.
std::vector<planning::plan> plans_between(const planning::plan& before, const planning::plan& after,
                                          const cluster& servers, const cost_profile& costs,
                                          std::size_t most = 24);

}  // namespace ordermoe::serving
