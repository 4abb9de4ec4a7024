#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/random.hpp"
#include "planning/placement.hpp"
#include "planning/plan_alike.hpp"
#include "planning/spread_copies.hpp"
#include "planning/strategies/pruned_placement.hpp"
#include "test/planning/strategies/scenes.hpp"

namespace ordermoe::planning {

using namespace scenes;

namespace {

/// One layer, as many experts as shares; every server has room for so many.
struct small_scene {
  profile experts;
  cluster servers;

  small_scene(std::vector<double> activation, std::vector<std::int64_t> room,
              std::vector<double> arrivals)
      : experts(uniform_profile("small", "", 1, activation.size(), 1)),
        servers(instances::drawn_cluster(room.size(), 1, activation.size(), 2, 1)) {
    auto& layer = experts.layers[0];
    layer.activation = activation;
    for (std::size_t m = 0; m < room.size(); ++m) {
      servers.servers[m].arrival_share = arrivals[m];
      room[m] *= costs.expert_bytes;
    }
    instances::set_expert_memory(servers, room, costs, 1);
  }
};

std::set<std::pair<std::size_t, std::size_t>> first_copies(const plan& placed) {
  std::set<std::pair<std::size_t, std::size_t>> found;
  for (const auto& each : placed.experts)
    if (each.reason != placement_reason::replica)
      found.insert(
          {each.server.index(), each.layer.index() * placed.n_experts + each.expert.index()});
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rivals)

BOOST_AUTO_TEST_CASE(random_takes_the_first_copies_of_popularity_and_fills_all_memory) {
  std::set<std::string> draws;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const scene at;
    auto options = quick();
    options.seed = seed;
    const auto random = at.make("random", options), popular = at.make("popularity", options);
    BOOST_TEST((first_copies(random.plan) == first_copies(popular.plan)));
    BOOST_TEST(first_copies(random.plan).size() == n_layers * n_experts);
    for (std::size_t m = 0; m < n_servers; ++m) {
      const auto& content = random.plan;
      const auto hosted = content.expert_bytes_used[m] / costs.expert_bytes;
      const auto left = content.expert_bytes_limit[m] - content.expert_bytes_used[m];
      BOOST_TEST(
          (left < costs.expert_bytes || hosted == static_cast<std::int64_t>(n_layers * n_experts)));
    }
    draws.insert(plan_json(random.plan));
    BOOST_TEST(plan_json(random.plan) == plan_json(at.make("random", options).plan));
    BOOST_TEST((random.policy.candidates == candidate_rule::exact));
    BOOST_TEST(random.plan.residence[1].layers[0] == server_bit(1));
  }
  BOOST_TEST(draws.size() == 20u);
}

BOOST_AUTO_TEST_CASE(popularity_copies_what_is_chosen_most_where_most_arrives) {
  // Room for two experts at server 0 and one at server 1: two first copies and one more.
  const small_scene at({0.9, 0.1}, {2, 1}, {0.8, 0.2});
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    auto options = quick();
    options.seed = seed;
    const auto made = make_strategy("popularity", at.experts, at.servers, costs, options);
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
    const auto& placed = made->plan;
    BOOST_REQUIRE(placed.experts.size() == 3u);
    const auto& copy = placed.experts.back();
    BOOST_TEST((copy.reason == placement_reason::replica));
    const placement_index index(placed);
    // Where both first copies are at server 0 there is room at server 1 alone, for the one chosen most. Else server 0
    // gets what it lacks.
    const bool both_at_0 = copy.server.index() == 1;
    const double share = both_at_0 ? 0.2 : 0.8;
    if (both_at_0) BOOST_TEST(copy.expert.index() == 0u);
    if (!both_at_0) BOOST_TEST((index.hosts(0, 0, 0) && index.hosts(0, 0, 1)));
    const double chosen = copy.expert.index() == 0 ? 0.9 : 0.1;
    BOOST_TEST(copy.score == chosen * share / 1000, boost::test_tools::tolerance(1e-12));
  }
}

