#include "planning/entropy_placement.hpp"

#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>

#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

const cost_profile costs = instances::small_costs();

using counts = std::vector<std::size_t>;

/// Layers of three experts with these shares, and servers with room for so many experts.
struct scene {
  profile experts;
  cluster servers;

  scene(std::vector<std::vector<double>> activation, std::vector<std::int64_t> room,
        std::vector<double> arrivals)
      : experts(uniform_profile("small", "", activation.size(), 3, 1)),
        servers(instances::drawn_cluster(room.size(), activation.size(), 3, 2, 1)) {
    for (std::size_t l = 0; l < activation.size(); ++l)
      experts.layers[l].activation = activation[l];
    for (std::size_t m = 0; m < room.size(); ++m) {
      servers.servers[m].arrival_share = arrivals[m];
      room[m] *= costs.expert_bytes;
    }
    instances::set_expert_memory(servers, room, costs, activation.size());
  }

  plan placed() const {
    auto made = place_by_entropy(experts, servers, costs, {});
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    const auto valid = validate(*made, servers, costs);
    BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
    return std::move(*made);
  }
};

counts hosts(const plan& content, std::size_t server, std::size_t layer) {
  counts found;
  const placement_index index(content);
  for (std::size_t e = 0; e < content.n_experts; ++e)
    if (index.hosts(server, layer, e)) found.push_back(e);
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(entropy_placement)

BOOST_AUTO_TEST_CASE(layers_that_spread_more_get_more) {
  // 1 against 0.5, 1/2 against 0.5 (the lower layer), 1/3 against 0.5, 1/3 against 0.5/2.
  BOOST_TEST((shares_by_entropy({1, 0.5}, 2, 4) == counts{2, 0}));
  BOOST_TEST((shares_by_entropy({1, 0.5}, 3, 4) == counts{2, 1}));
  BOOST_TEST((shares_by_entropy({1, 0.5}, 4, 4) == counts{3, 1}));
  BOOST_TEST((shares_by_entropy({0.9, 0.3}, 4, 3) == counts{3, 1}));
  BOOST_TEST((shares_by_entropy({0.9, 0.3}, 5, 3) == counts{3, 2}));
  BOOST_TEST((shares_by_entropy({0.9, 0.3}, 60, 3) == counts{3, 3}));
  BOOST_TEST((shares_by_entropy({0, 0}, 3, 3) == counts{2, 1}));
}

BOOST_AUTO_TEST_CASE(servers_take_what_they_invoke_most_and_cover_the_rest_where_it_costs_least) {
  // One layer, two experts a server: all take 0 and 1, and expert 2 takes the place of 1 where least arrives.
  const scene at({{0.6, 0.3, 0.1}}, {2, 2, 2}, {0.5, 0.2, 0.3});
  const auto placed = at.placed();
  BOOST_TEST((hosts(placed, 0, 0) == counts{0, 1}));
  BOOST_TEST((hosts(placed, 1, 0) == counts{0, 2}));
  BOOST_TEST((hosts(placed, 2, 0) == counts{0, 1}));
  BOOST_TEST(placed.residence[2].layers[0] == server_bit(2));
}

BOOST_AUTO_TEST_CASE(a_layer_that_spreads_little_still_has_all_its_experts) {
  // No entropy at layer 0: alone it would get nothing.
  const scene at({{1, 0, 0}, {0.4, 0.3, 0.3}}, {3, 3}, {0.7, 0.3});
  const auto placed = at.placed();
  for (std::size_t l = 0; l < 2; ++l)
    for (std::size_t e = 0; e < 3; ++e)
      BOOST_TEST(std::ranges::count_if(placed.experts, [&](const auto& each) {
                   return each.layer.index() == l && each.expert.index() == e;
                 }) == 1);
}

BOOST_AUTO_TEST_CASE(no_single_exchange_of_a_copy_invokes_less_elsewhere) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const auto experts = random_profile(4, 6, 2, seed);
    const auto servers = instances::drawn_cluster(5, 4, 6, 2, seed);
    const auto placed = place_by_entropy(experts, servers, costs, {});
    BOOST_REQUIRE_MESSAGE(placed, (placed ? "" : placed.error().message));
    const auto valid = validate(*placed, servers, costs);
    BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
    const placement_index index(*placed);
    for (std::size_t l = 0; l < 4; ++l)
      for (std::size_t m = 0; m < 5; ++m)
        for (std::size_t out = 0; out < 6; ++out) {
          if (!index.hosts(m, l, out) || std::popcount(index.hosts(l, out)) < 2) continue;
          for (std::size_t in = 0; in < 6; ++in)
            if (!index.hosts(m, l, in))
              BOOST_TEST(experts.layers[l].activation[in] <= experts.layers[l].activation[out],
                         "seed " << seed << " layer " << l << " server " << m);
        }
  }
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_said) {
  const scene at({{0.6, 0.3, 0.1}}, {1, 1}, {0.5, 0.5});
  const auto made = place_by_entropy(at.experts, at.servers, costs, {});
  BOOST_REQUIRE(!made.has_value());
  BOOST_TEST((made.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
