#include "planning/selection/selector.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "test/planning/selection/selector_oracle.hpp"
#include "test/planning/selection/selector_worlds.hpp"
#include "test/support/random_profile.hpp"

namespace {
thread_local std::size_t n_allocations = 0;
}

// Counts what the thread allocates, for the test that decisions allocate nothing.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++n_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++n_allocations;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace ordermoe::planning {
namespace {

using namespace drawn;

BOOST_AUTO_TEST_SUITE(selector)

BOOST_AUTO_TEST_CASE(tables_equal_the_direct_recursion_on_a_thousand_instances) {
  std::size_t n_built = 0, n_decisions = 0, n_values = 0, n_refused = 0;
  for (std::uint64_t seed = 1; n_built < 1000; ++seed) {
    random_stream random(seed, 42);
    const auto of = draw_shape_for(seed, random);
    auto w = draw_world(random, of);
    const auto policy = draw_policy(random, of);
    const auto budget = draw_budget(random);
    if (seed % 2 == 0) draw_copies(random, w);
    const auto made = selection_tables::build(w.experts, w.placed, w.costs, policy, budget);
    if (!made) {
      // A token that must move with its slot cannot always do so in a drawn residency.
      BOOST_TEST_REQUIRE((made.error().code == errc::mismatch), "seed " << seed);
      BOOST_TEST_REQUIRE((policy.residence == residence_choice::with_slot), "seed " << seed);
      ++n_refused;
      continue;
    }
    ++n_built;
    const auto& tables = **made;
    selection_oracle oracle(w.experts, w.placed, w.costs, policy, budget, true);
    BOOST_TEST_REQUIRE(tables.bins() == oracle.bins(), "seed " << seed);
    BOOST_TEST_REQUIRE(tables.bin_width() == oracle.width(), "seed " << seed);

    for (std::size_t trial = 0; trial < 3; ++trial) {
      const auto access = random.below(of.n_servers);
      const auto layer = random.below(of.n_layers);
      const auto members = w.placed.residence[access].layers[layer];
      std::size_t server = random.below(of.n_servers);
      while (((members >> server) & 1u) == 0) server = (server + 1) % of.n_servers;

      const auto set = random.below(w.experts.layers[layer].sets.size());
      const auto bin = random.below(tables.bins());
      const double value = tables.value(access, layer, server, set, bin);
      const double expected = oracle.value(access, layer, server, set, bin);
      BOOST_TEST_REQUIRE(close(value, expected),
                         "seed " << seed << ": value " << value << ", recursion " << expected);
      ++n_values;

      const token t(random, tables, layer, of);
      for (std::size_t j = 0; j < of.top_k; ++j)
        for (std::size_t e = 0; e < of.n_experts; ++e)
          BOOST_TEST_REQUIRE(t.losses[j][e] == oracle.slot_loss(layer, t.targets[j], e, t.gates[j],
                                                                t.probabilities),
                             "seed " << seed << " slot " << j << " expert " << e);
      decision_query query;
      query.layer = layer;
      query.server = server;
      query.access = access;
      query.slots = t.slots;
      query.probabilities = t.probabilities;
      query.budget_left =
          budget == unbounded_budget || random.below(3) == 0
              ? budget
              : static_cast<loss_units>(random.unit() * 1.2 * static_cast<double>(budget));
      std::vector<std::int64_t> waits;
      for (std::size_t m = 0; m < of.n_servers; ++m)
        waits.push_back(static_cast<std::int64_t>(1000 * random.below(4)));
      if (random.below(2) == 0) query.wait_ns = waits;
      const auto busy = busy_links(random, tables.link_ns());
      if (random.below(2) == 0) query.link_ns = busy;
      if (random.below(4) == 0) query.residences = 1 + random.below((1u << of.n_servers) - 1);
      const auto chosen = tables.select(query);
      const auto best = oracle.decide(query);
      BOOST_TEST_REQUIRE(close(chosen.cost, best.cost),
                         "seed " << seed << ": " << shown(chosen) << ", recursion " << shown(best));
      BOOST_TEST_REQUIRE(same_choice(chosen, best),
                         "seed " << seed << ": " << shown(chosen) << ", recursion " << shown(best));
      BOOST_TEST_REQUIRE(close(chosen.time_ns, best.time_ns), "seed " << seed);
      ++n_decisions;
    }
  }
  BOOST_TEST_MESSAGE(n_built << " instances, " << n_decisions << " decisions, " << n_values
                             << " values equal; " << n_refused << " residencies refused");
}

// Both ways that lose less and are back sooner than expert 2 are copies of expert 1, which the other slot runs.
BOOST_AUTO_TEST_CASE(coarser_copies_of_one_expert_hide_no_other) {
  auto w = row_world(1, 2);
  w.experts.n_experts = w.placed.n_experts = 3;
  auto& layer = w.experts.layers[0];
  layer.activation = {0.4, 0.4, 0.2};
  layer.mean_gate = {0.5, 0.5, 0.5};
  layer.router_logit = layer.token_gate_regret = matrix(3, 3, -1);
  for (std::size_t e = 0; e < 3; ++e) layer.router_logit(e, e) = 1;
  layer.router_logit(0, 1) = layer.router_logit(1, 0) = 0.8;
  layer.router_logit(0, 2) = layer.router_logit(2, 0) = 0.6;
  layer.copies = {{precision::int8, {0.1, 0.1, 0.1}, 0.1, 0}};
  auto& costs = w.costs;
  costs.n_servers = w.placed.n_servers = 4;
  costs.hidden_ns.assign(16, 60'000);
  const double away[] = {0, 1000, 50'000, 2500};
  for (std::size_t m = 0; m < 4; ++m) {
    costs.hidden_ns[m * 5] = 0;
    costs.hidden_ns[m] = costs.hidden_ns[4 * m] = away[m];
  }
  costs.message_ns = costs.kv_ns = costs.hidden_ns;
  costs.expert_ns.assign(4, 1000);
  costs.attention_ns = costs.head_ns = {0, 0, 0, 0};
  costs.expert_precision = {precision::stored, precision::int8, precision::stored,
                            precision::stored};
  w.placed.experts.clear();
  for (const auto& [server, expert] : {std::pair{0u, 1u}, {1u, 1u}, {2u, 0u}, {3u, 2u}})
    w.placed.experts.push_back({server_id{server}, layer_id{0u}, expert_id{expert}});
  w.placed.residence.assign(4, residency{{1}});

  auto policy = plain_policy(candidate_rule::any, 1);
  policy.calibrated = true;
  policy.distinct = true;
  policy.omega_quality = 0.1;
  const auto tables = built(w, policy, 300'000'000);
  std::vector<loss_units> first(3), second(3);
  tables->slot_losses(0, 0, 0.5f, {}, first);
  tables->slot_losses(0, 1, 0.5f, {}, second);
  const slot_query slots[] = {{0, 0.5f, first}, {1, 0.5f, second}};
  decision_query query;
  query.slots = slots;
  query.budget_left = 300'000'000;
  const auto made = tables->select(query);
  BOOST_TEST(made.time_ns == 6000);
  BOOST_TEST((made.slots[0] == slot_choice{3, 2, 100'000'000}), shown(made));
  BOOST_TEST((made.slots[1] == slot_choice{0, 1, 0}), shown(made));
}

BOOST_AUTO_TEST_CASE(the_recursion_gives_the_same_with_and_without_remembering) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    random_stream random(seed, 7);
    const shape of{2, 3, 3, 1 + random.below(2)};
    const auto w = draw_world(random, of);
    auto policy = draw_policy(random, of);
    policy.residence = residence_choice::free;
    policy.horizon = 1 + random.below(3);
    const auto budget = draw_budget(random);
    selection_oracle plain(w.experts, w.placed, w.costs, policy, budget, false);
    selection_oracle remembering(w.experts, w.placed, w.costs, policy, budget, true);
    for (std::size_t layer = 0; layer < of.n_layers; ++layer)
      BOOST_TEST(plain.value(0, layer, 1, 0, plain.bins() - 1) ==
                     remembering.value(0, layer, 1, 0, plain.bins() - 1),
                 "seed " << seed);
  }
}

// The whole of section V-C at top-1, written out: (37), (38), (40), (42), (43). Similarities are
// such that every loss is a whole number of budget bins, so that the tables' quantisation is exact
// and eq. (40) binds.
BOOST_AUTO_TEST_CASE(at_one_slot_that_moves_the_token_the_choice_is_equation_43) {
  constexpr loss_units unit = 62'500'000;  // 1/16 of eq. (18)'s loss
  std::size_t n_bound = 0, n_substituted = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream random(seed, 43);
    const shape of{2 + random.below(3), 2 + random.below(4), 2 + random.below(4), 1};
    auto w = draw_world(random, of);
    for (auto& layer : w.experts.layers) {
      layer.sets.clear();
      for (std::uint32_t e = 0; e < of.n_experts; ++e)
        layer.sets.push_back({{e}, {1.0}, 1.0 / static_cast<double>(of.n_experts)});
      for (std::size_t i = 0; i < of.n_experts; ++i)
        for (std::size_t j = 0; j < i; ++j)
          layer.router_logit(i, j) = layer.router_logit(j, i) =
              1 - 0.125 * static_cast<double>(1 + random.below(7));
    }
    for (std::size_t l = 0; l + 1 < of.n_layers; ++l) {
      auto& layer = w.experts.layers[l];
      for (std::size_t e = 0; e < of.n_experts; ++e) {
        const auto row = distribution(random, of.n_experts);
        for (std::size_t to = 0; to < of.n_experts; ++to) layer.transition(e, to) = row[to];
      }
      layer.set_transition = layer.transition;
    }
    w.placed.residence = roaming_residency(of.n_servers, of.n_layers);
    selection_policy policy;  // The paper's own: groups, executed experts, equal weights.
    policy.residence = residence_choice::with_slot;
    policy.horizon = 1 + random.below(4);
    const loss_units budget = 15 * unit;
    const auto tables = built(w, policy, budget);
    BOOST_TEST_REQUIRE(tables->bin_width() == unit);

    double d_ref = 0;
    for (const double c : w.costs.expert_ns) d_ref += c / static_cast<double>(of.n_servers);
    const placement_index x(w.placed);
    const auto q = [&](std::size_t l, std::size_t r, std::size_t k) {
      return r == k ? 0.0 : (1 - w.experts.layers[l].router_logit(r, k)) / 2;
    };
    const auto in_v = [&](std::size_t l, std::size_t r, std::size_t k) {
      const auto& g = w.placed.grouping[l];
      return r == k || (g.group_of[r] == g.group_of[k] &&
                        w.experts.layers[l].router_logit(r, k) >= g.threshold);
    };
    const auto g = [&](std::size_t l, std::size_t s, std::size_t r, std::size_t m, std::size_t k) {
      const double d = (s != m ? w.costs.hidden(s, m) : 0) + w.costs.expert_ns[m];
      return 0.5 * d / d_ref + 0.5 * q(l, r, k) / (static_cast<double>(budget) / units_per_loss);
    };
    // Phi of eq. (42), with the budget left (in 1/16) that its candidate sets depend on.
    const auto phi = [&](auto&& self, std::size_t l, std::size_t m, std::size_t k, double left,
                         std::size_t h) -> double {
      if (h == 0 || l + 1 == of.n_layers) return 0;
      double sum = 0;
      for (std::size_t r = 0; r < of.n_experts; ++r) {
        double best = std::numeric_limits<double>::infinity();
        for (std::size_t m2 = 0; m2 < of.n_servers; ++m2)
          for (std::size_t k2 = 0; k2 < of.n_experts; ++k2)
            if (x.hosts(m2, l + 1, k2) && in_v(l + 1, r, k2) && 16 * q(l + 1, r, k2) <= left)
              best =
                  std::min(best, g(l + 1, m, r, m2, k2) +
                                     self(self, l + 1, m2, k2, left - 16 * q(l + 1, r, k2), h - 1));
        sum += w.experts.layers[l].transition(k, r) * best;
      }
      return sum;
    };
    for (std::size_t trial = 0; trial < 5; ++trial) {
      const auto left = static_cast<loss_units>(random.below(16));
      asked a(random, w, *tables, of, left * unit);
      a.query.price_scale = 1;
      const auto made = tables->select(a.query);
      const auto l = a.query.layer;
      const std::size_t r = a.of.targets[0];
      double best = std::numeric_limits<double>::infinity(), chosen = best;
      for (std::size_t m = 0; m < of.n_servers; ++m)
        for (std::size_t k = 0; k < of.n_experts; ++k) {
          if (!x.hosts(m, l, k) || !in_v(l, r, k)) continue;
          if (16 * q(l, r, k) > static_cast<double>(left)) {
            ++n_bound;
            continue;
          }
          const double cost =
              g(l, a.query.server, r, m, k) +
              phi(phi, l, m, k, static_cast<double>(left) - 16 * q(l, r, k), policy.horizon - 1);
          best = std::min(best, cost);
          if (made.slots[0].server == m && made.slots[0].expert == k) chosen = cost;
        }
      BOOST_TEST_REQUIRE(made.residence == made.slots[0].server, "seed " << seed);
      BOOST_TEST_REQUIRE(close(made.cost, best),
                         "seed " << seed << ": " << shown(made) << ", eq. (43) " << best);
      BOOST_TEST_REQUIRE(close(chosen, best), "seed " << seed << ": " << shown(made));
      n_substituted += made.slots[0].expert != r;
    }
  }
  // The instances exercise both sides of eq. (40).
  BOOST_TEST(n_bound > 50u);
  BOOST_TEST(n_substituted > 50u);
}

