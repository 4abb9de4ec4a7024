#include "planning/serving/decide.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>

namespace ordermoe {

namespace {

using planning::candidate_rule;
using planning::decision;
using planning::decision_query;
using wire::executed_slot;

constexpr std::size_t n_experts = 4;

/// Tables that do what a test says and remember what they were asked.
class scripted_tables final : public planning::selection_tables {
 public:
  std::function<decision(const decision_query&)> answer;
  planning::selection_policy rules;
  mutable std::vector<decision_query> asked;  ///< Their spans are gone.
  mutable std::vector<std::vector<loss_units>> losses_asked;
  mutable std::vector<std::vector<float>> probabilities_asked, gates_asked;  ///< As they were.

  void slot_losses(std::size_t, std::uint32_t target, float, std::span<const float>,
                   std::span<loss_units> losses) const override {
    for (std::size_t e = 0; e < losses.size(); ++e) losses[e] = e == target ? 0 : 10;
  }
  decision select(const decision_query& query) const override {
    asked.push_back(query);
    probabilities_asked.emplace_back(query.probabilities.begin(), query.probabilities.end());
    gates_asked.emplace_back();
    for (const auto& slot : query.slots) gates_asked.back().push_back(slot.gate);
    for (const auto& slot : query.slots)
      losses_asked.emplace_back(slot.loss.begin(), slot.loss.end());
    return answer(query);
  }
  std::span<const double> link_ns() const override { return {}; }
  double value(std::size_t, std::size_t, std::size_t, std::size_t, std::size_t) const override {
    return 0;
  }
  std::vector<double> damage_at{1};  ///< By position; the last one goes on.
  double unread_damage = 1;
  double position_damage(std::size_t position, std::size_t unread_before) const override {
    return position < unread_before ? unread_damage * static_cast<double>(unread_before)
                                    : damage_at[std::min(position, damage_at.size() - 1)];
  }
  std::vector<std::uint8_t> without;  ///< Pruned.
  std::span<const std::uint8_t> pruned(std::size_t, std::size_t) const override { return without; }
  loss_units pruned_loss(std::size_t layer, double regret) const override {
    return static_cast<loss_units>(std::lround(1000 * regret)) + static_cast<loss_units>(layer);
  }
  loss_units loss_left_out(std::size_t, const planning::slot_query&,
                           std::span<const float>) const override {
    return 1;
  }
  std::size_t bins() const override { return 1; }
  loss_units bin_width() const override { return 1; }
  const planning::selection_policy& policy() const override { return rules; }
  loss_units budget = 100;
  loss_units token_budget() const override { return budget; }
  planning::look_ahead_keys keys() const override { return planning::look_ahead_keys::sets; }
};

/// Runs the targets where the token is told to go, each for so much.
decision all_at(std::uint32_t residence, const decision_query& query, loss_units loss = 0) {
  decision made;
  made.residence = residence;
  made.n_slots = static_cast<std::uint32_t>(query.slots.size());
  for (std::size_t j = 0; j < query.slots.size(); ++j)
    made.slots[j] = {residence, query.slots[j].target, loss};
  return made;
}

constexpr float none = -INFINITY;
/// Row 0 wants experts 1 and 0, row 1 experts 2 and 3, row 2 experts 3 and 0.
const std::vector<float> three_rows{1, 2, 0, 0, 0, 0, 2, 1, 1, 0, 0, 2};

struct question {
  scripted_tables tables;
  std::vector<float> logits = three_rows;
  std::vector<loss_units> allowance{50, 50, 50};
  serving::decide_input input;