BOOST_AUTO_TEST_CASE(similarity_is_the_paper_without_a_budget_but_for_the_price_of_attention) {
  auto free = costs;
  free.attention_bytes = 0;
  free.attention_flops = 0;
  std::size_t n_elsewhere = 0;
  for (const std::size_t top_k : {1, 2}) {
    scene at;
    at.experts = random_profile(n_layers, n_experts, top_k, 5);
    const auto paper = make_strategy("paper", at.experts, at.servers, free, quick());
    const auto similar = make_strategy("similarity", at.experts, at.servers, free, quick());
    BOOST_REQUIRE((paper && similar));
    BOOST_TEST(plan_json(paper->plan) == plan_json(similar->plan));
    BOOST_TEST(similar->continue_in_place);
    BOOST_TEST(paper->policy.horizon == similar->policy.horizon);
    const auto prices = make_cost_model(at.servers, free);
    const auto tables_of = [&](const strategy& of) {
      auto made = selection_tables::build(at.experts, of.plan, prices, of.policy, of.token_budget);
      BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().message));
      return *made;
    };
    const auto by_paper = tables_of(*paper), by_similarity = tables_of(*similar);
    random_stream random(7);
    for (std::size_t trial = 0; trial < 500; ++trial) {
      std::vector<std::uint32_t> targets;
      while (targets.size() < top_k) {
        const auto e = static_cast<std::uint32_t>(random.below(n_experts));
        if (std::ranges::find(targets, e) == targets.end()) targets.push_back(e);
      }
      const std::vector<loss_units> losses(n_experts, forbidden);
      std::vector<slot_query> slots;
      for (const auto e : targets) slots.push_back({e, 0.5f, losses});
      decision_query query;
      query.layer = random.below(n_layers);
      query.server = random.below(n_servers);
      query.access = random.below(n_servers);
      query.slots = slots;
      const auto a = by_paper->select(query), b = by_similarity->select(query);
      BOOST_TEST(a.residence == b.residence);
      BOOST_TEST(std::equal(a.slots.begin(), a.slots.begin() + a.n_slots, b.slots.begin()));
      n_elsewhere += b.residence != query.server ? 1 : 0;
    }
  }
  BOOST_TEST(n_elsewhere > 0u);
}

BOOST_AUTO_TEST_CASE(every_way_of_planning_a_strategy_can_be_served) {
  for (const std::size_t top_k : {1, 2, 4}) {
    scene at;
    at.experts = random_profile(n_layers, n_experts, top_k, 5);
    const auto prices = make_cost_model(at.servers, costs);
    for (const auto& record : strategy_records())
      for (const double percent : {0.0, 5.0, -1.0}) {
        if (percent != 0 && !record.has_budget) continue;
        auto options = quick();
        options.quality_percent = percent;
        const auto variants = plan_variants(record.name, at.experts, at.servers, costs, options);
        BOOST_REQUIRE(!variants.empty());
        for (const auto& variant : variants) {
          const auto made = make_strategy(record.name, at.experts, at.servers, costs, variant);
          BOOST_REQUIRE_MESSAGE(made, record.name << ": " << (made ? "" : made.error().message));
          const auto tables = selection_tables::build(at.experts, made->plan, prices, made->policy,
                                                      made->token_budget);
          BOOST_TEST(tables.has_value(), record.name << " top-" << top_k << ": "
                                                     << (tables ? "" : tables.error().message));
          if (!variant.plan)
            BOOST_TEST(made->plan.grouping.empty() != record.places_groups, record.name);
        }
      }
  }
}

BOOST_AUTO_TEST_CASE(an_alias_is_taken_for_its_strategy) {
  const scene at;
  BOOST_TEST(find_strategy("edgeshard") == find_strategy("layer-shards"));
  const auto made = at.make("edgeshard");
  BOOST_TEST(made.name == "layer-shards");
  BOOST_TEST(plan_json(made.plan) == plan_json(at.make("layer-shards").plan));
  BOOST_TEST(canonical_strategy_name("edgeshard") == "layer-shards");
  BOOST_TEST(canonical_strategy_name("nothing") == "nothing");
  const auto accepted = accepted_strategy_names();
  BOOST_TEST(std::ranges::count(accepted, "edgeshard") == 1);
  BOOST_TEST(accepted.size() == strategy_names().size() + 1);
  for (const auto& record : strategy_records()) {
    BOOST_TEST(!record.source.empty(), record.name);
    BOOST_TEST(!record.sentence.empty(), record.name);
  }
}

