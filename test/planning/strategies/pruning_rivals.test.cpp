#include <algorithm>
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "planning/cost_model.hpp"
#include "planning/plan_alike.hpp"
#include "planning/pruning.hpp"
#include "planning/spread_copies.hpp"
#include "planning/strategies/pruned_placement.hpp"
#include "test/planning/strategies/scenes.hpp"

namespace ordermoe::planning {

using namespace scenes;

BOOST_AUTO_TEST_SUITE(pruning_rivals)

BOOST_AUTO_TEST_CASE(experts_are_pruned_in_the_order_in_which_they_are_missed_least) {
  const auto order = pruning_order(worked_out({2, 3}));
  BOOST_REQUIRE(order.size() == 4u);
  const std::size_t layers[] = {0, 1, 0, 1}, experts[] = {1, 1, 2, 2};
  const double nats[] = {0.06, 0.09, 0.12, 0.18};
  for (std::size_t i = 0; i < 4; ++i) {
    BOOST_TEST(order[i].layer == layers[i]);
    BOOST_TEST(order[i].expert == experts[i]);
    BOOST_TEST(order[i].nats == nats[i], boost::test_tools::tolerance(1e-12));
  }
  const auto pruned = first_pruned(order, 2, 3);
  BOOST_TEST((pruned.layers == std::vector<expert_list>{{1, 2}, {1}}));
  const auto without = with_pruned(worked_out({2, 3}), pruned);
  const std::vector<double> all_at_0{1, 0, 0}, without_1{0.8, 0, 0.2};
  BOOST_TEST(without.layers[0].activation == all_at_0, boost::test_tools::per_element());
  BOOST_TEST(without.layers[1].activation == without_1, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(static_pruning_leaves_out_what_is_missed_least_and_what_does_not_fit) {
  const auto experts = worked_out({2});
  const auto servers = roomy({1, 2}, {0.5, 0.5}, 1);
  auto options = quick();
  options.quality_percent = 1;
  options.cut = 1;
  const auto cut = make_strategy("static-pruning", experts, servers, costs, options);
  BOOST_REQUIRE_MESSAGE(cut, (cut ? "" : cut.error().message));
  for (std::size_t access = 0; access < 2; ++access)
    BOOST_TEST(cut->plan.pruned[access].layers[0] == expert_list{1},
               boost::test_tools::per_element());
  const placement_index index(cut->plan);
  BOOST_TEST(index.hosts(0, 1) == 0u);
  BOOST_TEST(index.hosts(0, 0) != 0u);
  BOOST_TEST(index.hosts(0, 2) != 0u);
  // Nothing is cut where nothing may be lost.
  options.quality_percent = 0;
  options.cut.reset();
  const auto whole = make_strategy("static-pruning", experts, servers, costs, options);
  BOOST_REQUIRE_MESSAGE(whole, (whole ? "" : whole.error().message));
  BOOST_TEST(whole->plan.pruned.empty());
  // Without a limit every server has what fits, for its own users.
  options.quality_percent = -1;
  const auto alone = make_strategy("static-pruning", experts, servers, costs, options);
  BOOST_REQUIRE_MESSAGE(alone, (alone ? "" : alone.error().message));
  BOOST_TEST((alone->plan.pruned[0].layers[0] == expert_list{1, 2}));
  BOOST_TEST((alone->plan.pruned[1].layers[0] == expert_list{1}));
  BOOST_TEST((at_server(alone->plan, 0, 0, false) == expert_list{0}));
  BOOST_TEST((at_server(alone->plan, 1, 0, false) == expert_list{0, 2}));
  for (std::size_t access = 0; access < 2; ++access)
    BOOST_TEST(alone->plan.residence[access].layers[0] == server_bit(access));
  // Room for half of the model is enough for one that is cut.
  options.quality_percent = 1;
  options.cut = 1;
  const auto small = roomy({1, 1}, {0.5, 0.5}, 1);
  BOOST_TEST(make_strategy("static-pruning", experts, small, costs, options).has_value());
  options.cut = 0;
  const auto none = make_strategy("static-pruning", experts, small, costs, options);
  BOOST_REQUIRE(!none.has_value());
  BOOST_TEST((none.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_CASE(a_site_too_small_for_a_token_is_served_by_its_neighbour) {
  const auto experts = worked_out({2});
  auto options = quick();
  options.quality_percent = -1;
  const auto made =
      make_strategy("static-pruning", experts, roomy({0, 2}, {0.5, 0.5}, 1), costs, options);
  BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
  for (std::size_t access = 0; access < 2; ++access) {
    BOOST_TEST(made->plan.residence[access].layers[0] == server_bit(1));
    BOOST_TEST((made->plan.pruned[access].layers[0] == expert_list{1}));
  }
  const auto none =
      make_strategy("static-pruning", experts, roomy({0, 0}, {0.5, 0.5}, 1), costs, options);
  BOOST_REQUIRE(!none.has_value());
  BOOST_TEST((none.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_CASE(moe2_gates_among_the_experts_within_reach) {
  const auto experts = worked_out({2});
  const auto servers = roomy({1, 2}, {0.5, 0.5}, 1);
  auto options = quick();
  // Everything is within the longest reach.
  const auto all = make_strategy("moe2", experts, servers, costs, options);
  BOOST_REQUIRE_MESSAGE(all, (all ? "" : all.error().message));
  BOOST_TEST(all->plan.pruned.empty());
  // Within none but its own: what the model would miss most, for each.
  options.quality_percent = -1;
  const auto own = make_strategy("moe2", experts, servers, costs, options);
  BOOST_REQUIRE_MESSAGE(own, (own ? "" : own.error().message));
  BOOST_TEST((at_server(own->plan, 0, 0, false) == expert_list{0}));
  BOOST_TEST((at_server(own->plan, 1, 0, false) == expert_list{0, 2}));
  BOOST_TEST((own->plan.pruned[0].layers[0] == expert_list{1, 2}));
  BOOST_TEST((own->plan.pruned[1].layers[0] == expert_list{1}));
  // Short of memory, something has to be pruned, which no limit of nothing allows.
  options.quality_percent = 0;
  const auto none = make_strategy("moe2", experts, roomy({1, 1}, {0.5, 0.5}, 1), costs, options);
  BOOST_REQUIRE(!none.has_value());
  BOOST_TEST((none.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_CASE(a_farther_cut_leaves_no_router_more) {
  for (const auto* name : {"static-pruning", "moe2"}) {
    const scene at;
    auto options = quick();
    options.quality_percent = 1;
    const auto most = find_strategy(name)->most_cut({at.experts, at.servers, costs, options});
    std::size_t before = 0, first = 0;
    for (std::size_t cut = 0; cut <= most; ++cut) {
      options.cut = cut;
      std::size_t n_pruned = 0;
      for (const auto& access : at.make(name, options).plan.pruned)
        for (const auto& layer : access.layers) n_pruned += layer.size();
      if (std::string_view(name) == "static-pruning") BOOST_TEST(n_pruned == n_servers * cut);
      if (cut == 0) first = n_pruned;
      before = n_pruned;
    }
    BOOST_TEST(first == 0u);
    BOOST_TEST(before > 0u);
  }
}

BOOST_AUTO_TEST_CASE(
    plans_of_static_pruning_are_tried_with_what_they_prune_beside_them_down_to_half_of_the_most) {
  scene at;
  at.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 3, 3);
  auto options = quick();
  options.concurrency = 4;
  options.quality_percent = 5;
  options.cut = 5;
  auto theirs = planned("static-pruning", at, options);
  BOOST_TEST_REQUIRE(theirs.size() > 1u);
  const auto n_pruned = [](const plan& placed) {
    std::size_t n = 0;
    if (!placed.pruned.empty())
      for (const auto& layer : placed.pruned.front().layers) n += layer.size();
    return n;
  };
  // As many as may be left out, and fewer, and none.
  for (const std::size_t cut : {5, 3, 2, 1, 0})
    BOOST_TEST(std::ranges::any_of(theirs, [&](const plan& each) { return n_pruned(each) == cut; }),
               "none prunes " << cut);
  for (const auto* exact : {"shard-chains", "parallax"}) {
    const auto alone = at.make(exact, options).plan;
    BOOST_TEST(
        std::ranges::any_of(theirs, [&](const plan& each) { return are_alike(each, alone); }),
        exact);
  }
  std::erase_if(theirs, [&](const plan& each) { return n_pruned(each) < options.cut.value() / 2; });
  using copies = std::vector<std::array<std::size_t, 3>>;
  const auto kept_of = [](const plan& placed, const plan& without) {
    const auto& pruned = without.pruned.front().layers;
    copies kept;
    for (const auto& each : placed.experts)
      if (!std::ranges::binary_search(pruned[each.layer.index()], each.expert.value))
        kept.push_back({each.server.index(), each.layer.index(), each.expert.index()});
    std::ranges::sort(kept);
    return kept;
  };
  for (const auto* name : {"ordermoe", "router-ledger"}) {
    std::map<std::size_t, std::vector<plan>> cores;
    for (const auto& variant : plan_variants(name, at.experts, at.servers, costs, options))
      if (variant.cut) cores[*variant.cut].push_back(*variant.plan);
    for (const auto& [cut, plans] : cores)
      for (const auto& each : plans) {
        BOOST_TEST(each.pruned.empty());
        BOOST_TEST(validate(each, at.servers, costs).has_value());
      }
    for (const auto& their : theirs)
      BOOST_TEST(std::ranges::any_of(cores[n_pruned(their)],
                                     [&](const plan& ours) {
                                       return std::ranges::equal(ours.residence, their.residence,
                                                                 {}, &residency::layers,
                                                                 &residency::layers) &&
                                              kept_of(ours, their) == kept_of(their, their);
                                     }),
                 name);
    // Nothing else says that it has a core of so many, nor does any plan without a budget.
    options.quality_percent = 0;
    for (const auto& variant : plan_variants(name, at.experts, at.servers, costs, options))
      BOOST_TEST(!variant.cut.has_value());
    options.quality_percent = 5;
  }
}

BOOST_AUTO_TEST_CASE(
    around_a_core_every_expert_is_somewhere_and_those_outside_as_near_as_there_is_room) {
  scene at;
  at.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 3, 3);
  const auto prices = make_cost_model(at.servers, costs);
  const auto order = pruning_order(at.experts);
  for (const std::size_t n_outside : {0, 3, 9}) {
    const auto cores = place_around_core(at.experts, order, at.servers, costs, n_outside, 2, 2);
    const auto chains = place_pruned(at.experts, at.servers, costs, n_outside, 2, 2);
    BOOST_REQUIRE((cores && chains));
    BOOST_REQUIRE(cores->size() == chains->size());
    for (std::size_t i = 0; i < cores->size(); ++i) {
      const auto& placed = (*cores)[i];
      BOOST_TEST(placed.pruned.empty());
      BOOST_TEST(validate(placed, at.servers, costs).has_value());
      BOOST_TEST(placed.experts.size() == (*chains)[i].experts.size() + n_outside);
      for (std::size_t a = 0; a < n_servers; ++a)
        BOOST_TEST((placed.residence[a].layers == (*chains)[i].residence[a].layers));
      const auto way = [&](std::size_t layer, std::size_t m) {
        double sum = 0;
        for (std::size_t a = 0; a < n_servers; ++a) {
          const auto members = placed.residence[a].layers[layer];
          sum += at.servers.servers[a].arrival_share *
                 round_trip_ns(prices, static_cast<std::size_t>(std::countr_zero(members)), m);
        }
        return sum;
      };
      for (std::size_t j = 0; j < n_outside; ++j) {
        const auto& outside = placed.experts[placed.experts.size() - 1 - j];
        BOOST_TEST(outside.layer.index() == order[j].layer);
        BOOST_TEST(outside.expert.index() == order[j].expert);
        for (std::size_t m = 0; m < n_servers; ++m)
          if (placed.expert_bytes_used[m] + costs.expert_bytes <= placed.expert_bytes_limit[m])
            BOOST_TEST(way(order[j].layer, outside.server.index()) <= way(order[j].layer, m));
      }
    }
  }
  // Room for the core alone.
  at.servers = instances::drawn_cluster(2, n_layers, n_experts, 1, 3);
  const auto room = static_cast<std::int64_t>(n_layers * n_experts) / 2 - 2;
  instances::set_expert_memory(at.servers, {room * costs.expert_bytes, room * costs.expert_bytes},
                               costs, n_layers);
  const auto refused = place_around_core(at.experts, order, at.servers, costs, 8, 1, 1);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
