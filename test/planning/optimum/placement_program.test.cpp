#include "planning/optimum/placement_program.hpp"

#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "planning/infinity.hpp"
#include "planning/search/search.hpp"
#include "planning/strategies/strategies.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;
using namespace ordermoe::planning::instances;

namespace {

/// Two servers, two layers, three experts, and room for some of them.
struct tiny {
  profile experts;
  cluster servers;

  tiny(std::size_t top_k, std::uint64_t seed) {
    experts = random_profile(2, 3, top_k, seed);
    servers = drawn_cluster(2, 2, 3, 2, seed);
    random_stream random(seed, 0xe7);
    const auto first = static_cast<std::int64_t>(2 + random.below(4));
    const auto second =
        static_cast<std::int64_t>(6 - std::min<std::int64_t>(first, 5) + random.below(3));
    set_expert_memory(servers, {first * 1000, second * 1000}, small_costs(), 2);
  }
};

plan plan_of(std::uint32_t bits, const residence_path& path) {
  plan placed;
  placed.n_servers = 2;
  placed.n_layers = 2;
  placed.n_experts = 3;
  for (std::size_t i = 0; i < 12; ++i)
    if ((bits >> i) & 1u)
      placed.experts.push_back({server_id{i / 6}, layer_id{i / 3 % 2}, expert_id{i % 3}});
  residency members;
  for (const auto s : path) members.layers.push_back(server_bit(s));
  placed.residence.assign(2, members);
  return placed;
}

/// Whether it is no placement: (c.1) or (c.2).
bool fails(const placement_model& model, std::uint32_t bits) {
  const std::uint32_t first = bits & 63u, second = bits >> 6;
  return static_cast<std::size_t>(std::popcount(first)) > model.room()[0] ||
         static_cast<std::size_t>(std::popcount(second)) > model.room()[1] ||
         (first | second) != 63;
}

/// The least that the planner estimates for any placement and any path.
double enumerated(const tiny& of, const placement_model& model, program_paths paths) {
  double least = infinity;
  for (std::uint32_t bits = 0; bits < 4096; ++bits) {
    if (fails(model, bits)) continue;
    if (paths == program_paths::at_access) {
      double sum = 0;
      for (std::uint8_t a = 0; a < 2; ++a)
        sum += of.servers.servers[a].arrival_share *
               estimate_trajectory(of.experts, plan_of(bits, {a, a}), of.servers, small_costs(), 0,
                                   infinity)
                   .token_ns;
      least = std::min(least, sum);
      continue;
    }
    for (std::uint8_t s = 0; s < 2; ++s)
      for (std::uint8_t t = 0; t < 2; ++t)
        least = std::min(least, estimate_trajectory(of.experts, plan_of(bits, {s, t}), of.servers,
                                                    small_costs(), 0, infinity)
                                    .token_ns);
  }
  return least;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(placement_program)

BOOST_AUTO_TEST_CASE(the_optimum_is_that_of_every_placement_by_the_planners_own_estimate) {
  std::size_t gaps = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    for (const auto paths : {program_paths::free, program_paths::at_access})
      BOOST_TEST_CONTEXT("seed " << seed << (paths == program_paths::free ? " free" : " access")) {
        const tiny drawn(1 + seed % 2, seed);
        placement_model model(drawn.experts, drawn.servers, small_costs());
        const auto expected = enumerated(drawn, model, paths);
        program_options options;
        options.paths = paths;
        const auto found = optimal_placement(model, drawn.servers, options);
        BOOST_REQUIRE_MESSAGE(found.has_value(), (found ? "" : found.error().message));
        BOOST_TEST(found->is_exact);
        BOOST_TEST(found->ended_by == "optimum");
        BOOST_TEST(std::abs(found->ns / expected - 1) < 1e-6);
        BOOST_TEST(found->bound_ns <= found->ns);
        BOOST_TEST(found->bound_ns >= expected * (1 - 2e-6));
        BOOST_TEST(found->relaxed_ns <= found->ns * (1 + 1e-6));
        BOOST_TEST(found->columns == count_columns(model, paths));
        gaps += found->relaxed_ns < found->ns * 0.999;
      }
  BOOST_TEST(gaps > 0u);
}

BOOST_AUTO_TEST_CASE(no_plan_is_better_and_a_bound_is_below_the_optimum) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      const auto experts = random_profile(3, 4, 2, seed);
      const auto servers = drawn_cluster(3, 3, 4, 1.6, seed);
      placement_model model(experts, servers, small_costs());
      program_options options;
      const auto free = optimal_placement(model, servers, options);
      options.paths = program_paths::at_access;
      const auto at_access = optimal_placement(model, servers, options);
      BOOST_REQUIRE_MESSAGE(free.has_value() && at_access.has_value(), "both are solved");
      BOOST_TEST(free->is_exact);
      BOOST_TEST(at_access->is_exact);
      for (const char* name : {"exact", "layer-shards", "shard-chains", "popularity", "similarity",
                               "prism", "random", "ordermoe"}) {
        strategy_options planning;
        planning.search_steps = 300;
        const auto made = make_strategy(name, experts, servers, small_costs(), planning);
        if (!made) continue;  // Whole layers may not fit.
        BOOST_TEST_CONTEXT(name) {
          BOOST_TEST(free->ns <= model.plan_ns(made->plan) * (1 + 1e-6));
          BOOST_TEST(at_access->ns <= model.at_access_ns(model.hosts_of(made->plan)) * (1 + 1e-6));
        }
      }
      // What is not solved is bounded.
      options.paths = program_paths::free;
      options.max_columns = 10;
      const auto large = optimal_placement(model, servers, options);
      BOOST_REQUIRE(large.has_value());
      BOOST_TEST(large->ended_by == "size");
      BOOST_TEST(!large->is_exact);
      BOOST_TEST(large->hosts.empty());
      BOOST_TEST(large->bound_ns <= free->ns);
      options.max_columns = 200'000;
      options.node_limit = 0;
      options.known = free->hosts;
      const auto stopped = optimal_placement(model, servers, options);
      BOOST_REQUIRE_MESSAGE(stopped.has_value(), (stopped ? "" : stopped.error().message));
      BOOST_TEST(stopped->bound_ns <= free->ns * (1 + 1e-6));
      BOOST_TEST(stopped->ns <= free->ns * (1 + 1e-6));
      BOOST_TEST(stopped->bound_ns >= large->bound_ns * (1 - 1e-6));
    }
}