BOOST_AUTO_TEST_CASE(
    paper_in_place_is_the_paper_but_for_where_positions_begin_and_the_price_of_attention) {
  const scene at;
  auto options = quick();
  options.quality_percent = 3;
  const auto published = at.make("paper", options), in_place = at.make("paper-in-place", options);
  BOOST_TEST(plan_json(published.plan) == plan_json(in_place.plan));
  BOOST_TEST(published.token_budget == in_place.token_budget);
  BOOST_TEST(!published.continue_in_place);
  BOOST_TEST(in_place.continue_in_place);
  auto policy = published.policy;
  policy.name = in_place.policy.name;
  BOOST_TEST(!(policy == in_place.policy));
  policy.price_attention = true;
  BOOST_TEST((policy == in_place.policy));
}

BOOST_AUTO_TEST_CASE(paper_tuned_lets_more_experts_stand_in_for_a_target_the_lower_its_thresholds) {
  const scene at;
  auto options = quick();
  options.quality_percent = 3;
  options.cut = 0;
  const auto published = at.make("paper-in-place", options),
             uncut = at.make("paper-tuned", options);
  BOOST_TEST(plan_json(published.plan) == plan_json(uncut.plan));
  auto policy = published.policy;
  policy.name = uncut.policy.name;
  BOOST_TEST((policy == uncut.policy));
  BOOST_TEST(published.token_budget == uncut.token_budget);

  const auto* record = find_strategy("paper-tuned");
  const auto most = record->most_cut({at.experts, at.servers, costs, options});
  BOOST_TEST(most == 4u);
  for (std::size_t cut = 0; cut <= most; ++cut) {
    options.cut = cut;
    const auto lowered = at.make("paper-tuned", options);
    BOOST_REQUIRE(lowered.plan.grouping.size() == published.plan.grouping.size());
    for (std::size_t l = 0; l < n_layers; ++l)
      BOOST_TEST(lowered.plan.grouping[l].threshold ==
                     published.plan.grouping[l].threshold * (1 - static_cast<double>(cut) / 4),
                 boost::test_tools::tolerance(1e-12));
  }
  // A threshold that was asked for stays.
  options.threshold = 0.7;
  BOOST_TEST(record->most_cut({at.experts, at.servers, costs, options}) == 0u);
  BOOST_TEST(at.make("paper-tuned", options).plan.grouping.front().threshold == 0.7);
}

BOOST_AUTO_TEST_CASE(what_is_adapted_says_so_where_it_is_printed) {
  BOOST_TEST(printed_strategy_name("exact") == "exact");
  BOOST_TEST(printed_strategy_name("router-ledger") == "router-ledger (adapted)");
  for (const auto* name :
       {"parallax", "prism", "wdmoe", "dynamic-skipping", "static-pruning", "naee", "shard-chains",
        "edge-llm", "moe2", "offload", "paper-in-place", "paper-tuned"})
    BOOST_TEST(printed_strategy_name(name) == std::string(name) + " (adapted)");
  BOOST_TEST(printed_strategy_name("of another program") == "of another program");
}

namespace {

bool is_singleton_path(const plan& placed) {
  for (const auto& homes : placed.residence)
    for (const auto members : homes.layers)
      if (std::popcount(members) != 1) return false;
  return true;
}

std::set<std::vector<server_mask>> ways_of(const plan& placed) {
  std::set<std::vector<server_mask>> ways;
  for (const auto& homes : placed.residence) ways.insert(homes.layers);
  return ways;
}

}  // namespace

