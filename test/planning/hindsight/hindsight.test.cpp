#include "planning/hindsight/hindsight.hpp"

#include <boost/test/unit_test.hpp>
#include <optional>
#include <set>

#include "planning/infinity.hpp"
#include "test/planning/selection/selector_worlds.hpp"
#include "test/support/seeds.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;
using namespace ordermoe::planning::drawn;

namespace {

/// A request that was decided on by the selector.
struct decided_request {
  world of;
  selection_policy policy;
  std::shared_ptr<const selection_tables> tables;
  past_request past;
};

std::size_t nearest(const world& of, std::size_t access, std::size_t from) {
  std::size_t best = 64;
  for (std::size_t m = 0; m < of.costs.n_servers; ++m)
    if (((of.placed.residence[access].layers[0] >> m) & 1u) != 0 &&
        (best == 64 || of.costs.message(from, m) < of.costs.message(from, best)))
      best = m;
  return best;
}

/// Runs `n_positions` of a request through the selector; draw(layer) gives each row's targets, gates and probabilities.
template <class Draw>
past_request decide_all(const world& of, const selection_tables& tables, std::size_t n_positions,
                        loss_units budget, std::size_t access, const Draw& draw) {
  past_request past;
  past.access = static_cast<std::uint32_t>(access);
  past.budget = budget;
  auto server = nearest(of, access, access);
  auto left = budget;
  for (std::size_t p = 0; p < n_positions; ++p) {
    past_chunk chunk;
    chunk.is_sampled = true;
    for (std::size_t l = 0; l < of.experts.n_layers; ++l) {
      past_row row = draw(l);
      std::vector<std::vector<loss_units>> losses(row.slots.size());
      std::vector<slot_query> slots;
      for (std::size_t j = 0; j < row.slots.size(); ++j) {
        losses[j].resize(of.experts.n_experts);
        tables.slot_losses(l, row.slots[j].target, row.slots[j].gate, row.probabilities, losses[j]);
        slots.push_back({row.slots[j].target, row.slots[j].gate, losses[j]});
      }
      decision_query query;
      query.layer = l;
      query.server = server;
      query.access = access;
      query.slots = slots;
      query.budget_left = left;
      query.probabilities = row.probabilities;
      const auto choice = tables.select(query);
      for (std::size_t j = 0; j < row.slots.size(); ++j) {
        row.slots[j].expert = choice.slots[j].expert;
        row.slots[j].server = choice.slots[j].server;
        row.slots[j].loss = choice.slots[j].loss;
        left -= choice.slots[j].loss;
      }
      chunk.layers.push_back({static_cast<std::uint32_t>(server), choice.residence, {row}});
      server = choice.residence;
    }
    past.chunks.push_back(std::move(chunk));
    server = nearest(of, access, server);
  }
  return past;
}

past_row drawn_row(random_stream& random, const shape& of) {
  past_row row;
  std::vector<std::uint32_t> order(of.n_experts);
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = of.n_experts; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  row.probabilities.resize(of.n_experts);
  float weight = 1;
  for (const auto e : order) row.probabilities[e] = weight /= 2;
  for (std::size_t j = 0; j < of.top_k; ++j)
    row.slots.push_back({order[j], static_cast<float>(number(random, 0.1, 0.9))});
  return row;
}

/// The least time of every residence, server and expert for every slot, one after the other.
class enumeration {
 public:
  explicit enumeration(const decided_request& of) : of_(of) {}

  double best(loss_units budget) {
    best_ = infinity;
    budget_ = budget;
    const auto start = nearest(of_.of, of_.past.access, of_.past.access);
    follow(0, 0, start, of_.of.costs.attention_ns[start], 0);
    return best_;
  }

 private:
  bool may_run(std::size_t layer, const past_row& row, const past_slot& slot, std::uint32_t e,
               std::size_t m, std::size_t from, loss_units& loss) const {
    const placement_index index(of_.of.placed);
    if (!index.hosts(m, layer, e)) return false;
    loss = 0;
    if (e == slot.target) return true;
    const auto rule = of_.policy.candidates;
    if (rule == candidate_rule::exact) return false;
    const bool stays = rule == candidate_rule::local_only ||
                       rule == candidate_rule::router_restricted ||
                       rule == candidate_rule::here_or_target;
    std::vector<loss_units> losses(of_.of.experts.n_experts);
    of_.tables->slot_losses(layer, slot.target, slot.gate, row.probabilities, losses);
    loss = losses[e];
    return loss < forbidden && (!stays || m == from);
  }

