#include "planning/shard_chains.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <limits>
#include <set>

#include "config/random.hpp"
#include "planning/placement.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

const cost_profile costs = instances::small_costs();
constexpr std::size_t n_experts = 4;

/// Servers that are alike, 1 ms from each other, with room for so many experts; a layer takes 1.6 ms.
cluster alike(const std::vector<std::int64_t>& experts, std::size_t n_layers) {
  auto servers = instances::drawn_cluster(experts.size(), n_layers, n_experts, 4, 1);
  std::vector<std::int64_t> room;
  for (const auto n : experts) room.push_back(n * costs.expert_bytes);
  for (auto& server : servers.servers) {
    server.flops_per_s = 5e11;
    server.memory_bandwidth_bytes_per_s = 1e12;
    server.arrival_share = 1.0 / static_cast<double>(experts.size());
  }
  for (std::size_t i = 0; i < servers.links.size(); ++i)
    if (i / experts.size() != i % experts.size()) servers.links[i] = {1e9, 1'000'000};
  instances::set_expert_memory(servers, room, costs, n_layers);
  return servers;
}

/// A cluster where some servers hold no layer, some one, some several.
cluster uneven(std::size_t n_servers, std::size_t n_layers, std::uint64_t seed) {
  random_stream random(seed);
  auto servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 1, seed);
  std::vector<std::int64_t> room;
  for (std::size_t m = 0; m < n_servers; ++m)
    room.push_back(static_cast<std::int64_t>(random.uniform(0, 14)) * costs.expert_bytes);
  instances::set_expert_memory(servers, room, costs, n_layers);
  return servers;
}

/// Every chain over these servers.
void each_chain(const shard_chain_planner& chains,
                const std::function<void(const shard_chain&)>& visit) {
  shard_chain made;
  const std::function<void(std::size_t)> extend = [&](std::size_t left) {
    if (left == 0) {
      visit(made);
      return;
    }
    for (std::size_t m = 0; m < chains.n_servers(); ++m) {
      if (std::ranges::any_of(made, [&](const auto& stage) { return stage.server == m; })) continue;
      for (std::size_t units = 1; units <= std::min(left, chains.capacity(m)); ++units) {
        made.push_back({m, units});
        extend(left - units);
        made.pop_back();
      }
    }
  };
  extend(chains.n_units());
}

void check_valid(const plan& made, const cluster& servers) {
  const auto valid = validate(made, servers, costs);
  BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
}

std::set<std::vector<server_mask>> ways_of(const plan& made) {
  std::set<std::vector<server_mask>> ways;
  for (const auto& homes : made.residence) ways.insert(homes.layers);
  return ways;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shard_chains)

BOOST_AUTO_TEST_CASE(one_chain_of_whole_layers_is_the_best_of_all_chains) {
  std::size_t n_feasible = 0, n_split = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      const auto n_layers = 1 + seed % 5, n_servers = 1 + seed % 4;
      const auto experts = random_profile(n_layers, n_experts, 2, seed);
      const auto servers = uneven(n_servers, n_layers, seed);
      const shard_chain_planner chains(experts, servers, costs, {.units_per_layer = 1});
      double least = std::numeric_limits<double>::infinity();
      each_chain(chains, [&](const shard_chain& chain) {
        const chain_layout layout{{chain}, std::vector<std::size_t>(n_servers, 0)};
        BOOST_REQUIRE(chains.fits(layout));
        least = std::min(least, chains.cost_ns(layout));
      });
      const auto made = place_shard_chains(experts, servers, costs, {.units_per_layer = 1}, 1);
      const auto chain = place_layer_shards(experts, servers, costs);
      BOOST_REQUIRE(made.has_value() == (least < std::numeric_limits<double>::infinity()));
      BOOST_TEST(made.has_value() == chain.has_value());
      if (!made) {
        BOOST_TEST((made.error().code == errc::infeasible));
        continue;
      }
      ++n_feasible;
      n_split += ways_of(made->front()).begin()->front() != ways_of(made->front()).begin()->back();
      check_valid(made->front(), servers);
      BOOST_TEST(made->front().estimated_token_ns == least, boost::test_tools::tolerance(1e-9));
    }
  }
  BOOST_TEST(n_feasible > 30u);
  BOOST_TEST(n_split > 10u);
}