BOOST_AUTO_TEST_CASE(shard_chains_are_tried_side_by_side_and_as_the_single_chains_of_edgeshard) {
  scene at;
  // Every server has room for the model.
  at.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 5, 3);
  auto options = quick();
  options.concurrency = 4;
  const auto plans = planned("shard-chains", at, options);
  std::size_t n_side_by_side = 0;
  for (const auto& placed : plans) {
    BOOST_TEST(is_singleton_path(placed));
    n_side_by_side += ways_of(placed).size() > 1 ? 1 : 0;
  }
  BOOST_TEST(n_side_by_side >= 2u);
  for (const auto& single : planned("layer-shards", at, options))
    BOOST_TEST(std::ranges::any_of(
        plans, [&](const plan& each) { return plan_json(each) == plan_json(single); }));
  // One chain of whole layers where nobody else is met.
  BOOST_TEST(ways_of(at.make("shard-chains").plan).size() == 1u);
  BOOST_TEST(ways_of(at.make("shard-chains", options).plan).size() > 1u);
}

BOOST_AUTO_TEST_CASE(naee_is_tried_with_the_plans_of_exact_rivals_and_of_static_pruning) {
  scene at;
  at.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 5, 3);
  const auto prices = make_cost_model(at.servers, costs);
  auto options = quick();
  options.concurrency = 4;
  options.quality_percent = 5;
  options.cut = 4;
  const auto plans = planned("naee", at, options);
  const auto has = [&](const plan& wanted) {
    return std::ranges::any_of(
        plans, [&](const plan& each) { return plan_json(each) == plan_json(wanted); });
  };
  for (const auto* name : {"layer-shards", "parallax"})
    for (const auto& each : planned(name, at, options)) BOOST_TEST(has(each), name);
  for (const auto& each : planned("static-pruning", at, options)) {
    BOOST_TEST(has(each));
    const auto made = at.make("naee", options).policy;
    BOOST_TEST(selection_tables::build(at.experts, each, prices, made, 1000).has_value());
  }
  for (const auto& variant : plan_variants("naee", at.experts, at.servers, costs, options)) {
    std::size_t n = 0;
    if (variant.plan && !variant.plan->pruned.empty())
      for (const auto& layer : variant.plan->pruned.front().layers) n += layer.size();
    BOOST_TEST(n == variant.cut.value_or(0));
  }
}

BOOST_AUTO_TEST_CASE(a_searched_plan_is_tried_beside_those_of_the_exact_rivals_at_every_budget) {
  scene at;
  at.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 5, 3);
  auto options = quick();
  options.concurrency = 4;
  for (const auto* name : {"ordermoe", "router-ledger"})
    for (const double budget : {0.0, 5.0, -1.0}) {
      options.quality_percent = budget;
      std::vector<plan> rivals;
      for (const auto& variant : plan_variants(name, at.experts, at.servers, costs, options)) {
        if (variant.plan) rivals.push_back(*variant.plan);
      }
      for (const auto* rival : {"layer-shards", "shard-chains", "parallax"})
        for (const auto& theirs : planned(rival, at, options))
          BOOST_TEST(std::ranges::any_of(rivals,
                                         [&](const plan& ours) { return are_alike(ours, theirs); }),
                     name << " at " << budget << " % lacks a plan of " << rival);
      for (const auto& placed : rivals) BOOST_TEST(is_singleton_path(placed));
      // Chains or ranges side by side are among them, and pipelines of whole layers.
      BOOST_TEST(
          std::ranges::any_of(rivals, [](const auto& each) { return ways_of(each).size() > 1; }));
      BOOST_TEST(
          std::ranges::any_of(rivals, [](const auto& each) { return ways_of(each).size() == 1; }));
    }
}

BOOST_AUTO_TEST_CASE(shard_chains_fit_where_whole_layers_do_not) {
  scene at;
  // Room for a layer and a half each.
  at.servers = instances::drawn_cluster(2, n_layers, n_experts, 1, 3);
  instances::set_expert_memory(at.servers, {12 * costs.expert_bytes, 12 * costs.expert_bytes},
                               costs, n_layers);
  BOOST_TEST(!make_strategy("layer-shards", at.experts, at.servers, costs, quick()).has_value());
  const auto plans = planned("shard-chains", at, quick());
  BOOST_REQUIRE(!plans.empty());
  for (const auto& placed : plans) {
    const placement_index index(placed);
    std::size_t n_shared = 0;
    for (std::size_t l = 0; l < n_layers; ++l)
      for (std::size_t e = 1; e < n_experts; ++e)
        n_shared += index.hosts(l, e) != index.hosts(l, 0) ? 1 : 0;
    BOOST_TEST(n_shared > 0u);
  }
}