  void follow(std::size_t position, std::size_t layer, std::size_t from, double ns,
              loss_units loss) {
    if (ns >= best_ || loss > budget_) return;
    const auto& costs = of_.of.costs;
    if (position == of_.past.chunks.size()) {
      best_ = ns;
      return;
    }
    const auto n_layers = of_.of.experts.n_layers;
    const auto& members = of_.of.placed.residence[of_.past.access].layers;
    const bool is_end = layer + 1 == n_layers;
    const bool with_slot = of_.policy.residence == residence_choice::with_slot;
    for (std::size_t n = 0; n < costs.n_servers; ++n) {
      const auto allowed = !is_end     ? members[layer + 1]
                           : with_slot ? ~server_mask{0}
                                       : members[layer] | members[0];
      if (((allowed >> n) & 1u) == 0) continue;
      double after = costs.attention_ns[n];
      std::size_t next = n;
      if (is_end) {
        const bool is_last = position + 1 == of_.past.chunks.size();
        next = nearest(of_.of, of_.past.access, n);
        after = costs.head_ns[n] + (is_last ? costs.message(n, of_.past.access)
                                            : costs.message(n, next) + costs.attention_ns[next]);
      }
      std::vector<std::pair<std::size_t, std::uint32_t>> taken;
      fill(position, layer, from, n, next, after, ns, loss, taken);
    }
  }

  void fill(std::size_t position, std::size_t layer, std::size_t from, std::size_t n,
            std::size_t next, double after, double ns, loss_units loss,
            std::vector<std::pair<std::size_t, std::uint32_t>>& taken) {
    const auto& costs = of_.of.costs;
    const auto& row = of_.past.chunks[position].layers[layer].rows[0];
    if (taken.size() == row.slots.size()) {
      double step = costs.hidden(from, n);
      for (const auto& [m, e] : taken) {
        std::set<std::uint32_t> run;
        for (const auto& [other, expert] : taken)
          if (other == m) run.insert(expert);
        step = std::max(step, costs.hidden(from, m) +
                                  static_cast<double>(run.size()) * costs.expert_ns[m] +
                                  costs.hidden(m, n));
      }
      const bool is_end = layer + 1 == of_.of.experts.n_layers;
      follow(position + (is_end ? 1 : 0), is_end ? 0 : layer + 1, next, ns + step + after, loss);
      return;
    }
    const auto& slot = row.slots[taken.size()];
    for (std::size_t m = 0; m < costs.n_servers; ++m) {
      if (of_.policy.residence == residence_choice::with_slot && m != n) continue;
      for (std::uint32_t e = 0; e < of_.of.experts.n_experts; ++e) {
        loss_units lost = 0;
        if (!may_run(layer, row, slot, e, m, from, lost)) continue;
        bool shares = false;
        for (const auto& other : taken) shares = shares || other.second == e;
        if (shares && of_.policy.distinct &&
            of_.policy.candidates != candidate_rule::router_restricted)
          continue;
        taken.emplace_back(m, e);
        fill(position, layer, from, n, next, after, ns, loss + lost, taken);
        taken.pop_back();
      }
    }
  }