BOOST_AUTO_TEST_CASE(what_a_position_costs_is_what_its_definition_says) {
  const auto experts = random_profile(3, n_experts, 2, 1);
  const auto servers = alike({12, 12}, 3);
  const auto prices = make_cost_model(servers, costs);
  const double layer = prices.attention_ns[0] + 2 * prices.expert_ns[0];
  const double ends = (prices.message(0, 1) + prices.message(1, 0)) / 32;
  const chain_layout in_two{{{{0, 2}, {1, 1}}}, {0, 0}};
  const shard_chain_planner alone(experts, servers, costs, {.units_per_layer = 1});
  const double between = prices.hidden(0, 1) + prices.message(1, 0);
  // Half of the users are at the first server, where text has to come back to, half at the last, from where prompts have to go.
  BOOST_TEST(alone.cost_ns(in_two) == 3 * layer + prices.head_ns[1] + between + ends / 2,
             boost::test_tools::tolerance(1e-12));
  // Two others who do the same: each server's part p of a position takes p * (1 + n), with n = 2 * p * (1 + n) / all.
  const shard_chain_planner loaded(experts, servers, costs,
                                   {.units_per_layer = 1, .concurrency = 3});
  double all = alone.cost_ns(in_two) - ends / 2;
  const double parts[] = {2 * layer, layer + prices.head_ns[1]};
  for (int round = 0; round < 1000; ++round) {
    double next = between;
    for (const double part : parts) next += part / (1 - 2 * part / all);
    all = 0.5 * (all + next);
  }
  BOOST_TEST(loaded.cost_ns(in_two) == all + ends / 2, boost::test_tools::tolerance(1e-3));
  BOOST_TEST(loaded.cost_ns(in_two) > 1.3 * alone.cost_ns(in_two));
}

BOOST_AUTO_TEST_CASE(where_servers_hold_the_whole_model_users_are_dealt_to_all_of_them) {
  const auto experts = random_profile(3, n_experts, 2, 1);
  const auto servers = alike({12, 12, 12}, 3);
  const auto made = place_shard_chains(experts, servers, costs, {.concurrency = 3}, 1);
  BOOST_REQUIRE(made.has_value());
  check_valid(made->front(), servers);
  BOOST_TEST(made->front().experts.size() == 3u * 12);
  BOOST_TEST(ways_of(made->front()).size() == 3u);
  for (const auto& homes : made->front().residence)
    BOOST_TEST((homes.layers == std::vector<server_mask>(3, homes.layers[0])));
  // Alone, everybody goes through one of them.
  const auto alone = place_shard_chains(experts, servers, costs, {}, 1);
  BOOST_REQUIRE(alone.has_value());
  BOOST_TEST(ways_of(alone->front()).size() == 1u);
  BOOST_TEST(alone->front().experts.size() == 12u);
}

BOOST_AUTO_TEST_CASE(a_layer_may_lie_on_two_neighbours_of_a_chain) {
  const auto experts = random_profile(3, n_experts, 2, 3);
  const auto servers = alike({6, 6}, 3);
  // Room for a layer and a half each: whole layers do not fit.
  const auto whole = place_shard_chains(experts, servers, costs, {.units_per_layer = 1}, 1);
  BOOST_REQUIRE(!whole.has_value());
  BOOST_TEST((whole.error().code == errc::infeasible));
  BOOST_TEST(whole.error().message.find("bytes are missing") != std::string::npos);
  const auto made = place_shard_chains(experts, servers, costs, {}, 1);
  BOOST_REQUIRE(made.has_value());
  const auto& placed = made->front();
  check_valid(placed, servers);
  const auto& homes = placed.residence[0].layers;
  const auto first = homes[0], second = all_servers(2) & ~first;
  BOOST_TEST((homes == std::vector<server_mask>{first, first, second}));
  // Of the layer in the middle the half that is chosen most is with its attention.
  const placement_index index(placed);
  const auto& activation = experts.layers[1].activation;
  double least_here = 1, most_there = 0;
  for (std::size_t e = 0; e < n_experts; ++e) {
    if (index.hosts(1, e) == first) least_here = std::min(least_here, activation[e]);
    if (index.hosts(1, e) != first) most_there = std::max(most_there, activation[e]);
  }
  BOOST_TEST(least_here >= most_there);
  for (std::size_t e = 0; e < n_experts; ++e) {
    BOOST_TEST(index.hosts(0, e) == first);
    BOOST_TEST(index.hosts(2, e) == second);
  }
}

