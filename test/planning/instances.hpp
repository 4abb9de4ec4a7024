#pragma once

#include <vector>

#include "config/cluster.hpp"
#include "config/random.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Small seeded instances that the tests of planning share.
namespace ordermoe::planning::instances {

/// Round numbers near Mixtral's, with experts that weigh 1000 bytes.
inline cost_profile small_costs() {
  cost_profile costs;
  costs.name = "small";
  costs.hidden_bytes = 8192;
  costs.kv_row_bytes = 4096;
  costs.expert_bytes = 1000;
  costs.expert_flops = 350'000'000;
  costs.attention_bytes = 100;
  costs.attention_flops = 90'000'000;
  costs.head_bytes = 300;
  costs.head_flops = 260'000'000;
  costs.embedding_bytes = 200;
  return costs;
}

inline cluster drawn_cluster(std::size_t n_servers, std::size_t n_layers, std::size_t n_experts,
                             double memory_ratio, std::uint64_t seed) {
  draw_options options;
  options.n_servers = n_servers;
  options.seed = seed;
  options.memory_ratio = memory_ratio;
  options.costs = small_costs();
  options.n_layers = n_layers;
  options.n_experts = n_experts;
  options.kv_tokens = 64;
  return draw_cluster(options);
}

/// Every server but each third keeps its experts coarser; the profile says what that costs, of one
/// layer and precision the same for every expert.
inline void keep_coarser(cluster& servers, profile& experts, std::uint64_t seed) {
  random_stream random(seed, 0xc0a25e);
  for (std::size_t m = 0; m < servers.size(); ++m)
    if (m % 3 != 0)
      servers.servers[m].expert_precision = m % 3 == 1 ? precision::int4 : precision::int8;
  for (auto& layer : experts.layers)
    for (const auto kept : {precision::int8, precision::int4})
      layer.copies.push_back({kept,
                              std::vector<double>(experts.n_experts, random.uniform(0.01, 0.2)),
                              random.uniform(0.01, 1), 0});
}

/// Gives every server exactly this much memory for experts.
inline void set_expert_memory(cluster& servers, const std::vector<std::int64_t>& bytes,
                              const cost_profile& costs, std::size_t n_layers) {
  for (std::size_t m = 0; m < servers.size(); ++m)
    servers.servers[m].memory_bytes +=
        bytes[m] - expert_memory_bytes(servers.servers[m], costs, n_layers);
}

/// The cluster with its servers in another order: new server i is old server order[i].
inline cluster relabelled(const cluster& original, const std::vector<std::size_t>& order) {
  cluster changed = original;
  for (std::size_t i = 0; i < order.size(); ++i) {
    changed.servers[i] = original.servers[order[i]];
    for (std::size_t j = 0; j < order.size(); ++j)
      changed.links[i * order.size() + j] = original.links[order[i] * order.size() + order[j]];
  }
  return changed;
}

inline std::vector<std::size_t> shuffled(std::size_t n, random_stream& random) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace ordermoe::planning::instances