BOOST_AUTO_TEST_CASE(algorithm_1_can_do_without_its_parts) {
  const scene at;
  for (const auto* name : {"paper", "similarity", "local-only", "local-skip", "local-tuned"}) {
    auto options = quick();
    options.threshold = 0.7;
    for (const auto& layer : at.make(name, options).plan.grouping)
      BOOST_TEST(layer.threshold == 0.7);
    options = quick();
    BOOST_TEST(at.make(name, options).plan.experts.size() > n_layers * n_experts);
    options.replicates = false;
    BOOST_TEST(at.make(name, options).plan.experts.size() == n_layers * n_experts);
    options = quick();
    options.disperses = false;
    placement_options gathered;
    gathered.seed = options.seed;
    gathered.lambda_load = 1;
    auto expected = place_by_similarity(at.experts, at.servers, costs, gathered);
    auto found = at.make(name, options).plan;
    BOOST_REQUIRE(expected);
    expected->residence = found.residence;
    BOOST_TEST(plan_json(found) == plan_json(*expected));
    BOOST_TEST(plan_json(found) != plan_json(at.make(name).plan));
    for (const auto& variant : plan_variants(name, at.experts, at.servers, costs, options))
      at.make(name, variant);
  }
  auto options = quick();
  options.disperses = false;
  const auto refused = make_strategy("exact", at.experts, at.servers, costs, options);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::usage));
  BOOST_TEST(refused.error().message.find("by which exact does not place") != std::string::npos);
  options.plan = at.make("paper").plan;
  const auto given = make_strategy("paper", at.experts, at.servers, costs, options);
  BOOST_REQUIRE(!given.has_value());
  BOOST_TEST(given.error().message.find("the plan is given") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(edge_llm_keeps_a_request_on_one_server_and_caches_what_it_uses) {
  const auto experts = worked_out({2});
  const auto servers = roomy({2, 2}, {0.8, 0.2}, 1);
  const auto placed = place_whole_requests(experts, servers, costs, own_homes(2));
  BOOST_REQUIRE_MESSAGE(placed, (placed ? "" : placed.error().message));
  // First copies where most arrives, then the one that server 1's own requests use most.
  BOOST_TEST((at_server(*placed, 0, 0, false) == expert_list{0, 1}));
  BOOST_TEST((at_server(*placed, 1, 0, false) == expert_list{0, 2}));
  const scene at;
  for (const auto& each : planned("edge-llm", at, quick())) {
    BOOST_TEST(is_singleton_path(each));
    for (const auto& way : ways_of(each))
      for (const auto home : way) BOOST_TEST(home == way.front());
  }
}

BOOST_AUTO_TEST_CASE(whole_requests_go_where_positions_are_over_soonest) {
  const auto servers = roomy({3, 3}, {0.7, 0.3}, 1);
  const auto prices = make_cost_model(servers, costs);
  // Alone, everybody goes to the faster one; two others, and 0.7 of arrivals there make 2.4 times 1 of it.
  BOOST_TEST((soonest_homes(servers, prices, {1e12, 2e12}, 0) == homes{0, 0}));
  BOOST_TEST((soonest_homes(servers, prices, {1e12, 2e12}, 2) == homes{0, 1}));
  BOOST_TEST((soonest_homes(servers, prices, {INFINITY, 2e12}, 2) == homes{1, 1}));
}

BOOST_AUTO_TEST_CASE(a_position_is_over_soonest_where_most_experts_are_near) {
  const auto experts = worked_out({2});
  auto servers = roomy({1, 3, 2}, {0.4, 0.3, 0.3}, 1);
  // Alike but for their memory; 2 is far away from both others.
  for (auto& each : servers.servers) {
    const auto memory = each.memory_bytes;
    each = servers.servers[0];
    each.memory_bytes = memory;
  }
  for (std::size_t from = 0; from < 3; ++from)
    for (std::size_t to = 0; to < 3; ++to)
      servers.links[from * 3 + to] =
          from == to ? link_spec{} : link_spec{1e9, from == 2 || to == 2 ? 9'000'000 : 1'000'000};
  const auto problem = make_packing_problem(1, 3, servers, costs, 1);
  BOOST_REQUIRE(problem);
  const auto prices = make_cost_model(servers, costs);
  const auto times = position_times(experts, *problem, prices);
  const double alone = prices.attention_ns[0] + prices.head_ns[0];
  const double here = prices.expert_ns[0];
  // Server 0 has expert 0 and finds the others at server 1; server 2 lacks one, which is far away.
  BOOST_TEST(times[0] == alone + 0.5 * here + 0.5 * round_trip_ns(prices, 0, 1),
             boost::test_tools::tolerance(1e-12));
  BOOST_TEST(times[1] == alone + here, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(times[2] == alone + 0.8 * here + 0.2 * round_trip_ns(prices, 2, 1),
             boost::test_tools::tolerance(1e-12));
  BOOST_TEST((sole_homes(experts, servers, costs, 2) == std::vector{homes(3, 1), homes(3, 0)}));
}

BOOST_AUTO_TEST_CASE(rivals_that_never_substitute_are_tried_with_everybody_at_one_server) {
  const scene at;
  const auto best = sole_homes(at.experts, at.servers, costs, 1).at(0);
  for (const auto* name : {"exact", "wdmoe", "drop", "prism", "random", "popularity", "similarity",
                           "edge-llm", "local-only", "local-tuned"}) {
    const auto plans = planned(name, at, quick());
    BOOST_TEST(std::ranges::any_of(plans,
                                   [&](const plan& each) {
                                     return std::ranges::equal(
                                         each.residence, residency_at(best, n_layers), {},
                                         &residency::layers, &residency::layers);
                                   }),
               name);
  }
}

BOOST_AUTO_TEST_CASE(
    requests_as_wholes_are_tried_by_whoever_tries_exact_rivals_where_they_are_as_fast) {
  const auto n_wholes = [](std::string_view name, const scene& at) {
    auto options = quick();
    options.quality_percent = name == "ordermoe" ? 0 : 5;
    return std::ranges::count(planned(name, at, options), "edge-llm", &plan::strategy);
  };
  scene everything_fits, little_does;
  everything_fits.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 12, 3);
  little_does.servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 1.05, 3);
  for (const auto* name : {"ordermoe", "dynamic-skipping", "naee"}) {
    BOOST_TEST(n_wholes(name, everything_fits) > 0, name);
    BOOST_TEST(n_wholes(name, everything_fits) <= 2, name);
    BOOST_TEST(n_wholes(name, little_does) == 0, name);
  }
}