  const decided_request& of_;
  double best_ = infinity;
  loss_units budget_ = 0;
};

/// Small enough for every way to be tried.
std::optional<decided_request> drawn_request(std::uint64_t seed) {
  random_stream random(seed, 0x90a1);
  const shape small{2, 1 + random.below(2), 3, 1 + random.below(2)};
  decided_request made;
  made.of = draw_world(random, small);
  made.policy = draw_policy(random, small);
  auto budget = draw_budget(random);
  const bool keeps = made.policy.candidates != candidate_rule::router_restricted;
  if (!keeps) budget = unbounded_budget;
  const auto tables =
      selection_tables::build(made.of.experts, made.of.placed, made.of.costs, made.policy, budget);
  if (!tables) return std::nullopt;  // with_slot where that cannot be.
  made.tables = *tables;
  const std::size_t n_positions = small.top_k == 1 ? 3 - small.n_layers : 1;
  const auto total =
      budget < unbounded_budget ? budget * static_cast<loss_units>(n_positions) : unbounded_budget;
  made.past = decide_all(made.of, *made.tables, n_positions, total, random.below(2),
                         [&](std::size_t) { return drawn_row(random, small); });
  return made;
}

enum class plan_kind { whole, prunes };

/// One position of three layers on two servers, decided exactly; under a plan that may leave experts to nobody and leaves none, or
/// under one that may not.
decided_request decided_exactly(plan_kind kind) {
  random_stream random(5, 0xc4);
  const shape small{3, 2, 4, 2};
  decided_request made;
  made.of = draw_world(random, small);
  if (kind == plan_kind::prunes)
    made.of.placed.pruned.assign(
        small.n_servers, pruned_experts{std::vector<std::vector<std::uint32_t>>(small.n_layers)});
  made.policy.candidates = candidate_rule::exact;
  made.policy.horizon = 1;
  made.policy.distinct = true;
  const auto tables =
      selection_tables::build(made.of.experts, made.of.placed, made.of.costs, made.policy, 0);
  BOOST_REQUIRE(tables.has_value());
  made.tables = *tables;
  made.past = decide_all(made.of, *made.tables, 1, 0, 0,
                         [&](std::size_t) { return drawn_row(random, small); });
  return made;
}

double relative(double a, double b) {
  return std::abs(a - b) / std::max(1.0, std::abs(b));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hindsight)

BOOST_AUTO_TEST_CASE(the_optimum_is_that_of_every_way_there_is) {
  const auto range = test::seeds(1000);
  std::size_t tried = 0, better = 0, limited = 0;
  for (auto seed = range.first; seed <= range.last; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      const auto made = drawn_request(seed);
      if (!made) continue;
      ++tried;
      const auto problem = planning::hindsight::make(made->of.experts, made->of.placed,
                                                     made->of.costs, made->policy);
      BOOST_REQUIRE(problem.has_value());
      const auto gap = problem->solve(made->past, {});
      BOOST_REQUIRE_MESSAGE(gap.has_value(), (gap ? "" : gap.error().message));
      enumeration all(*made);
      const auto least = all.best(made->past.budget);
      BOOST_TEST(gap->best.is_exact);
      BOOST_TEST(relative(gap->best.ns, least) < 1e-9);
      BOOST_TEST(gap->best.bound_ns <= gap->best.ns);
      BOOST_TEST(gap->best.ns <= gap->taken_ns * (1 + 1e-9));
      BOOST_TEST(relative(gap->best_at_loss.ns,
                          all.best(std::min(gap->taken_loss, made->past.budget))) < 1e-9);
      better += gap->gap_percent() > 0.01;
      limited += gap->best.ns > all.best(unbounded_budget) * (1 + 1e-9);
    }
  }
  if (range.last - range.first + 1 < 100) return;
  BOOST_TEST(tried > 150u);
  BOOST_TEST(better > 20u);
  BOOST_TEST(limited > 20u);
}

BOOST_AUTO_TEST_CASE(more_budget_never_makes_it_worse) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      auto made = drawn_request(seed);
      if (!made) continue;
      const auto problem = planning::hindsight::make(made->of.experts, made->of.placed,
                                                     made->of.costs, made->policy);
      BOOST_REQUIRE(problem.has_value());
      double before = infinity;
      for (const loss_units more : {loss_units{0}, loss_units{1'000'000}, loss_units{400'000'000},
                                    loss_units{5'000'000'000}, unbounded_budget}) {
        made->past.budget = more;
        const auto gap = problem->solve(made->past, {});
        BOOST_REQUIRE_MESSAGE(gap.has_value(), (gap ? "" : gap.error().message));
        BOOST_TEST(gap->best.ns <= before * (1 + 1e-12));
        before = gap->best.ns;
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(where_routers_are_foreseen_full_look_ahead_leaves_no_gap_and_none_may) {
  std::size_t myopic_gaps = 0, told = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 0xf0e);
      const shape small{3, 4, 4, 1 + random.below(2)};
      auto of = draw_world(random, small);
      // One target set a layer: what follows is certain.
      for (auto& layer : of.experts.layers) {
        layer.sets.resize(1);
        layer.sets[0].probability = 1;
        if (layer.set_transition.rows > 0) layer.set_transition = matrix(1, 1, 1);
      }
      const std::size_t access = random.below(3);
      for (auto& members : of.placed.residence) members.layers[0] = server_bit(access);
      selection_policy policy;
      policy.candidates = seed % 2 == 0 ? candidate_rule::any : candidate_rule::exact;
      policy.omega_time = 1;
      policy.omega_quality = 0;
      policy.price_attention = true;
      policy.distinct = true;
      const auto problem = planning::hindsight::make(of.experts, of.placed, of.costs, policy);
      BOOST_REQUIRE(problem.has_value());
      const auto targets = [&](std::size_t l) {
        past_row row;
        row.probabilities.assign(small.n_experts, 0.25f);
        const auto& set = of.experts.layers[l].sets[0];
        for (std::size_t j = 0; j < small.top_k; ++j)
          row.slots.push_back({set.experts[j], static_cast<float>(set.mean_gate[j])});
        return row;
      };
      for (const std::size_t horizon : {std::size_t{0}, std::size_t{1}}) {
        policy.horizon = horizon;
        const auto tables =
            selection_tables::build(of.experts, of.placed, of.costs, policy, unbounded_budget);
        BOOST_REQUIRE(tables.has_value());
        const auto past = decide_all(of, **tables, 2, unbounded_budget, access, targets);
        const auto gap = problem->solve(past, {});
        BOOST_REQUIRE_MESSAGE(gap.has_value(), (gap ? "" : gap.error().message));
        BOOST_TEST(gap->best.is_exact);
        if (horizon == 0) BOOST_TEST(relative(gap->taken_ns, gap->best.ns) < 1e-9);
        myopic_gaps += horizon == 1 && gap->gap_percent() > 0.01;
        told += gap->ahead_changes_nothing;
      }
    }
  }
  BOOST_TEST(myopic_gaps > 5u);
  BOOST_TEST(told > 5u);
  BOOST_TEST(told < 115u);
}