BOOST_AUTO_TEST_CASE(more_freedom_never_costs_more) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    random_stream random(seed, 11);
    const shape of{3, 1 + random.below(4), 4, 1 + random.below(2)};
    auto w = draw_world(random, of);
    auto policy = draw_policy(random, of);
    policy.residence = residence_choice::free;
    policy.candidates = std::array{candidate_rule::exact, candidate_rule::group,
                                   candidate_rule::any}[random.below(3)];
    // The whole way (0) ends in values relative to the best start, which every other freedom
    // shifts.
    policy.horizon = 1 + random.below(4);
    const auto budget = static_cast<loss_units>(random.uniform(1e8, 2e9));
    const auto tables = built(w, policy, budget);
    const auto slack = [](double cost) { return cost + 1e-12 * std::abs(cost); };

    for (std::size_t layer = 0; layer < of.n_layers; ++layer)
      for (std::size_t s = 0; s < of.n_servers; ++s)
        for (std::size_t bin = 1; bin < tables->bins(); ++bin)
          BOOST_TEST_REQUIRE(
              tables->value(0, layer, s, 0, bin) <= tables->value(0, layer, s, 0, bin - 1),
              "seed " << seed << ": a bin more costs more");
    for (std::size_t trial = 0; trial < 4; ++trial) {
      asked a(random, w, *tables, of, 0);
      double before = std::numeric_limits<double>::infinity();
      for (const double share : {0.0, 0.1, 0.35, 0.7, 1.0}) {
        a.query.budget_left = static_cast<loss_units>(share * static_cast<double>(budget));
        const double cost = tables->select(a.query).cost;
        BOOST_TEST_REQUIRE(cost <= before, "seed " << seed << ": more budget costs more");
        before = cost;
      }
      auto held = a.query;
      held.residences = 1 + random.below(7);
      const double free_cost = tables->select(a.query).cost;
      BOOST_TEST_REQUIRE(free_cost <= tables->select(held).cost, "seed " << seed);
      auto waiting = a.query;
      const std::vector<std::int64_t> waits{500, 2500, 900};
      waiting.wait_ns = waits;
      BOOST_TEST_REQUIRE(free_cost <= tables->select(waiting).cost, "seed " << seed);
      auto queued = a.query;
      const auto busy = busy_links(random, tables->link_ns());
      queued.link_ns = busy;
      BOOST_TEST_REQUIRE(free_cost <= tables->select(queued).cost, "seed " << seed);
      queued.link_ns = tables->link_ns();
      const auto idle = tables->select(queued), plain = tables->select(a.query);
      BOOST_TEST_REQUIRE(
          (idle.cost == plain.cost && idle.time_ns == plain.time_ns && same_choice(idle, plain)),
          "seed " << seed << ": links without a frame are priced as none");

      auto wider = policy;
      wider.candidates = candidate_rule::any;
      const auto any = built(w, wider, budget);
      token all = a.of;
      for (std::size_t j = 0; j < of.top_k; ++j) {
        any->slot_losses(a.query.layer, all.targets[j], all.gates[j], all.probabilities,
                         all.losses[j]);
        all.slots[j].loss = all.losses[j];
      }
      auto wide = a.query;
      wide.slots = all.slots;
      BOOST_TEST_REQUIRE(any->select(wide).cost <= slack(free_cost),
                         "seed " << seed << ": more candidates cost more");
    }
    // One more replica.
    const auto before = tables->value(0, 0, 0, 0, tables->bins() - 1);
    w.placed.experts.push_back({server_id{random.below(3)}, layer_id{random.below(of.n_layers)},
                                expert_id{random.below(4)}});
    BOOST_TEST_REQUIRE(
        built(w, policy, budget)->value(0, 0, 0, 0, tables->bins() - 1) <= slack(before),
        "seed " << seed << ": a replica costs more");
  }
}