BOOST_AUTO_TEST_CASE(a_stage_where_positions_queue_gets_a_copy) {
  const auto experts = random_profile(4, n_experts, 2, 1);
  // The first can hold one layer, the others three each: no second chain has room for layer 0.
  auto servers = alike({4, 12, 12}, 4);
  // So far from each other that a chain over all three costs more than it spares.
  for (auto& link : servers.links) link.latency_ns *= 4;
  for (std::size_t m = 0; m < 3; ++m) servers.servers[m].arrival_share = m == 0 ? 0 : 0.5;
  const auto made = place_shard_chains(experts, servers, costs, {.concurrency = 6}, 1);
  BOOST_REQUIRE(made.has_value());
  const auto& placed = made->front();
  check_valid(placed, servers);
  const placement_index index(placed);
  std::size_t n_copies = 0;
  for (std::size_t l = 0; l < 4; ++l)
    for (std::size_t e = 0; e < n_experts; ++e)
      n_copies += static_cast<std::size_t>(std::popcount(index.hosts(l, e))) - 1;
  BOOST_TEST(n_copies >= 8u);
  BOOST_TEST(ways_of(placed).size() > 1u);
  BOOST_TEST(placed.experts.size() <= 28u);
  const shard_chain_planner chains(experts, servers, costs, {.concurrency = 6});
  double least = std::numeric_limits<double>::infinity();
  each_chain(chains, [&](const shard_chain& chain) {
    least = std::min(least, chains.cost_ns({{chain}, {0, 0, 0}}));
  });
  BOOST_TEST(placed.estimated_token_ns < 0.95 * least);
}

BOOST_AUTO_TEST_CASE(a_search_that_is_stopped_gives_the_best_found_so_far) {
  constexpr auto never = std::numeric_limits<std::size_t>::max();
  const auto experts = random_profile(4, n_experts, 2, 1);
  // One where only a copy of a stage, which small changes make, is best.
  std::vector<cluster> all{alike({4, 12, 12}, 4)};
  for (auto& link : all[0].links) link.latency_ns *= 4;
  for (std::size_t m = 0; m < 3; ++m) all[0].servers[m].arrival_share = m == 0 ? 0 : 0.5;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    all.push_back(instances::drawn_cluster(5, 4, n_experts, 2.5, seed));
  for (const auto& servers : all) {
    // The cost of the best, and how often the search asked.
    const auto stopped_after = [&](std::size_t most_asked) {
      std::size_t n_asked = 0;
      shard_chain_options options{.concurrency = 6};
      options.should_stop = [&] { return ++n_asked > most_asked; };
      const auto made = place_shard_chains(experts, servers, costs, options, 1);
      BOOST_REQUIRE(made.has_value());
      check_valid(made->front(), servers);
      return std::pair(made->front().estimated_token_ns, n_asked);
    };
    const auto [whole, n_whole] = stopped_after(never);
    const auto [first, n_first] = stopped_after(0);
    const auto [half, n_half] = stopped_after(n_whole / 2);
    BOOST_TEST(whole <= half);
    BOOST_TEST(half <= first);
    if (&servers == &all[0]) BOOST_TEST(whole < first);
    // It ends soon after.
    BOOST_TEST(n_first < n_whole / 4);
    BOOST_TEST(n_half < n_whole * 3 / 4);
  }
}

BOOST_AUTO_TEST_CASE(memory_is_counted_once_where_chains_overlap) {
  const auto experts = random_profile(4, n_experts, 2, 1);
  const auto servers = alike({8, 8, 8}, 4);
  const shard_chain_planner chains(experts, servers, costs, {.units_per_layer = 1});
  BOOST_TEST(chains.fits({{{{0, 2}, {1, 2}}, {{0, 2}, {2, 2}}}, {0, 0, 1}}));
  // Layers 0 and 1 for one, 2 and 3 for the other.
  BOOST_TEST(!chains.fits({{{{0, 2}, {1, 2}}, {{2, 2}, {0, 2}}}, {0, 0, 1}}));
}

