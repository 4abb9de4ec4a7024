#include "planning/layer_ranges.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>

#include "config/random.hpp"
#include "planning/cost_model.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

const cost_profile costs = instances::small_costs();

/// Servers that are alike, 1 ms from each other, with room for so many whole layers of four experts.
cluster alike(const std::vector<std::int64_t>& layers, std::size_t n_layers) {
  auto servers = instances::drawn_cluster(layers.size(), n_layers, 4, 4, 1);
  std::vector<std::int64_t> room;
  for (const auto n : layers) room.push_back(n * 4 * costs.expert_bytes);
  for (auto& server : servers.servers) {
    server.flops_per_s = 5e13;
    server.memory_bandwidth_bytes_per_s = 1e12;
    server.arrival_share = 1.0 / static_cast<double>(layers.size());
  }
  for (std::size_t i = 0; i < servers.links.size(); ++i)
    if (i / layers.size() != i % layers.size()) servers.links[i] = {1e9, 1'000'000};
  instances::set_expert_memory(servers, room, costs, n_layers);
  return servers;
}

plan placed(const profile& experts, const cluster& servers, const layer_range_options& options) {
  auto made = place_layer_ranges(experts, servers, costs, options);
  BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
  const auto valid = validate(*made, servers, costs);
  BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
  return std::move(*made);
}

/// The server of each layer on the way of an access server's users.
std::vector<server_mask> way(const plan& content, std::size_t access) {
  return content.residence[access].layers;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layer_ranges)

BOOST_AUTO_TEST_CASE(where_each_server_holds_the_model_each_has_its_own_users) {
  const auto experts = random_profile(3, 4, 2, 1);
  const auto made = placed(experts, alike({3, 3}, 3), {.n_others = 3});
  BOOST_TEST(made.experts.size() == 2u * 3 * 4);
  const std::vector<server_mask> first(3, 0b01), second(3, 0b10);
  BOOST_TEST((way(made, 0) != way(made, 1)));
  BOOST_TEST(((way(made, 0) == first && way(made, 1) == second) ||
              (way(made, 0) == second && way(made, 1) == first)));
}

BOOST_AUTO_TEST_CASE(where_nobody_else_is_there_no_copy_pays) {
  const auto experts = random_profile(3, 4, 2, 1);
  const auto made = placed(experts, alike({3, 3}, 3), {.n_others = 0});
  BOOST_TEST(made.experts.size() == 3u * 4);
  BOOST_TEST((way(made, 0) == way(made, 1)));
}

BOOST_AUTO_TEST_CASE(a_server_gets_layers_that_follow_each_other_as_many_as_fit) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto experts = random_profile(5, 4, 2, seed);
    const auto servers = instances::drawn_cluster(4, 5, 4, 2.5, seed);
    const auto made = place_layer_ranges(experts, servers, costs, {.n_others = 3});
    if (!made) continue;
    const auto chain =
        place_layer_shards(experts, servers, costs, {.way_back = shard_return::direct});
    BOOST_REQUIRE(chain);
    const placement_index index(*made), before(*chain);
    for (std::size_t m = 0; m < 4; ++m) {
      std::size_t n = 0, turns = 0;
      bool last = false;
      for (std::size_t l = 0; l < 5; ++l) {
        const bool has = index.hosts(m, l, 0);
        for (std::size_t e = 1; e < 4; ++e) BOOST_TEST(index.hosts(m, l, e) == has);
        if (before.hosts(m, l, 0)) BOOST_TEST(has);
        n += has ? 1 : 0;
        turns += has != last ? 1 : 0;
        last = has;
      }
      BOOST_TEST(turns <= 2u);
      BOOST_TEST(static_cast<std::int64_t>(n) * 4 * costs.expert_bytes <=
                 made->expert_bytes_limit[m]);
    }
    for (std::size_t a = 0; a < 4; ++a)
      for (std::size_t l = 0; l < 5; ++l)
        BOOST_TEST((index.hosts(l, 0) & way(*made, a)[l]) == way(*made, a)[l]);
    BOOST_TEST(made->estimated_token_ns > 0);
  }
}

BOOST_AUTO_TEST_CASE(without_load_the_way_is_the_shortest_of_all) {
  std::size_t n_checked = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto experts = random_profile(4, 4, 2, seed);
    const auto servers = instances::drawn_cluster(3, 4, 4, 2.5, seed);
    const auto made = place_layer_ranges(experts, servers, costs, {.n_others = 0});
    if (!made) continue;
    ++n_checked;
    const auto prices = make_cost_model(servers, costs);
    const placement_index index(*made);
    double least = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> at(4);
    const std::function<void(std::size_t)> go = [&](std::size_t l) {
      if (l == 4) {
        double ns = prices.head_ns[at[3]] + prices.message(at[3], at[0]);
        for (std::size_t i = 0; i < 4; ++i)
          ns += prices.attention_ns[at[i]] + 2 * prices.expert_ns[at[i]] +
                (i > 0 ? prices.hidden(at[i - 1], at[i]) : 0);
        least = std::min(least, ns);
        return;
      }
      for (at[l] = 0; at[l] < 3; ++at[l])
        if (index.hosts(at[l], l, 0)) go(l + 1);
    };
    go(0);
    BOOST_TEST(made->estimated_token_ns == least, boost::test_tools::tolerance(1e-9));
  }
  BOOST_TEST(n_checked > 10u);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_said_as_of_one_chain) {
  const auto experts = random_profile(3, 4, 2, 1);
  const auto made = place_layer_ranges(experts, alike({1, 1}, 3), costs, {});
  BOOST_REQUIRE(!made.has_value());
  BOOST_TEST((made.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
