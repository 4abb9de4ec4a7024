#include "planning/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "config/random.hpp"
#include "planning/packing.hpp"

namespace ordermoe::planning {

namespace {

result<void> check_weight(const char* name, double value) {
  if (value >= 0 && value <= 1) return {};
  return error{errc::usage,
               fmt::format("{}: found {}, expected a number from 0 to 1", name, value)};
}

result<void> check_options(const placement_options& options) {
  // A cosine of 1 on the diagonal keeps every threshold up to 1 meaningful.
  for (const auto& [name, value] :
       {std::pair{"theta_min", options.theta_min}, std::pair{"theta_max", options.theta_max}})
    if (!(value >= -1 && value <= 1))
      return error{errc::usage,
                   fmt::format("{}: found {}, expected a number from -1 to 1", name, value)};
  if (options.theta_min > options.theta_max)
    return error{errc::usage, fmt::format("theta_min: found {}, expected at most theta_max, {}",
                                          options.theta_min, options.theta_max)};
  if (auto checked = check_weight("alpha_activation", options.alpha_activation); !checked)
    return checked;
  return check_weight("lambda_load", options.lambda_load);
}

plan make_plan(const packing& state, std::string strategy) {
  const auto& problem = state.problem();
  plan made;
  made.strategy = std::move(strategy);
  made.n_servers = problem.n_servers;
  made.n_layers = problem.n_layers;
  made.n_experts = problem.n_experts;
  made.grouping = problem.grouping;
  made.experts = state.placed();
  made.expert_bytes_used = state.used();
  made.expert_bytes_limit = problem.limit_bytes;
  return made;
}

/// The n-th set bit of a mask.
std::size_t nth_server(server_mask mask, std::size_t n) {
  for (; n > 0; --n) mask &= mask - 1;
  return static_cast<std::size_t>(std::countr_zero(mask));
}

/// `copies` of every expert on random feasible servers, experts in random order.
result<void> place_first_copies(packing& state, const placement_options& options) {
  const auto& problem = state.problem();
  random_stream random(options.seed, 0x706f7075);
  std::vector<std::size_t> order(problem.expert_bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::size_t n_left_over = 0;
  for (std::size_t copy = 1; copy <= options.min_copies; ++copy) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    const auto reason = copy == 1 ? placement_reason::mandatory : placement_reason::min_copies;
    for (const auto flat : order) {
      const auto l = flat / problem.n_experts, j = flat % problem.n_experts;
      const auto feasible = memory_feasible(state, l, j);
      if (feasible != 0)
        state.place(
            nth_server(feasible, random.below(static_cast<std::uint64_t>(std::popcount(feasible)))),
            l, j, reason, 0);
      else if (!make_room(state, l, j, reason))
        ++n_left_over;
    }
  }
  if (n_left_over == 0) return {};
  // The deterministic placement fails on the same memory and says by how much.
  state.clear();
  return deploy_mandatory(state, options);
}

/// Spare memory to the replicas with the most activations per byte where they arrive.
void replicate_by_popularity(packing& state, const profile& profile) {
  struct candidate {
    double value;
    std::size_t server, layer, expert;
  };
  const auto& problem = state.problem();
  std::vector<candidate> candidates;
  for (std::size_t m = 0; m < problem.n_servers; ++m)
    for (std::size_t l = 0; l < problem.n_layers; ++l)
      for (std::size_t j = 0; j < problem.n_experts; ++j) {
        const double value = profile.layers[l].activation[j] * problem.arrival_share[m] /
                             static_cast<double>(problem.bytes(l, j));
        if (value > 0 && !state.hosts(m, l, j)) candidates.push_back({value, m, l, j});
      }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.value > b.value; });
  for (const auto& [value, m, l, j] : candidates)
    if (state.free_bytes(m) >= problem.bytes(l, j))
      state.place(m, l, j, placement_reason::replica, value);
}

/// Spare memory to copies in random order.
void replicate_at_random(packing& state, const placement_options& options) {
  const auto& problem = state.problem();
  const auto n_experts = problem.expert_bytes.size();
  random_stream random(options.seed, 0x72616e64);
  std::vector<std::size_t> order(problem.n_servers * n_experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (const auto draw : order) {
    const auto m = draw / n_experts, flat = draw % n_experts;
    const auto l = flat / problem.n_experts, j = flat % problem.n_experts;
    if (!state.hosts(m, l, j) && state.free_bytes(m) >= problem.bytes(l, j))
      state.place(m, l, j, placement_reason::replica, 0);
  }
}

/// Groups of one expert each, for placements that look at no similarity.
std::vector<layer_grouping> singleton_groups(const profile& profile) {
  std::vector<layer_grouping> grouping(profile.n_layers);
  for (std::size_t l = 0; l < profile.n_layers; ++l) {
    auto& layer = grouping[l];
    layer.threshold = 1;
    for (std::uint32_t j = 0; j < profile.n_experts; ++j) {
      layer.groups.push_back({j, {j}});
      layer.group_of.push_back(j);
    }
    layer.representativeness.assign(profile.n_experts, 1);
    layer.importance = profile.layers[l].activation;
  }
  return grouping;
}

}  // namespace

result<plan> place_by_similarity(const profile& profile, const cluster& servers,
                                 const cost_profile& costs, const placement_options& options) {
  if (auto checked = check_options(options); !checked) return checked.error();
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  auto problem =
      make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, options.min_copies);
  if (!problem) return problem.error();
  for (std::size_t l = 0; l < profile.n_layers; ++l)
    problem->grouping.push_back(group_layer(profile.layers[l], profile.layers[l].router_logit,
                                            layer_threshold(l, profile.n_layers, options),
                                            options));
  packing state(*problem);
  if (auto deployed = deploy_mandatory(state, options); !deployed) return deployed.error();
  if (options.replicate) deploy_redundant(state);
  auto made = make_plan(state, "paper");
  made.residence = roaming_residency(problem->n_servers, problem->n_layers);
  return made;
}

namespace {

/// First copies at random, then what `replicate` makes of the memory that is left; no groups, R_l = {access server}.
template <class Replicate>
result<plan> place_singly(const profile& profile, const cluster& servers, const cost_profile& costs,
                          const placement_options& options, const char* name, Replicate replicate) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  auto problem =
      make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, options.min_copies);
  if (!problem) return problem.error();
  problem->grouping = singleton_groups(profile);
  packing state(*problem);
  if (auto placed = place_first_copies(state, options); !placed) return placed.error();
  if (options.replicate) replicate(state);
  auto made = make_plan(state, name);
  made.grouping.clear();
  made.residence = access_residency(problem->n_servers, problem->n_layers);
  return made;
}

}  // namespace

result<plan> place_by_popularity(const profile& profile, const cluster& servers,
                                 const cost_profile& costs, const placement_options& options) {
  return place_singly(profile, servers, costs, options, options.replicate ? "popularity" : "random",
                      [&](packing& state) { replicate_by_popularity(state, profile); });
}

result<plan> place_at_random(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const placement_options& options) {
  return place_singly(profile, servers, costs, options, "random",
                      [&](packing& state) { replicate_at_random(state, options); });
}

}  // namespace ordermoe::planning