BOOST_AUTO_TEST_CASE(no_decision_spends_more_than_is_left) {
  std::size_t n_spending = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream random(seed, 12);
    const auto of = draw_shape_for(seed, random);
    const auto w = draw_world(random, of);
    auto policy = draw_policy(random, of);
    policy.residence = residence_choice::free;
    if (policy.candidates == candidate_rule::router_restricted)
      policy.candidates = candidate_rule::local_only;
    const auto budget = static_cast<loss_units>(random.uniform(1e7, 2e9));
    const auto tables = built(w, policy, budget);
    for (std::size_t trial = 0; trial < 5; ++trial) {
      asked a(random, w, *tables, of, 0);
      const auto free_choice = [&](loss_units left) {
        a.query.budget_left = left;
        return spent(tables->select(a.query));
      };
      const auto most = free_choice(budget);
      BOOST_TEST_REQUIRE(most <= budget, "seed " << seed);
      n_spending += most > 0;
      // Exactly what it would spend is enough, one unit less is not.
      if (most > 0) {
        BOOST_TEST_REQUIRE(free_choice(most) <= most, "seed " << seed);
        BOOST_TEST_REQUIRE(free_choice(most - 1) <= most - 1, "seed " << seed);
      }
      BOOST_TEST_REQUIRE(free_choice(0) == 0, "seed " << seed);
      BOOST_TEST_REQUIRE(free_choice(-5) == 0, "seed " << seed);
    }
  }
  BOOST_TEST(n_spending > 100u);
}

