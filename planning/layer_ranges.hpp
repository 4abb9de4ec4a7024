#pragma once

#include "config/cluster.hpp"
#include "planning/placement.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Layer ranges with copies, and for the users of each access server a way of their own through them.
namespace ordermoe::planning {

struct layer_range_options {
  /// Of the chain that every layer is placed by once.
  shard_objective objective = shard_objective::latency;
  /// Requests in flight besides the one whose way it is: what a way costs at a server grows with those of other users that are
  /// expected there. 0: ways are as if nobody else were there, so that all take the same one and no copy pays.
  double n_others = 0;
};

/// Parallax (arXiv 2509.26182): a node holds contiguous whole layers, several nodes may hold the same ones, and a request takes
/// the shortest way in time through them.
///
/// Every layer is placed once by place_layer_shards. Then each server, those with the most free memory first, gets the contiguous
/// layers, next to what it has, that lower the expected cost most, as many as fit; none where none does. A way is the least of
/// top_k experts one after another and attention at each layer, times 1 + n_others * (share of the other users' time that they
/// spend at this server), a hidden state between servers, the output projection and a small message to the server of layer 0,
/// where the next position starts. Users of the access servers with most arrivals choose first.
///
/// Here ways are chosen by expected load when the plan is made; Parallax chooses one for each request by the load that is
/// measured then. R_l of an access server = {the server of l on its users' way}. Errors: those of place_layer_shards.
result<plan> place_layer_ranges(const profile& profile, const cluster& servers,
                                const cost_profile& costs, const layer_range_options& options = {});

}  // namespace ordermoe::planning
