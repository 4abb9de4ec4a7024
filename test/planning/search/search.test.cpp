#include "planning/search/search.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "planning/infinity.hpp"
#include "planning/placement.hpp"
#include "planning/search/trajectory.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;
using namespace ordermoe::planning::instances;

namespace {

search_options few_steps(double quality_nats, std::size_t n_steps = 2000) {
  search_options options;
  options.quality_nats = quality_nats;
  options.n_steps = n_steps;
  options.kv_price = 0;
  return options;
}

/// The least expected time over every placement that fills the servers and every residency.
double exhaustive_optimum(const profile& experts, const cluster& servers, const cost_profile& costs,
                          const std::vector<std::size_t>& capacity, double price) {
  const std::size_t n_servers = servers.size(), n_items = experts.n_layers * experts.n_experts;
  const trajectory_model model(experts, make_cost_model(servers, costs));
  trajectory problem(model);
  problem.set_price(price);
  std::vector<std::uint32_t> holds(n_servers);
  std::vector<server_mask> hosts(n_items), members(experts.n_layers);
  double best = infinity;
  const auto residencies = [&](auto&& self, std::size_t layer) -> void {
    if (layer == experts.n_layers) {
      problem.rebuild(hosts, members);
      best = std::min(best, problem.solve_cost());
      return;
    }
    for (server_mask mask = 1; mask < server_mask{1} << n_servers; ++mask) {
      members[layer] = mask;
      self(self, layer + 1);
    }
  };
  const auto placements = [&](auto&& self, std::size_t server) -> void {
    if (server == n_servers) {
      for (std::size_t item = 0; item < n_items; ++item) {
        hosts[item] = 0;
        for (std::size_t m = 0; m < n_servers; ++m)
          hosts[item] |= server_mask{(holds[m] >> item) & 1u} << m;
        if (hosts[item] == 0) return;
      }
      residencies(residencies, 0);
      return;
    }
    for (std::uint32_t set = 0; set < 1u << n_items; ++set) {
      if (static_cast<std::size_t>(std::popcount(set)) != capacity[server]) continue;
      holds[server] = set;
      self(self, server + 1);
    }
  };
  placements(placements, 0);
  return best;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(search)

BOOST_AUTO_TEST_CASE(plan_is_valid_and_never_worse_than_its_starting_points) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::size_t n_servers = 4 + seed % 4;
    const auto experts = random_profile(4, 6, 1 + seed % 2, seed);
    const auto servers = drawn_cluster(n_servers, 4, 6, 2.0, seed);
    const auto costs = small_costs();
    for (const double nats : {0.0, 0.02, infinity}) {
      auto options = few_steps(nats, 400);
      options.concurrency = seed % 5 == 0 ? 8 : 1;
      const auto placed = place_by_search(experts, servers, costs, options);
      BOOST_TEST_CONTEXT("seed " << seed << " nats " << nats) {
        BOOST_REQUIRE(placed.has_value());
        BOOST_TEST(validate(*placed, servers, costs).has_value());
        BOOST_TEST(
            estimate_plan(experts, *placed, servers, costs, options) == placed->estimated_token_ns,
            boost::test_tools::tolerance(1e-6));
        std::vector<result<plan>> starts;
        starts.push_back(place_by_popularity(experts, servers, costs, {}));
        starts.push_back(place_by_similarity(experts, servers, costs, {}));
        starts.push_back(place_layer_shards(experts, servers, costs));
        std::size_t n_met = 0;
        for (const auto& start : starts) {
          if (!start) continue;
          ++n_met;
          BOOST_TEST(placed->estimated_token_ns <=
                     estimate_plan(experts, *start, servers, costs, options) * (1 + 1e-9));
        }
        BOOST_TEST(n_met >= 2u);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(
    servers_that_keep_experts_coarser_hold_more_and_every_expert_is_kept_as_it_is) {
  std::size_t n_placed = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed)
    for (const auto& [n_experts, top_k] : {std::pair<std::size_t, std::size_t>{6, 2}, {20, 4}}) {
      auto experts = random_profile(4, n_experts, top_k, seed);
      auto servers = drawn_cluster(6, 4, n_experts, 4.0, seed);
      const auto costs = small_costs();
      const auto options = few_steps(0.05, 400);
      const auto plain = place_by_search(experts, servers, costs, options);
      keep_coarser(servers, experts, seed);
      auto placed = place_by_search(experts, servers, costs, options);
      BOOST_TEST_CONTEXT("seed " << seed << ", " << n_experts << " experts") {
        BOOST_TEST_REQUIRE(plain.has_value());
        // Two servers of six may have too little memory for a copy of every expert.
        if (!placed) {
          BOOST_TEST((placed.error().code == errc::infeasible), placed.error().message);
          continue;
        }
        ++n_placed;
        note_precisions(*placed, servers);
        const auto valid = validate(*placed, servers, costs);
        BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
        BOOST_TEST(placed->experts.size() > plain->experts.size());
        BOOST_TEST(
            estimate_plan(experts, *placed, servers, costs, options) == placed->estimated_token_ns,
            boost::test_tools::tolerance(1e-6));
        const auto again = parse_plan(plan_json(*placed), "plan.json");
        BOOST_TEST_REQUIRE(again.has_value());
        BOOST_TEST((again->expert_precision == placed->expert_precision));
        // Without the precisions it is not a plan for these servers.
        auto bare = *placed;
        bare.expert_precision.clear();
        BOOST_TEST(!validate(bare, servers, costs).has_value());
      }
    }
  BOOST_TEST(n_placed >= 8u);
}

BOOST_AUTO_TEST_CASE(a_precision_that_the_profile_does_not_have_is_refused) {
  const auto experts = random_profile(2, 4, 2, 1);
  auto servers = drawn_cluster(3, 2, 4, 2.0, 1);
  servers.servers[1].expert_precision = precision::int4;
  const auto placed = place_by_search(experts, servers, small_costs(), few_steps(0.01, 50));
  BOOST_TEST_REQUIRE(!placed.has_value());
  BOOST_TEST((placed.error().code == errc::mismatch));
  BOOST_TEST(placed.error().message.find("int4") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(tiny_instances_are_solved_to_the_exhaustive_optimum) {
  const auto costs = small_costs();
  const std::vector<std::size_t> capacity{3, 3, 2};
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const auto experts = random_profile(2, 3, 1 + seed % 2, seed);
    auto servers = drawn_cluster(3, 2, 3, 2.0, seed);
    set_expert_memory(servers, {3000, 3000, 2000}, costs, 2);
    for (const double nats : {0.0, infinity}) {
      const double optimum =
          exhaustive_optimum(experts, servers, costs, capacity, nats == 0 ? infinity : 0);
      const auto placed = place_by_search(experts, servers, costs, few_steps(nats, 20000));
      BOOST_REQUIRE(placed.has_value());
      BOOST_TEST_CONTEXT("seed " << seed << " nats " << nats)
      BOOST_TEST(placed->estimated_token_ns == optimum, boost::test_tools::tolerance(1e-5));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_larger_budget_is_never_slower) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto experts = random_profile(4, 6, 2, seed);
    const auto servers = drawn_cluster(6, 4, 6, 2.0, seed);
    const auto costs = small_costs();
    const auto fixed = place_by_search(experts, servers, costs, few_steps(0.02));
    BOOST_REQUIRE(fixed.has_value());
    double of_fixed = infinity, of_searched = infinity;
    for (const double nats : {0.0, 0.005, 0.02, 0.1, infinity}) {
      const double estimate = estimate_plan(experts, *fixed, servers, costs, few_steps(nats));
      BOOST_TEST(estimate <= of_fixed * (1 + 1e-6));
      of_fixed = estimate;
      const auto searched = place_by_search(experts, servers, costs, few_steps(nats, 6000));
      BOOST_REQUIRE(searched.has_value());
      BOOST_TEST_CONTEXT("seed " << seed << " nats " << nats)
      BOOST_TEST(searched->estimated_token_ns <= of_searched * (1 + 1e-6));
      of_searched = searched->estimated_token_ns;
    }
  }
}

BOOST_AUTO_TEST_CASE(a_plan_whose_tokens_may_leave_slots_out_is_faster_with_a_budget_alone) {
  const auto costs = small_costs();
  std::size_t n_faster = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto experts = random_profile(4, 6, 2, seed);
    const auto servers = drawn_cluster(6, 4, 6, 2.0, seed);
    const auto placed = place_by_search(experts, servers, costs, few_steps(0.02, 400));
    BOOST_REQUIRE(placed.has_value());
    for (const double nats : {0.0, 0.02, 0.5, infinity}) {
      auto options = few_steps(nats);
      const double whole = estimate_plan(experts, *placed, servers, costs, options);
      options.may_leave_out = true;
      const double leaves = estimate_plan(experts, *placed, servers, costs, options);
      BOOST_TEST_CONTEXT("seed " << seed << " nats " << nats) {
        BOOST_TEST(leaves <= whole * (1 + 1e-9));
        if (nats == 0) BOOST_TEST(leaves == whole);
      }
      // Where nothing costs, one expert alone runs: two at one server take longer.
      n_faster += leaves < whole * 0.999;
    }
  }
  BOOST_TEST(n_faster >= 6u);
}

BOOST_AUTO_TEST_CASE(the_price_of_a_budget_lies_between_policies_that_keep_it_and_exceed_it) {
  const auto costs = small_costs();
  std::size_t n_between = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto experts = random_profile(4, 6, 2, seed);
    const auto servers = drawn_cluster(6, 4, 6, 2.0, seed);
    const auto placed = place_by_search(experts, servers, costs, few_steps(0.05, 400));
    BOOST_REQUIRE(placed.has_value());
    const double price = price_of_budget(experts, *placed, servers, costs, 0, few_steps(0.05));
    if (price <= 0) continue;
    ++n_between;
    const auto spends =
        estimate_trajectory(experts, *placed, servers, costs, 0, price * (1 - 1e-6));
    const auto saves = estimate_trajectory(experts, *placed, servers, costs, 0, price * (1 + 1e-6));
    BOOST_TEST(spends.token_nats >= 0.05 * (1 - 1e-6));
    BOOST_TEST(saves.token_nats <= 0.05 * (1 + 1e-6));
    BOOST_TEST(spends.token_ns <= placed->estimated_token_ns * (1 + 1e-6));
    BOOST_TEST(saves.token_ns >= placed->estimated_token_ns * (1 - 1e-6));
  }
  BOOST_TEST(n_between >= 3u);
}

BOOST_AUTO_TEST_CASE(the_same_seed_gives_the_same_plan) {
  const auto experts = random_profile(4, 6, 2, 9);
  const auto servers = drawn_cluster(6, 4, 6, 2.0, 9);
  const auto once = place_by_search(experts, servers, small_costs(), few_steps(0.02));
  const auto twice = place_by_search(experts, servers, small_costs(), few_steps(0.02));
  BOOST_REQUIRE((once && twice));
  BOOST_TEST(plan_json(*once) == plan_json(*twice));
}

BOOST_AUTO_TEST_CASE(every_expert_has_the_copies_that_were_asked_for) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const auto experts = random_profile(4, 6, 2, seed);
    const auto servers = drawn_cluster(6, 4, 6, 2.5, seed);
    auto options = few_steps(0.05);
    options.min_copies = 2;
    const auto placed = place_by_search(experts, servers, small_costs(), options);
    BOOST_REQUIRE(placed.has_value());
    const placement_index index(*placed);
    for (std::size_t l = 0; l < 4; ++l) {
      for (std::size_t e = 0; e < 6; ++e) BOOST_TEST(std::popcount(index.hosts(l, e)) >= 2);
    }
  }
}

