#include <algorithm>
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "config/random.hpp"
#include "planning/placement.hpp"
#include "planning/plan_alike.hpp"
#include "planning/pruning.hpp"
#include "planning/spread_copies.hpp"
#include "planning/strategies/pruned_placement.hpp"
#include "planning/strategies/strategies.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

const cost_profile costs = instances::small_costs();
constexpr std::size_t n_servers = 4, n_layers = 3, n_experts = 8;

strategy_options quick() {
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

/// The ways of planning a strategy in a scene, as plans; those that are infeasible are left out.
std::vector<plan> planned(std::string_view name, const scene& at, const strategy_options& options) {
  std::vector<plan> found;
  for (const auto& variant : plan_variants(name, at.experts, at.servers, costs, options)) {
    auto made = make_strategy(name, at.experts, at.servers, costs, variant);
    if (made) found.push_back(std::move(made->plan));
    BOOST_TEST((made || made.error().code == errc::infeasible));
  }
  return found;
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

namespace {

/// Layers of three experts at top-1, chosen by half, three tenths and two tenths of the tokens. Without one of them, by
/// hand: the damage times 0.5 * 0.4 for expert 0, times 0.3 * 0.1 for 1, times 0.2 * 0.2 for 2; without 1, times
/// 0.2 * 0.3 more for 2.
profile worked_out(std::vector<double> damage) {
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
cluster roomy(std::vector<std::int64_t> room, std::vector<double> arrivals, std::size_t n_layers) {
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
expert_list at_server(const plan& placed, std::size_t server, std::size_t layer, bool offloaded) {
  expert_list found;
  for (const auto& each : placed.experts)
    if (each.server.index() == server && each.layer.index() == layer &&
        (each.reason == placement_reason::offload) == offloaded)
      found.push_back(static_cast<std::uint32_t>(each.expert.index()));
  std::ranges::sort(found);
  return found;
}

}  // namespace

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