BOOST_AUTO_TEST_CASE(a_decision_allocates_nothing_and_repeats_itself) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    random_stream random(seed, 14);
    const auto of = draw_shape_for(seed, random);
    const auto w = draw_world(random, of);
    auto policy = draw_policy(random, of);
    policy.residence = residence_choice::free;
    const auto budget = draw_budget(random);
    const auto tables = built(w, policy, budget);
    asked a(random, w, *tables, of, budget);
    std::vector<loss_units> losses(of.n_experts);
    const auto before = n_allocations;
    tables->slot_losses(a.query.layer, a.of.targets[0], a.of.gates[0], a.of.probabilities, losses);
    const auto made = tables->select(a.query);
    BOOST_TEST_REQUIRE(n_allocations == before, "seed " << seed);
    const auto again = built(w, policy, budget)->select(a.query);
    BOOST_TEST_REQUIRE(same_choice(made, again), "seed " << seed);
    BOOST_TEST_REQUIRE(made.cost == again.cost, "seed " << seed);
  }
  BOOST_TEST(n_allocations > 0u);
}

BOOST_AUTO_TEST_CASE(the_budget_is_checked_to_the_last_unit) {
  auto w = row_world(1, 1);
  w.placed.grouping.clear();
  const auto tables = built(w, plain_policy(candidate_rule::any, 1), 300'000'000);
  std::vector<loss_units> losses(2);
  tables->slot_losses(0, 1, 1.0f, {}, losses);
  BOOST_TEST(losses[0] == 250'000'000);  // (1 - 0.5) / 2
  BOOST_TEST(losses[1] == 0);
  const std::vector<slot_query> slots{{1, 1.0f, losses}};
  decision_query query;
  query.slots = slots;
  query.budget_left = 250'000'000;
  BOOST_TEST(tables->select(query).slots[0].expert == 0u);
  query.budget_left = 249'999'999;
  const auto exact = tables->select(query);
  BOOST_TEST(exact.slots[0].expert == 1u);
  BOOST_TEST(exact.slots[0].server == 2u);
}