BOOST_AUTO_TEST_CASE(offload_has_the_whole_model_at_the_users_server_partly_in_its_host) {
  const auto experts = worked_out({2, 2});
  const auto servers = roomy({4, 6}, {0.5, 0.5}, 2);
  const auto placed = place_offloaded(experts, servers, costs, own_homes(2));
  BOOST_REQUIRE_MESSAGE(placed, (placed ? "" : placed.error().message));
  for (std::size_t l = 0; l < 2; ++l) {
    BOOST_TEST((at_server(*placed, 0, l, false) == expert_list{0, 1}));
    BOOST_TEST((at_server(*placed, 0, l, true) == expert_list{2}));
    BOOST_TEST((at_server(*placed, 1, l, false) == expert_list{0, 1, 2}));
  }
  BOOST_TEST(placed->expert_bytes_used[0] == 4 * costs.expert_bytes);
  BOOST_TEST(validate(*placed, servers, costs).has_value());
  BOOST_TEST(placed->offloads());
  const auto flags = offloaded_flags(*placed);
  const std::vector<std::uint8_t> at_0{0, 0, 1, 0, 0, 1};
  BOOST_TEST(flags[0] == at_0, boost::test_tools::per_element());
  BOOST_TEST(std::ranges::count(flags[1], 1) == 0);
  // In one place only, where nobody else is served.
  const auto one = place_offloaded(experts, servers, costs, homes{1, 1});
  BOOST_REQUIRE(one.has_value());
  BOOST_TEST(at_server(*one, 0, 0, false).empty());
  BOOST_TEST(!one->offloads());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
