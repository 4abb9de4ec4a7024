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
  double theta_min = 0.5, theta_max = 0.9;  ///< Eq. (6)
  double alpha_activation = 0.5;            ///< alpha_f of eq. (28); alpha_r = 1 - alpha_f.
  double lambda_load = 0.5;                 ///< lambda_1 of eq. (30); lambda_2 = 1 - lambda_1.
  std::size_t min_copies = 1;               ///< Copies of every expert on different servers.
  bool replicate = true;                    ///< Eq. (33) to (35).
  std::uint64_t seed = 0;                   ///< For random placement only.
};

/// Eq. (24) to (28) for one layer: experts in order of falling activation (ties: lower index)
/// become dominant where no dominant expert is similar enough; the others join the dominant expert
/// most similar to them (ties: the more activated one). Eq. (25) is taken over all dominant experts
/// of the layer, those found later included.
layer_grouping group_layer(const layer_profile& profile, const matrix& similarity, double threshold,
                           const placement_options& options);

/// Eq. (6) with `layer` from 0: theta_max at the first layer, theta_min at the last; theta_max for
/// a single layer.
double layer_threshold(std::size_t layer, std::size_t n_layers, const placement_options& options);

/// Eq. (7) and (8): V_{l,r}, ascending: the target and the members of its group that are similar
/// enough to it.
std::vector<std::uint32_t> feasible_experts(const layer_grouping& grouping,
                                            const matrix& similarity, std::uint32_t target);

/// Algorithm 1 complete: grouping, importance, first-fit-decreasing placement by score with waiting
/// list and repair, replication by benefit. R_l = all servers, the paper's free movement. Errors:
/// infeasible, with the missing bytes of each server; usage where the options make no sense;
/// mismatch where the profile is not valid.
result<plan> place_by_similarity(const profile& profile, const cluster& servers,
                                 const cost_profile& costs, const placement_options& options);

/// Every expert once on a random feasible server, then spare memory by frequency x arrival share /
/// bytes. With `replicate` off it is the random placement without copies. R_l = {access server}.
result<plan> place_by_popularity(const profile& profile, const cluster& servers,
                                 const cost_profile& costs, const placement_options& options);

/// The same first copies, then spare memory by copies in random order, each where it fits: a draw of all (server,
/// layer, expert), taken one after the other. R_l = {access server}.
result<plan> place_at_random(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const placement_options& options);

enum class shard_objective {
  latency,     ///< Mean time of one decoded position.
  throughput,  ///< The slowest stage (a server's layers, or one hand-over on a link) first, then
               ///< latency.
};
/// How the sampled id of one position reaches the first holder for the next.
enum class shard_return {
  by_access,  ///< Through the access server, as EdgeShard has it.
  direct,     ///< Straight from the last holder, as our runs do it.
};
struct layer_shard_options {
  shard_objective objective = shard_objective::latency;
  shard_return way_back = shard_return::by_access;
  std::size_t beam = 24576;
};

/// EdgeShard: contiguous whole layers with their experts by dynamic programming over (layer,
/// server, servers used), minimising the time of one decoded token averaged over the access servers
/// by arrival share. R_l = {holder of l}.
///
/// One decoded position costs: a small message from the access server to the first holder, at each
/// layer attention and top_k experts one after another on the holder, one hidden state between
/// holders, the output projection on the last holder, and a small message back; with
/// shard_return::direct the small message goes from the last holder to the first, and nothing else
/// is charged to the access servers. Exact up to 12 servers; beyond, each layer keeps the `beam`
/// cheapest states. Complexity of the exact case: O(2^M M^2 N c), c the most layers that one server
/// can hold; M times that with shard_return::direct. Error: infeasible, with the bytes
/// that each server lacks.
result<plan> place_layer_shards(const profile& profile, const cluster& servers,
                                const cost_profile& costs, const layer_shard_options& options = {});

}  // namespace ordermoe::planning