BOOST_AUTO_TEST_CASE(without_a_budget_nothing_is_substituted_and_without_a_limit_loss_is_free) {
  const auto w = row_world(1, 1);
  std::vector<loss_units> losses(2);
  const auto none = built(w, plain_policy(candidate_rule::any, 1), 0);
  none->slot_losses(0, 1, 1.0f, {}, losses);
  const std::vector<slot_query> slots{{1, 1.0f, losses}};
  decision_query query;
  query.slots = slots;
  query.budget_left = 1'000'000'000;
  BOOST_TEST(none->select(query).slots[0].expert == 1u);
  const auto unlimited = built(w, plain_policy(candidate_rule::any, 1), unbounded_budget);
  query.budget_left = unbounded_budget;
  const auto free_choice = unlimited->select(query);
  BOOST_TEST(free_choice.slots[0].expert == 0u);
  BOOST_TEST(free_choice.slots[0].loss == 250'000'000);
  // omega_T times one expert's time over the mean expert's time, and nothing for the loss.
  BOOST_TEST(free_choice.cost == 0.5);
}

BOOST_AUTO_TEST_CASE(what_is_not_the_target_itself_is_never_free) {
  std::size_t n_free = 0, n_decisions = 0;
  for (std::uint64_t seed = 1; n_decisions < 300; ++seed) {
    random_stream random(seed, 43);
    const auto of = draw_shape_for(seed, random);
    auto w = draw_world(random, of);
    auto policy = draw_policy(random, of);
    if (policy.candidates == candidate_rule::router_restricted) continue;
    if (seed % 2 == 0) draw_copies(random, w);
    // Nothing is predicted to be lost by anything.
    for (auto& layer : w.experts.layers) {
      for (std::size_t i = 0; i < of.n_experts; ++i)
        for (std::size_t j = 0; j < of.n_experts; ++j) layer.router_logit(i, j) = 1;
      for (auto& copy : layer.copies) copy.distance.assign(of.n_experts, 0);
    }
    const auto made = selection_tables::build(w.experts, w.placed, w.costs, policy, 1000);
    if (!made) continue;
    const std::vector<float> even(of.n_experts, 1.0f / static_cast<float>(of.n_experts));
    std::vector<std::vector<loss_units>> losses(of.top_k, std::vector<loss_units>(of.n_experts));
    std::vector<slot_query> slots;
    for (std::uint32_t j = 0; j < of.top_k; ++j) {
      (*made)->slot_losses(0, j, 0.5f, even, losses[j]);
      for (std::uint32_t e = 0; e < of.n_experts; ++e)
        BOOST_TEST_REQUIRE((e == j ? losses[j][e] == 0 : losses[j][e] >= 1), "seed " << seed);
      slots.push_back({j, 0.5f, losses[j]});
    }
    decision_query query;
    query.server = static_cast<std::size_t>(std::countr_zero(w.placed.residence[0].layers[0]));
    query.slots = slots;
    query.probabilities = even;
    for (const loss_units left : {0, 1000}) {
      query.budget_left = left;
      const auto choice = (*made)->select(query);
      for (std::uint32_t j = 0; j < of.top_k; ++j) {
        const auto& slot = choice.slots[j];
        const bool is_target =
            slot.expert == j && (w.costs.expert_precision.empty() ||
                                 w.costs.expert_precision[slot.server] == precision::stored ||
                                 !(policy.candidates == candidate_rule::any && policy.calibrated));
        if (left == 0) BOOST_TEST_REQUIRE(is_target, "seed " << seed);
        n_free += is_target ? 0 : 1;
      }
    }
    ++n_decisions;
  }
  BOOST_TEST(n_free > 0u);  // With a budget.
}