BOOST_AUTO_TEST_CASE(what_has_no_room_is_said_with_its_constraints) {
  auto experts = random_profile(2, 3, 2, 1);
  for (auto& layer : experts.layers)
    layer.copies.push_back({precision::int8, std::vector<double>(3, 0.1), 0.5, 0});
  auto servers = drawn_cluster(2, 2, 3, 2, 1);
  set_expert_memory(servers, {2999, 2000}, small_costs(), 2);
  placement_model model(experts, servers, small_costs());
  BOOST_TEST(model.room() == std::vector<std::size_t>({2, 2}));
  const auto refused = optimal_placement(model, servers, {});
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
  for (const char* words : {"(c.1)", "(c.2)", "room for 4 experts", "expected 6"})
    BOOST_TEST(refused.error().message.find(words) != std::string::npos, refused.error().message);
  // A server that keeps coarser copies has no room for others.
  set_expert_memory(servers, {6000, 6000}, small_costs(), 2);
  servers.servers[0].expert_precision = precision::int8;
  placement_model coarser(experts, servers, small_costs());
  BOOST_TEST(coarser.room() == std::vector<std::size_t>({0, 6}));
  const auto one = optimal_placement(coarser, servers, {});
  BOOST_REQUIRE_MESSAGE(one.has_value(), (one ? "" : one.error().message));
  BOOST_TEST(std::all_of(one->hosts.begin(), one->hosts.end(), [](auto on) { return on == 2; }));
}

BOOST_AUTO_TEST_SUITE_END()
