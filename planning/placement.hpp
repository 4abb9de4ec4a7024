#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Algorithm 1 of the paper and the placements of the strategies that need no search.
namespace ordermoe::planning {

struct placement_options {
  loss_metric similarity = loss_metric::router_logit;  ///< router_logit or router_logit_centred.
  double theta_min = 0.5, theta_max = 0.9;   ///< Eq. (6)
  double alpha_activation = 0.5;             ///< alpha_f of eq. (28); alpha_r = 1 - alpha_f.
  double lambda_load = 0.5;                  ///< lambda_1 of eq. (30); lambda_2 = 1 - lambda_1.
  std::size_t min_copies = 1;                ///< Copies of every expert on different servers.
  bool replicate = true;                     ///< Eq. (33) to (35).
  std::uint64_t seed = 0;                    ///< For random placement only.
};

/// Eq. (6) to (8), (24) to (28) for one layer.
layer_grouping group_layer(const layer_profile& experts, const matrix& similarity, double threshold,
                           const placement_options& options);
double layer_threshold(std::size_t layer, std::size_t n_layers, const placement_options& options);

/// Algorithm 1 complete: grouping, importance, first-fit-decreasing placement by score with waiting list and repair,
/// replication by benefit. Error: infeasible, with the missing bytes of each server.
result<plan> place_by_similarity(const profile& experts, const cluster& servers, const cost_profile& costs,
                                 const placement_options& options);

/// Every expert once on a random feasible server, then spare memory by frequency x arrival share / bytes.
result<plan> place_by_popularity(const profile& experts, const cluster& servers, const cost_profile& costs,
                                 const placement_options& options);

/// EdgeShard: contiguous whole layers with their experts by dynamic programming over (layer, server, servers used),
/// minimising the time of one decoded token averaged over the access servers by arrival share. R_l = {holder of l}.
result<plan> place_layer_shards(const profile& experts, const cluster& servers, const cost_profile& costs);

}  // namespace ordermoe::planning