BOOST_AUTO_TEST_CASE(experts_that_share_a_server_run_one_after_the_other) {
  auto w = row_world(1, 2);
  const auto policy = plain_policy(candidate_rule::exact, 1);
  const std::vector<slot_query> slots{{0, 0.5f, {}}, {1, 0.5f, {}}};
  decision_query query;
  query.slots = slots;
  // Both at server 0: two runs of 1 us beat 20 us to server 2 and back.
  w.placed.experts.push_back({server_id{0}, layer_id{0}, expert_id{1}});
  auto made = built(w, policy, 0)->select(query);
  BOOST_TEST(made.residence == 0u);
  BOOST_TEST(made.slots[1].server == 0u);
  BOOST_TEST(made.time_ns == 2000);
  // Once a run takes 50 us, the trip to server 2 is shorter than the second run.
  w.costs.expert_ns = {50'000, 50'000, 50'000};
  made = built(w, policy, 0)->select(query);
  BOOST_TEST(made.slots[1].server == 2u);
  BOOST_TEST(made.time_ns ==
             70'000);  // At residence 1: 0 -> 2 (20), 50, back 10; server 0: 50 + 10; or at 2.
}

BOOST_AUTO_TEST_CASE(slots_that_share_an_expert_run_it_once_unless_they_must_differ) {
  auto w = row_world(1, 2);
  auto policy = plain_policy(candidate_rule::any, 1);
  policy.omega_quality = 0;
  auto tables = built(w, policy, unbounded_budget);
  std::vector<loss_units> losses(2), other(2);
  tables->slot_losses(0, 0, 0.5f, {}, losses);
  tables->slot_losses(0, 1, 0.5f, {}, other);
  const std::vector<slot_query> slots{{0, 0.5f, losses}, {1, 0.5f, other}};
  decision_query query;
  query.slots = slots;
  query.budget_left = unbounded_budget;
  auto made = tables->select(query);
  BOOST_TEST(made.slots[0].expert == 0u);
  BOOST_TEST(made.slots[1].expert == 0u);
  BOOST_TEST(made.time_ns == 1000);
  policy.distinct = true;
  made = built(w, policy, unbounded_budget)->select(query);
  BOOST_TEST(made.slots[0].expert != made.slots[1].expert);
}

BOOST_AUTO_TEST_CASE(a_substitute_that_the_other_slot_runs_does_not_hide_the_next_best) {
  // Experts 0, 1 and 2 at servers 0, 1 and 2; the token is at 0, stays there, and wants 0 and 2.
  // The best substitute for 2 is 0, which the first slot runs; what remains is 1, nearer than 2.
  random_stream random(3);
  const shape of{3, 1, 3, 2};
  auto w = draw_world(random, of);
  w.costs = row_world(1, 2).costs;
  w.placed.experts.clear();
  for (std::size_t e = 0; e < 3; ++e)
    w.placed.experts.push_back({server_id{e}, layer_id{0}, expert_id{e}});
  w.placed.residence = access_residency(3, 1);
  auto policy = plain_policy(candidate_rule::any, 1);
  policy.omega_quality = 0;
  policy.distinct = true;
  const std::vector<loss_units> first{0, 10, 20}, second{10, 20, 0};
  const std::vector<slot_query> slots{{0, 0.5f, first}, {2, 0.5f, second}};
  decision_query query;
  query.slots = slots;
  query.budget_left = 1000;
  const auto made = built(w, policy, 1000)->select(query);
  BOOST_TEST(made.slots[0].expert == 0u);
  BOOST_TEST(made.slots[1].expert == 1u);
  BOOST_TEST(made.time_ns == 21'000);
}

BOOST_AUTO_TEST_CASE(looking_ahead_moves_the_token_where_the_next_experts_are) {
  // Two layers, both of whose targets are expert 1 at server 2. From server 1 the first step alone
  // sees no reason not to come back; with the second layer in sight the token stays where its next
  // expert is.
  auto w = row_world(2, 1);
  w.experts.layers[0].sets = w.experts.layers[1].sets = {{{1}, {1.0}, 1.0}};
  w.experts.layers[0].set_transition = matrix(1, 1, 1);
  w.placed.residence.assign(3, residency{{7, 7}});
  const std::vector<slot_query> slots{{1, 1.0f, {}}};
  decision_query query;
  query.server = 1;
  query.slots = slots;
  query.residences = 0b011;
  const auto myopic = built(w, plain_policy(candidate_rule::exact, 1), 0)->select(query);
  BOOST_TEST(myopic.residence == 1u);
  query.residences = ~server_mask{0};
  const auto looking = built(w, plain_policy(candidate_rule::exact, 2), 0)->select(query);
  BOOST_TEST(looking.residence == 2u);
  // 11 us to run at server 2, then 1 us more there: in units of the expert time, halved by omega_T.
  BOOST_TEST(looking.cost == 0.5 * 12);
}

BOOST_AUTO_TEST_CASE(a_residence_mask_that_allows_nothing_is_ignored) {
  auto w = row_world(2, 1);
  w.placed.residence.assign(3, residency{{7, 0b010}});
  const auto tables = built(w, plain_policy(candidate_rule::exact, 1), 0);
  const std::vector<slot_query> slots{{0, 1.0f, {}}};
  decision_query query;
  query.slots = slots;
  query.residences = 0b101;
  BOOST_TEST(tables->select(query).residence == 1u);
}

BOOST_AUTO_TEST_CASE(equal_costs_go_to_the_lower_servers) {
  auto w = row_world(1, 1);
  // Expert 1 at servers 0 and 2, the token in the middle.
  w.placed.experts.push_back({server_id{0}, layer_id{0}, expert_id{1}});
  w.placed.residence.assign(3, residency{{0b010}});
  const auto tables = built(w, plain_policy(candidate_rule::exact, 1), 0);
  const std::vector<slot_query> slots{{1, 1.0f, {}}};
  decision_query query;
  query.server = 1;
  query.slots = slots;
  const auto made = tables->select(query);
  BOOST_TEST(made.slots[0].server == 0u);
  BOOST_TEST(made.residence == 1u);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_together_is_refused) {
  const auto refused = [](const world& w, const selection_policy& policy, loss_units budget = 0) {
    const auto made = selection_tables::build(w.experts, w.placed, w.costs, policy, budget);
    BOOST_TEST_REQUIRE(!made.has_value());
    return made.error();
  };
  const auto policy = plain_policy(candidate_rule::exact, 3);
  auto moving = policy;
  moving.residence = residence_choice::with_slot;
  BOOST_TEST((refused(row_world(2, 2), moving).code == errc::usage));
  auto w = row_world(2, 1);
  w.placed.residence[1].layers[1] = 0b010;  // Nothing is hosted there.
  BOOST_TEST((refused(w, moving).code == errc::mismatch));
  BOOST_TEST((refused(w, plain_policy(candidate_rule::group, 3)).code == errc::mismatch));
  auto none = policy;
  none.budget_bins = 0;
  BOOST_TEST((refused(row_world(2, 1), none).code == errc::usage));
  BOOST_TEST((refused(row_world(2, 1), policy, -1).code == errc::usage));
  w = row_world(2, 1);
  w.placed.experts.pop_back();
  BOOST_TEST((refused(w, policy).code == errc::mismatch));
  BOOST_TEST(refused(w, policy).message.find("expert 1 of layer 1") != std::string::npos);
  w = row_world(2, 1);
  w.placed.n_layers = 3;
  BOOST_TEST((refused(w, policy).code == errc::mismatch));
  w = row_world(2, 1);
  w.placed.residence[2].layers[0] = 0b1000;
  BOOST_TEST((refused(w, policy).code == errc::mismatch));
  w.placed.residence.pop_back();
  BOOST_TEST((refused(w, policy).code == errc::mismatch));
}

BOOST_AUTO_TEST_CASE(too_many_target_sets_are_refused_before_they_take_the_memory) {
  const auto wide = random_profile(2, 60, 4, 1);
  plan placed;
  placed.n_servers = 2;
  placed.n_layers = 2;
  placed.n_experts = 60;
  for (std::size_t l = 0; l < 2; ++l)
    for (std::size_t e = 0; e < 60; ++e)
      placed.experts.push_back({server_id{e % 2}, layer_id{l}, expert_id{e}});
  placed.residence = roaming_residency(2, 2);
  const auto costs = row_world(1, 1).costs;
  cost_model two;
  two.n_servers = 2;
  two.hidden_ns = two.kv_ns = two.message_ns = {0, 1, 1, 0};
  two.expert_ns = two.attention_ns = two.head_ns = {1, 1};
  const auto policy = plain_policy(candidate_rule::any, 3);
  const auto made =
      selection_tables::build(wide, placed, two, policy, 1'000'000, look_ahead_keys::sets);
  BOOST_TEST_REQUIRE(!made.has_value());
  BOOST_TEST((made.error().code == errc::unsupported));
  const auto by_expert = selection_tables::build(wide, placed, two, policy, 1'000'000);
  BOOST_TEST_REQUIRE(by_expert.has_value());
  BOOST_TEST(((*by_expert)->keys() == look_ahead_keys::experts));
}

BOOST_AUTO_TEST_CASE(weights_follow_the_scarcer_of_budget_and_time) {
  const auto towards_quality = adapt_weights(0.5, 0.1, 0.9, 0.4);
  BOOST_TEST(towards_quality.omega_quality == 0.5 + 0.1 * (0.9 - 0.4));
  BOOST_TEST(towards_quality.omega_time == 1 - towards_quality.omega_quality);
  BOOST_TEST(adapt_weights(0.5, 0.1, 0.4, 0.9).omega_quality < 0.5);
  BOOST_TEST(adapt_weights(0.99, 1, 1, 0).omega_quality == 1);
  BOOST_TEST(adapt_weights(0.01, 1, 0, 1).omega_quality == 0);
  BOOST_TEST(adapt_weights(0.01, 1, 0, 1).omega_time == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ordermoe::planning