  question() {
    tables.rules.candidates = candidate_rule::any;
    input.server = 1;
    input.n_experts = n_experts;
    input.top_k = 2;
    input.pool = 1000;
    input.next_members = 0b111;
  }
  serving::chunk_decision decide() {
    input.logits = logits;
    input.allowance = allowance;
    return serving::decide(tables, input);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(decide)

BOOST_AUTO_TEST_CASE(targets_are_the_largest_scores_in_rank_order) {
  question q;
  q.tables.answer = [](const decision_query& query) { return all_at(0, query); };
  const auto chunk = q.decide();
  const auto wants = [&](std::size_t row, std::uint32_t first, std::uint32_t second) {
    return chunk.rows[row].targets.size() == 2 && chunk.rows[row].targets[0] == first &&
           chunk.rows[row].targets[1] == second;
  };
  BOOST_TEST(wants(0, 1, 0));
  BOOST_TEST(wants(1, 2, 3));
  BOOST_TEST(wants(2, 3, 0));
  BOOST_TEST(chunk.rows[0].target_gates[0] > chunk.rows[0].target_gates[1]);
  BOOST_TEST(chunk.rows[0].target_gates[0] + chunk.rows[0].target_gates[1] == 1.0f);
}

BOOST_AUTO_TEST_CASE(the_residence_with_most_rows_wins_and_every_row_then_chooses_for_it) {
  question q;
  // Rows want to go to 2, 0, 2; once the residence is given they obey.
  q.tables.answer = [&](const decision_query& query) {
    const auto wish = query.slots[0].target == 2 ? 0u : 2u;
    return all_at(query.residences == ~planning::server_mask{0} ? wish : 2u, query);
  };
  const auto chunk = q.decide();
  BOOST_TEST(chunk.residence == 2u);
  BOOST_REQUIRE_EQUAL(q.tables.asked.size(), 6u);
  for (std::size_t i = 0; i < 3; ++i)
    BOOST_TEST(q.tables.asked[i].residences == ~planning::server_mask{0});
  for (std::size_t i = 3; i < 6; ++i) BOOST_TEST(q.tables.asked[i].residences == 0b100u);
}

// Four times at the first position that is asked for here, as much everywhere behind it.
BOOST_AUTO_TEST_CASE(losses_go_by_the_position_and_what_runs_does_not) {
  question plain, early;
  for (auto* q : {&plain, &early})
    q->tables.answer = [](const decision_query& query) { return all_at(0, query); };
  early.tables.damage_at = {9, 9, 9, 4, 1};
  early.input.first = 3;
  const auto expected = plain.decide(), found = early.decide();
  const auto n_rows = found.rows.size();
  BOOST_TEST_REQUIRE(early.tables.asked.size() >= n_rows);
  for (std::size_t i = 0; i < n_rows; ++i) {
    const double times = i == 0 ? 4 : 1;
    for (std::size_t j = 0; j < 2; ++j) {
      BOOST_TEST(std::abs(early.tables.gates_asked[i][j] -
                          plain.tables.gates_asked[i][j] * std::sqrt(times)) < 1e-6);
      BOOST_TEST(found.rows[i].target_gates[j] == expected.rows[i].target_gates[j]);
      BOOST_TEST(found.rows[i].executed[j].gate == expected.rows[i].executed[j].gate);
    }
    for (std::size_t e = 0; e < n_experts; ++e)
      BOOST_TEST(std::abs(early.tables.probabilities_asked[i][e] -
                          plain.tables.probabilities_asked[i][e] * times) < 1e-6);
  }
}

BOOST_AUTO_TEST_CASE(what_nobody_reads_loses_by_how_much_of_it_there_is) {
  question q;
  q.tables.answer = [](const decision_query& query) { return all_at(0, query); };
  q.tables.damage_at = {8};
  q.tables.unread_damage = 0.5;
  q.input.first = 5;
  q.input.unread_before = 7;
  const auto chunk = q.decide();
  for (std::size_t i = 0; i < 3; ++i)
    BOOST_TEST(std::abs(q.tables.gates_asked[i][0] -
                        chunk.rows[i].target_gates[0] * std::sqrt(i < 2 ? 3.5 : 8.0)) < 1e-6);
}

BOOST_AUTO_TEST_CASE(a_draw_goes_to_the_lower_server) {
  question q;
  q.logits.resize(2 * n_experts);
  q.allowance.resize(2);
  q.tables.answer = [&](const decision_query& query) {
    if (query.residences != ~planning::server_mask{0})
      return all_at(static_cast<std::uint32_t>(std::countr_zero(query.residences)), query);
    return all_at(query.slots[0].target == 1 ? 2 : 0, query);
  };
  BOOST_TEST(q.decide().residence == 0u);
}

BOOST_AUTO_TEST_CASE(rows_are_not_asked_twice_where_only_one_residence_may_follow) {
  question q;
  q.input.next_members = 0b100;
  q.tables.answer = [](const decision_query& query) { return all_at(2, query); };
  BOOST_TEST(q.decide().residence == 2u);
  BOOST_TEST(q.tables.asked.size() == 3u);
  q.tables.asked.clear();
  q.input.next_members = 0b111;
  q.logits.resize(n_experts);
  q.allowance.resize(1);
  q.decide();
  BOOST_TEST(q.tables.asked.size() == 1u);  // One row has no vote to lose.
}

BOOST_AUTO_TEST_CASE(a_row_spends_at_most_its_allowance_and_what_is_left_of_the_pool) {
  question q;
  q.input.next_members = 0b100;
  q.input.pool = 70;
  q.allowance = {50, 30, 50};
  q.tables.answer = [](const decision_query& query) { return all_at(2, query, 10); };
  const auto chunk = q.decide();
  BOOST_TEST(q.tables.asked[0].budget_left == 50);
  BOOST_TEST(q.tables.asked[1].budget_left == 30);
  BOOST_TEST(q.tables.asked[2].budget_left == 30);  // 70 less twice 20.
  BOOST_TEST(chunk.pool_left == 10);
  for (const auto& row : chunk.rows) BOOST_TEST(row.loss == 20);
}

BOOST_AUTO_TEST_CASE(the_vote_spends_nothing) {
  question q;
  q.input.pool = 70;
  q.tables.answer = [](const decision_query& query) { return all_at(2, query, 10); };
  const auto chunk = q.decide();
  BOOST_REQUIRE_EQUAL(q.tables.asked.size(), 6u);
  BOOST_TEST(q.tables.asked[2].budget_left == 30);
  BOOST_TEST(q.tables.asked[3].budget_left == 50);
  BOOST_TEST(chunk.pool_left == 10);
}

BOOST_AUTO_TEST_CASE(rows_without_slots_choose_nothing_and_have_no_say) {
  question q;
  for (std::size_t e = 0; e < n_experts; ++e) q.logits[e] = q.logits[n_experts + e] = none;
  q.tables.answer = [](const decision_query& query) { return all_at(2, query); };
  const auto chunk = q.decide();
  BOOST_TEST(chunk.rows[0].targets.empty());
  BOOST_TEST(chunk.rows[0].executed.empty());
  BOOST_TEST(chunk.residence == 2u);
  BOOST_TEST(q.tables.asked.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_chunk_without_slots_stays_if_it_may_and_goes_to_the_lowest_member_if_not) {
  question q;
  q.logits.assign(3 * n_experts, none);
  q.input.next_members = 0b110;
  BOOST_TEST(q.decide().residence == 1u);
  q.input.next_members = 0b1100;
  BOOST_TEST(q.decide().residence == 2u);
  q.input.next_members = 0;
  BOOST_TEST(q.decide().residence == 1u);
  BOOST_TEST(q.decide().pool_left == 1000);
  BOOST_TEST(q.tables.asked.empty());
}

BOOST_AUTO_TEST_CASE(slots_that_share_an_expert_run_it_once_with_both_gates) {
  question q;
  q.logits.resize(n_experts);
  q.allowance.resize(1);
  q.tables.answer = [](const decision_query& query) {
    auto made = all_at(2, query);
    made.slots[0] = made.slots[1] = {2, 3, 10};
    return made;
  };
  const auto shared = q.decide().rows[0];
  BOOST_REQUIRE_EQUAL(shared.executed.size(), 1u);
  BOOST_TEST(shared.executed[0].expert == 3u);
  BOOST_TEST(shared.executed[0].gate == 1.0f);
  BOOST_TEST(shared.loss == 20);
  // The same expert on two servers runs twice.
  q.tables.answer = [](const decision_query& query) {
    auto made = all_at(2, query);
    made.slots[0] = {2, 3, 10};
    made.slots[1] = {1, 3, 10};
    return made;
  };
  const auto apart = q.decide().rows[0];
  BOOST_REQUIRE_EQUAL(apart.executed.size(), 2u);
  BOOST_TEST(apart.executed[0].gate == apart.target_gates[0]);
  BOOST_TEST(apart.executed[1].gate == apart.target_gates[1]);
}

BOOST_AUTO_TEST_CASE(executed_gating_weighs_what_runs_by_its_own_scores) {
  question q;
  q.logits = {1, 2, 0, 0};
  q.allowance.resize(1);
  q.tables.rules.gates = planning::gating::executed;
  q.tables.answer = [](const decision_query& query) {
    auto made = all_at(2, query);
    made.slots[0].expert = 2;  // In place of expert 1.
    return made;
  };
  const auto row = q.decide().rows[0];
  // The softmax over the scores 0 (expert 2) and 1 (expert 0).
  const auto expected = static_cast<float>(1 / (1 + std::exp(1.0)));
  BOOST_TEST(row.executed[0].gate == expected, boost::test_tools::tolerance(1e-6f));
  BOOST_TEST(row.executed[1].gate == 1 - expected, boost::test_tools::tolerance(1e-6f));
}

BOOST_AUTO_TEST_CASE(what_is_left_out_does_not_run_and_the_others_weigh_what_they_are_alone) {
  question q;
  q.tables.rules.candidates = candidate_rule::drop;
  q.tables.rules.gates = planning::gating::executed;
  q.tables.answer = [](const decision_query& query) {
    auto made = all_at(2, query);
    made.slots[1] = {1, planning::left_out, 20};
    return made;
  };
  auto chunk = q.decide();
  for (const auto& row : chunk.rows) {
    BOOST_REQUIRE_EQUAL(row.executed.size(), 1u);
    BOOST_TEST(row.executed[0].expert == row.targets[0]);
    BOOST_TEST(row.executed[0].gate == 1.0f);
    BOOST_TEST(row.loss == 20);
  }
  BOOST_TEST(chunk.pool_left == 1000 - 60);
  // Where the model's gates are probabilities, a slot that is left out changes no other.
  q.input.gates = model::gate_rule::probabilities;
  chunk = q.decide();
  for (const auto& row : chunk.rows) BOOST_TEST(row.executed[0].gate == row.target_gates[0]);
}

BOOST_AUTO_TEST_CASE(behind_the_last_layer_a_chunk_of_which_nothing_runs_stays) {
  question q;
  q.tables.rules.candidates = candidate_rule::drop;
  bool one_runs = false;
  q.tables.answer = [&](const decision_query& query) {
    auto made = all_at(2, query);
    for (std::size_t j = one_runs ? 1 : 0; j < 2; ++j) made.slots[j] = {1, planning::left_out, 1};
    return made;
  };
  BOOST_TEST(q.decide().residence == 2u);
  q.input.next_members = 0;
  BOOST_TEST(q.decide().residence == 1u);
  one_runs = true;
  BOOST_TEST(q.decide().residence == 2u);
}

BOOST_AUTO_TEST_CASE(a_rule_that_never_substitutes_asks_for_no_loss) {
  question q;
  q.tables.rules.candidates = candidate_rule::exact;
  q.tables.answer = [](const decision_query& query) { return all_at(2, query); };
  q.decide();
  for (const auto& losses : q.tables.losses_asked) BOOST_TEST(losses.empty());
  q.tables.losses_asked.clear();
  q.tables.rules.candidates = candidate_rule::any;
  q.decide();
  BOOST_REQUIRE_EQUAL(q.tables.losses_asked.size(), 12u);
  const std::vector<loss_units> of_target_1{10, 0, 10, 10};
  BOOST_TEST(q.tables.losses_asked[0] == of_target_1, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(waits_of_servers_and_links_reach_the_tables_as_they_are) {
  question q;
  const std::vector<std::int64_t> wait_ns{1, 2, 3};
  const std::vector<double> link_ns(9, 4.0);
  q.input.wait_ns = wait_ns;
  q.input.link_ns = link_ns;
  q.tables.answer = [&](const decision_query& query) {
    BOOST_TEST((query.wait_ns.data() == wait_ns.data()));
    BOOST_TEST((query.link_ns.data() == link_ns.data()));
    return all_at(2, query);
  };
  q.decide();
  BOOST_TEST(q.tables.asked.size() == 6u);
}

BOOST_AUTO_TEST_CASE(the_price_of_loss_follows_the_pool_only_where_the_policy_says_so) {
  question q;
  q.tables.answer = [](const decision_query& query) { return all_at(2, query); };
  q.input.pool = 50;
  q.input.tokens_left = 1;
  q.decide();
  BOOST_TEST(q.tables.asked[0].price_scale == 1.0);
  q.tables.asked.clear();
  q.tables.rules.price_follows_budget = true;
  q.decide();
  // Half of an even share of 100 is left: four times as dear.
  BOOST_TEST(q.tables.asked[0].price_scale == 4.0);
}

BOOST_AUTO_TEST_CASE(a_router_chooses_among_the_experts_that_are_not_pruned) {
  question q;
  q.tables.rules.candidates = candidate_rule::exact;
  q.tables.without = {0, 1, 0, 0};
  q.tables.budget = planning::unbounded_budget;
  q.input.layer = 3;
  q.tables.answer = [](const decision_query& query) { return all_at(0, query); };
  const auto chunk = q.decide();
  // Row 0 wants experts 1 and 0 and has 0 and, of the equal ones, 2: expert 2 runs in the place of 1.
  const auto& row = chunk.rows[0];
  BOOST_TEST(row.targets[0] == 1u);
  BOOST_TEST(row.targets[1] == 0u);
  BOOST_TEST(row.choice.slots[0].expert == 2u);
  BOOST_TEST(row.choice.slots[1].expert == 0u);
  const double e = std::exp(1.0), sum = e + e * e + 2;
  BOOST_TEST(row.choice.slots[0].loss == std::lround(1000 * (e * e - 1) / sum) + 3);
  BOOST_TEST(row.choice.slots[1].loss == 0);
  BOOST_TEST(row.loss == row.choice.slots[0].loss);
  BOOST_REQUIRE(row.executed.size() == 2u);
  BOOST_TEST(row.executed[0].gate == static_cast<float>(1 / (1 + e)),
             boost::test_tools::tolerance(1e-6f));
  BOOST_TEST(row.executed[1].gate == static_cast<float>(e / (1 + e)),
             boost::test_tools::tolerance(1e-6f));
  // Row 1 wants experts 2 and 3, which are there.
  BOOST_TEST(chunk.rows[1].loss == 0);
  BOOST_TEST(chunk.rows[1].choice.slots[0].expert == 2u);
  BOOST_TEST(chunk.pool_left == q.input.pool - row.loss);
  // Of a budget that was taken beforehand.
  q.tables.budget = 100;
  const auto taken = q.decide();
  BOOST_TEST(taken.rows[0].choice.slots[0].expert == 2u);
  BOOST_TEST(taken.rows[0].loss == 0);
  BOOST_TEST(taken.pool_left == q.input.pool);
  // Gates that are probabilities are those of a model without it.
  q.input.gates = model::gate_rule::probabilities;
  const auto by_probability = q.decide();
  BOOST_TEST(by_probability.rows[0].executed[1].gate == static_cast<float>(e / (e + 2)),
             boost::test_tools::tolerance(1e-6f));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
