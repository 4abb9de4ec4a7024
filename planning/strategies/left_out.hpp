#pragma once

#include <cstddef>
#include <vector>

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/server_mask.hpp"

/// Plans for a cluster of which some servers are to host nothing: those that leave, and those that are not there yet.
/// They are planned as if these servers did not exist, so that no strategy need know of them.
namespace ordermoe::planning {

/// The numbers of those that are not in the mask, ascending.
std::vector<std::size_t> staying(std::size_t n_servers, server_mask left_out);

/// The servers that are not in the mask, in order, with the links between them and their shares of arrivals, which sum
/// to 1 again (even where they had none).
cluster without(const cluster& servers, server_mask left_out);

/// A plan for without(servers, left_out) as one for all of them, their users' routers choosing as those of the first that stays: the others host nothing, attention of nobody but their
/// own users runs at them, and they keep experts as the cluster says.
plan widened(const plan& content, const cluster& servers, const cost_profile& costs,
             server_mask left_out);

/// Residency without them; attention of their own users stays with them.
std::vector<residency> among_others(std::vector<residency> residence, server_mask left_out);

/// Servers that host an expert, or keep rows of requests of the users of another of these.
server_mask needed(const plan& content, server_mask users_of);
/// Of `left_out` those that the others need under this plan and not under the one before.
server_mask newly_needed(const plan& content, const plan& before, server_mask left_out);

}  // namespace ordermoe::planning