BOOST_AUTO_TEST_CASE(without_a_choice_of_residence_looking_ahead_changes_nothing) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 0xa10e);
      const shape small{3, 3, 4, 2};
      auto of = draw_world(random, small);
      for (std::size_t a = 0; a < 3; ++a) of.placed.residence[a].layers.assign(3, server_bit(a));
      selection_policy policy;
      policy.candidates = candidate_rule::exact;
      policy.horizon = 1;
      policy.distinct = true;
      const auto tables = selection_tables::build(of.experts, of.placed, of.costs, policy, 0);
      BOOST_REQUIRE(tables.has_value());
      const auto past = decide_all(of, **tables, 2, 0, random.below(3),
                                   [&](std::size_t) { return drawn_row(random, small); });
      const auto problem = planning::hindsight::make(of.experts, of.placed, of.costs, policy);
      BOOST_REQUIRE(problem.has_value());
      const auto gap = problem->solve(past, {});
      BOOST_REQUIRE_MESSAGE(gap.has_value(), (gap ? "" : gap.error().message));
      BOOST_TEST(gap->ahead_changes_nothing);
      BOOST_TEST(gap->gap_percent() < 1e-6);
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_of_a_chunk_wait_for_the_slowest_and_decisions_of_others_are_refused) {
  auto [of, policy, tables, past] = decided_exactly(plan_kind::whole);
  const auto problem = planning::hindsight::make(of.experts, of.placed, of.costs, policy);
  BOOST_REQUIRE(problem.has_value());
  const auto one = problem->solve(past, {});
  BOOST_REQUIRE(one.has_value());
  // The same row twice takes as long as once.
  for (auto& step : past.chunks[0].layers) step.rows.push_back(step.rows.front());
  const auto twice = problem->solve(past, {});
  BOOST_REQUIRE(twice.has_value());
  BOOST_TEST(twice->taken_ns == one->taken_ns);
  BOOST_TEST(twice->best.ns == one->best.ns);
  past.chunks[0].layers[1].rows[0].slots[0].loss = 7;
  const auto changed = problem->solve(past, {});
  BOOST_REQUIRE(!changed.has_value());
  BOOST_TEST((changed.error().code == errc::failed));
  BOOST_TEST(changed.error().message.find("layer 1") != std::string::npos, changed.error().message);
}

BOOST_AUTO_TEST_CASE(under_a_plan_that_prunes_a_slot_that_is_left_out_is_refused) {
  auto [of, policy, tables, past] = decided_exactly(plan_kind::prunes);
  const auto problem = planning::hindsight::make(of.experts, of.placed, of.costs, policy);
  BOOST_REQUIRE(problem.has_value());
  BOOST_TEST(problem->prunes());
  const auto whole = problem->solve(past, {});
  BOOST_REQUIRE_MESSAGE(whole.has_value(), (whole ? "" : whole.error().message));
  past.chunks[0].layers[1].rows[0].slots[0].expert = left_out;
  const auto changed = problem->solve(past, {});
  BOOST_REQUIRE(!changed.has_value());
  BOOST_TEST((changed.error().code == errc::failed));
  BOOST_TEST(changed.error().message.find("layer 1") != std::string::npos, changed.error().message);
}

BOOST_AUTO_TEST_SUITE_END()