BOOST_AUTO_TEST_CASE(planning_for_a_load_never_loses_to_planning_for_one_request_and_often_wins) {
  const auto costs = *named_cost_profile("mixtral-8x7b");
  std::size_t n_won = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const auto experts = random_profile(4, 6, 2, seed);
    draw_options draw;
    draw.n_servers = 6;
    draw.seed = seed;
    draw.costs = costs;
    draw.n_layers = 4;
    draw.n_experts = 6;
    const auto servers = draw_cluster(draw);
    auto loaded = few_steps(0.05, 3000);
    loaded.concurrency = 16;
    const auto alone = place_by_search(experts, servers, costs, few_steps(0.05, 3000));
    const auto many = place_by_search(experts, servers, costs, loaded);
    BOOST_REQUIRE((alone && many));
    const double with = estimate_plan(experts, *many, servers, costs, loaded);
    const double without = estimate_plan(experts, *alone, servers, costs, loaded);
    BOOST_TEST_CONTEXT("seed " << seed) BOOST_TEST(with <= without * (1 + 1e-9));
    n_won += with < 0.98 * without ? 1 : 0;
  }
  BOOST_TEST(n_won >= 2u);
}

BOOST_AUTO_TEST_CASE(many_experts_are_planned_within_all_limits_and_better_than_by_layer_shards) {
  const auto costs = small_costs();
  double of_shards = 0, of_search = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const auto experts = random_profile(6, 24, 3 + seed % 3, seed);
    const auto servers = drawn_cluster(5, 6, 24, seed % 2 == 0 ? 3.0 : 1.6, seed);
    auto options = few_steps(seed == 1 ? 0.0 : 0.02, 600);
    options.min_copies = seed % 2 == 0 ? 2 : 1;
    options.concurrency = seed == 3 ? 4 : 1;
    const auto placed = place_by_search(experts, servers, costs, options);
    BOOST_TEST_CONTEXT("seed " << seed) {
      BOOST_REQUIRE(placed.has_value());
      BOOST_TEST(validate(*placed, servers, costs).has_value());
      const placement_index index(*placed);
      for (std::size_t l = 0; l < 6; ++l)
        for (std::size_t e = 0; e < 24; ++e)
          BOOST_TEST_REQUIRE(static_cast<std::size_t>(std::popcount(index.hosts(l, e))) >=
                             options.min_copies);
      for (std::size_t m = 0; m < 5; ++m)
        BOOST_TEST(placed->expert_bytes_used[m] <= placed->expert_bytes_limit[m]);
      // Queues are solved to 1e-5 only (estimate_queues).
      BOOST_TEST(
          estimate_plan(experts, *placed, servers, costs, options) == placed->estimated_token_ns,
          boost::test_tools::tolerance(options.concurrency > 1 ? 1e-5 : 1e-6));
      const auto again = place_by_search(experts, servers, costs, options);
      BOOST_TEST(plan_json(*again) == plan_json(*placed));
      const auto shards = place_layer_shards(experts, servers, costs);
      BOOST_REQUIRE(shards.has_value());
      const double start = estimate_plan(experts, *shards, servers, costs, options);
      BOOST_TEST(placed->estimated_token_ns <= start * (1 + 1e-9));
      of_shards += start;
      of_search += placed->estimated_token_ns;
    }
  }
  BOOST_TEST(of_search < 0.9 * of_shards);
}

BOOST_AUTO_TEST_CASE(a_cluster_that_is_too_small_is_infeasible) {
  const auto experts = random_profile(3, 4, 2, 1);
  const auto servers = drawn_cluster(4, 3, 4, 0.7, 1);
  const auto placed = place_by_search(experts, servers, small_costs(), {});
  BOOST_REQUIRE(!placed.has_value());
  BOOST_TEST(static_cast<int>(placed.error().code) == static_cast<int>(errc::infeasible));
}

BOOST_AUTO_TEST_CASE(a_search_that_is_stopped_returns_the_best_plan_so_far) {
  const auto experts = random_profile(4, 6, 2, 2);
  const auto servers = drawn_cluster(6, 4, 6, 2.0, 2);
  auto options = few_steps(0, 1'000'000'000);
  options.should_stop = [] { return true; };
  const auto placed = place_by_search(experts, servers, small_costs(), options);
  BOOST_REQUIRE(placed.has_value());
  BOOST_TEST(validate(*placed, servers, small_costs()).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