BOOST_AUTO_TEST_CASE(every_change_of_a_layout_is_a_layout_that_fits) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto experts = random_profile(5, n_experts, 2, seed);
    const auto servers = instances::drawn_cluster(4, 5, n_experts, 2.5, seed);
    const shard_chain_options options{.units_per_layer = 2, .concurrency = 3};
    const shard_chain_planner chains(experts, servers, costs, options);
    BOOST_TEST(chains.units_per_layer() == 2u);
    auto layouts = chains.search(3);
    BOOST_REQUIRE(!layouts.empty());
    std::size_t n_checked = 0;
    for (const auto& layout : layouts) {
      for (const auto& next : chains.neighbours(layout)) {
        ++n_checked;
        BOOST_TEST(chains.fits(next));
        for (const auto& chain : next.chains) {
          std::size_t units = 0;
          std::set<std::size_t> servers_of;
          for (const auto& stage : chain) {
            units += stage.units;
            BOOST_TEST(stage.units > 0u);
            BOOST_TEST(servers_of.insert(stage.server).second);
          }
          BOOST_TEST(units == 10u);
        }
        for (const auto chain : next.chain_of) BOOST_TEST(chain < next.chains.size());
        check_valid(chains.to_plan(next), servers);
      }
    }
    BOOST_TEST(n_checked > 20u);
    // No single change is better than the best.
    for (const auto& next : chains.neighbours(layouts.front()))
      BOOST_TEST(chains.cost_ns(next) >= chains.cost_ns(layouts.front()) * (1 - 1e-9));
  }
}

BOOST_AUTO_TEST_CASE(users_are_dealt_so_that_no_other_chain_is_better_for_one_server) {
  std::size_t n_dealt = 0, n_spread = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed);
      const std::size_t n_servers = 2 + seed % 7, n_layers = 4;
      const auto experts = random_profile(n_layers, n_experts, 2, seed);
      const auto servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 8, seed);
      const shard_chain_planner chains(
          experts, servers, costs,
          {.units_per_layer = 1, .concurrency = 1 + random.uniform(0, 40)});
      // One to nine chains, each over one or two servers.
      chain_layout layout;
      for (std::size_t c = 0; c < 1 + seed % 9; ++c) {
        const auto first = random.below(n_servers),
                   second = (first + 1 + random.below(n_servers - 1)) % n_servers;
        const auto units = 1 + random.below(n_layers);
        auto& chain = layout.chains.emplace_back();
        chain.push_back({first, units});
        if (units < n_layers) chain.push_back({second, n_layers - units});
      }
      chains.assign(layout);
      BOOST_REQUIRE(layout.chain_of.size() == n_servers);
      const double dealt = chains.cost_ns(layout);
      for (std::size_t a = 0; a < n_servers; ++a)
        for (std::size_t c = 0; c < layout.chains.size(); ++c) {
          auto other = layout;
          other.chain_of[a] = c;
          BOOST_TEST(chains.cost_ns(other) >= dealt * (1 - 1e-9));
          ++n_dealt;
        }
      n_spread += std::set<std::size_t>(layout.chain_of.begin(), layout.chain_of.end()).size() > 1;
    }
  }
  BOOST_TEST(n_dealt > 500u);
  BOOST_TEST(n_spread >= 10u);
}

BOOST_AUTO_TEST_CASE(on_many_servers_chains_are_found_among_neighbours) {
  const auto experts = random_profile(6, n_experts, 2, 1);
  const auto servers = instances::drawn_cluster(24, 6, n_experts, 3, 2);
  const auto made = place_shard_chains(experts, servers, costs, {.concurrency = 4}, 3);
  BOOST_REQUIRE(made.has_value());
  BOOST_TEST(made->size() == 3u);
  for (const auto& one : *made) check_valid(one, servers);
  for (std::size_t i = 1; i < made->size(); ++i)
    BOOST_TEST((*made)[i - 1].estimated_token_ns <= (*made)[i].estimated_token_ns);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
