#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "planning/strategies/strategies.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

/// What the tests of rivals plan for.
namespace ordermoe::planning::scenes {

inline const cost_profile costs = instances::small_costs();
inline constexpr std::size_t n_servers = 4, n_layers = 3, n_experts = 8;

inline strategy_options quick() {
  strategy_options options;
  options.search_steps = 30;
  options.dry_run_requests = 0;
  return options;
}

struct scene {
  profile experts = random_profile(n_layers, n_experts, 2, 5);
  cluster servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 2.5, 3);

  strategy make(std::string_view name, const strategy_options& options = quick()) const {
    auto made = make_strategy(name, experts, servers, costs, options);
    BOOST_REQUIRE_MESSAGE(made, name << ": " << (made ? "" : made.error().message));
    return std::move(*made);
  }
};

/// The ways of planning a strategy in a scene, as plans; those that are infeasible are left out.
inline std::vector<plan> planned(std::string_view name, const scene& at,
                                 const strategy_options& options) {
  std::vector<plan> found;
  for (const auto& variant : plan_variants(name, at.experts, at.servers, costs, options)) {
    auto made = make_strategy(name, at.experts, at.servers, costs, variant);
    if (made) found.push_back(std::move(made->plan));
    BOOST_TEST((made || made.error().code == errc::infeasible));
  }
  return found;
}

/// Layers of three experts at top-1, chosen by half, three tenths and two tenths of the tokens. Without one of them, by
/// hand: the damage times 0.5 * 0.4 for expert 0, times 0.3 * 0.1 for 1, times 0.2 * 0.2 for 2; without 1, times
/// 0.2 * 0.3 more for 2.
inline profile worked_out(std::vector<double> damage) {
  auto made = uniform_profile("small", "", damage.size(), 3, 1);
  for (std::size_t l = 0; l < damage.size(); ++l) {
    auto& layer = made.layers[l];
    layer.activation = {0.5, 0.3, 0.2};
    layer.sets = {{{0}, {1}, 0.5}, {{1}, {1}, 0.3}, {{2}, {1}, 0.2}};
    layer.token_gate_regret.values = {0, 0.4, 0.6, 0.1, 0, 0.5, 0.3, 0.2, 0};
    layer.damage[static_cast<std::size_t>(loss_metric::token_gate)] = damage[l];
  }
  return made;
}

/// Servers with room for so many experts.
inline cluster roomy(std::vector<std::int64_t> room, std::vector<double> arrivals,
                     std::size_t n_layers) {
  auto made = instances::drawn_cluster(room.size(), n_layers, 3, 2, 1);
  for (std::size_t m = 0; m < room.size(); ++m) {
    made.servers[m].arrival_share = arrivals[m];
    room[m] *= costs.expert_bytes;
  }
  instances::set_expert_memory(made, room, costs, n_layers);
  return made;
}

using expert_list = std::vector<std::uint32_t>;

/// What a server has of a layer; of its own memory or its host's.
inline expert_list at_server(const plan& placed, std::size_t server, std::size_t layer,
                             bool offloaded) {
  expert_list found;
  for (const auto& each : placed.experts)
    if (each.server.index() == server && each.layer.index() == layer &&
        (each.reason == placement_reason::offload) == offloaded)
      found.push_back(static_cast<std::uint32_t>(each.expert.index()));
  std::ranges::sort(found);
  return found;
}

}  // namespace ordermoe::planning::scenes
