#include "planning/serving/two_plans.hpp"

#include <boost/test/unit_test.hpp>

#include "config/random.hpp"
#include "planning/strategies/strategies.hpp"
#include "test/support/random_profile.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

constexpr std::size_t n_layers = 4, n_experts = 6;

/// A drawn cluster and two plans for it.
struct two {
  cluster servers;
  cost_profile costs = *named_cost_profile("mixtral-8x7b");
  planning::plan before, after;

  two(const std::string& from, const std::string& to, double memory_ratio, std::uint64_t seed,
      std::size_t n_servers = 4) {
    draw_options draw;
    draw.n_servers = n_servers;
    draw.seed = seed;
    draw.n_layers = n_layers;
    draw.n_experts = n_experts;
    draw.memory_ratio = memory_ratio;
    draw.costs = costs;
    servers = draw_cluster(draw);
    before = made(from, seed);
    after = made(to, seed + 1);
    before.epoch = 7;
  }

  planning::plan made(const std::string& strategy, std::uint64_t seed) const {
    const auto profile = planning::random_profile(n_layers, n_experts, 2, seed);
    planning::strategy_options options;
    options.search_steps = 100;
    auto plan = planning::make_strategy(strategy, profile, servers, costs, options);
    BOOST_REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().message));
    return plan->plan;
  }
  bool fit(const planning::plan& one, const planning::plan& other) const {
    return bool(serving::check_both_fit(one, other, servers, costs));
  }
};

bool same_experts(const planning::plan& a, const planning::plan& b) {
  const planning::placement_index left(a), right(b);
  for (std::size_t layer = 0; layer < n_layers; ++layer)
    for (std::size_t expert = 0; expert < n_experts; ++expert)
      if (left.hosts(layer, expert) != right.hosts(layer, expert)) return false;
  return a.experts.size() == b.experts.size();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(two_plans)

BOOST_AUTO_TEST_CASE(experts_that_both_plans_place_on_a_server_count_once) {
  const two world("layer-shards", "layer-shards", 4, 1);
  const auto same = serving::bytes_of_both(world.before, world.before, world.servers, world.costs);
  BOOST_TEST(same == world.before.expert_bytes_used, boost::test_tools::per_element());
  const auto both = serving::bytes_of_both(world.before, world.after, world.servers, world.costs);
  const planning::placement_index first(world.before), second(world.after);
  for (std::size_t m = 0; m < world.servers.size(); ++m) {
    std::int64_t n = 0;
    for (std::size_t layer = 0; layer < n_layers; ++layer)
      for (std::size_t expert = 0; expert < n_experts; ++expert)
        n += first.hosts(m, layer, expert) || second.hosts(m, layer, expert);
    BOOST_TEST(both[m] == n * expert_bytes(world.servers.servers[m], world.costs));
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_names_the_server_that_lacks_most) {
  const two world("exact", "paper", 1.3, 3);
  BOOST_TEST(!world.fit(world.before, world.after));
  const auto refused =
      serving::check_both_fit(world.before, world.after, world.servers, world.costs);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code == errc::infeasible));
  const auto bytes = serving::bytes_of_both(world.before, world.after, world.servers, world.costs);
  std::size_t worst = 0;
  for (std::size_t m = 1; m < bytes.size(); ++m)
    if (bytes[m] - world.after.expert_bytes_limit[m] >
        bytes[worst] - world.after.expert_bytes_limit[worst])
      worst = m;
  BOOST_TEST(refused.error().message.find(world.servers.servers[worst].name) != std::string::npos,
             refused.error().message);
  BOOST_TEST(world.fit(world.before, world.before));
}

BOOST_AUTO_TEST_CASE(plans_that_fit_together_follow_one_another_at_once) {
  const two world("layer-shards", "exact", 20, 2);
  const auto way = serving::plans_between(world.before, world.after, world.servers, world.costs);
  BOOST_REQUIRE_EQUAL(way.size(), 1u);
  BOOST_TEST(way[0].epoch == 8u);
  BOOST_TEST(same_experts(way[0], world.after));
}

BOOST_AUTO_TEST_CASE(any_two_that_follow_one_another_fit_and_the_last_is_the_one_that_was_wanted) {
  std::size_t ways = 0, longest = 0, none = 0;
  const auto range = test::seeds(60);
  for (auto seed = range.first; seed <= range.last; ++seed)
    for (const auto& [from, to] : {std::pair{"exact", "layer-shards"},
                                   {"layer-shards", "exact"},
                                   {"exact", "paper"},
                                   {"ordermoe", "exact"}}) {
      random_stream draws(seed, 2);
      // Whole layers need more room.
      const bool in_layers =
          std::string(from) == "layer-shards" || std::string(to) == "layer-shards";
      const two world(from, to, (in_layers ? 2.2 : 1.15) + draws.unit(), seed, 2 + draws.below(4));
      const auto way =
          serving::plans_between(world.before, world.after, world.servers, world.costs);
      BOOST_TEST_CONTEXT("seed " << seed << ", " << from << " to " << to) {
        none += way.empty();
        if (way.empty()) continue;
        ++ways;
        longest = std::max(longest, way.size());
        const auto* last = &world.before;
        for (const auto& next : way) {
          const auto valid = planning::validate(next, world.servers, world.costs);
          BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
          BOOST_TEST(world.fit(*last, next));
          BOOST_TEST(next.epoch == last->epoch + 1);
          last = &next;
        }
        BOOST_TEST(same_experts(*last, world.after));
        BOOST_TEST((last->residence[0].layers == world.after.residence[0].layers));
      }
    }
  BOOST_TEST_MESSAGE("ways " << ways << ", longest " << longest << ", none " << none);
  BOOST_TEST(ways > 0u);
  BOOST_TEST(longest > 2u);
}

BOOST_AUTO_TEST_CASE(where_no_way_is_found_there_is_none) {
  // Two servers change all their experts, and have no room for one more.
  two world("exact", "exact", 3, 1, 2);
  const auto by_hand = [&](std::size_t first, std::int64_t room) {
    auto plan = world.before;
    plan.experts.clear();
    plan.expert_bytes_used.assign(2, 0);
    for (std::size_t layer = 0; layer < n_layers; ++layer)
      for (std::size_t expert = 0; expert < n_experts; ++expert) {
        planning::placed_expert each;
        each.server = server_id{static_cast<std::uint32_t>((expert + first) % 2)};
        each.layer = layer_id{static_cast<std::uint32_t>(layer)};
        each.expert = expert_id{static_cast<std::uint32_t>(expert)};
        plan.experts.push_back(each);
        plan.expert_bytes_used[each.server.index()] += world.costs.expert_bytes;
      }
    for (std::size_t m = 0; m < 2; ++m)
      plan.expert_bytes_limit[m] = plan.expert_bytes_used[m] + room * world.costs.expert_bytes;
    return plan;
  };
  const auto between = [&](std::int64_t room, std::size_t most = 24) {
    return serving::plans_between(by_hand(0, room), by_hand(1, room), world.servers, world.costs,
                                  most)
        .size();
  };
  BOOST_TEST(between(0) == 0u);
  // Room for one at each server moves one there and back at a time.
  BOOST_TEST(between(1) == 12u);
  BOOST_TEST(between(1, 11) == 0u);
  BOOST_TEST(between(12) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
