#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "planning/selection/selector.hpp"
#include "test/planning/selection/selector_oracle.hpp"
#include "test/planning/selection/selector_worlds.hpp"
#include "test/support/random_profile.hpp"

/// Which experts may run in place of a target, and what that is said to lose.
namespace ordermoe::planning {
namespace {

using namespace drawn;

BOOST_AUTO_TEST_SUITE(candidate_rules)

BOOST_AUTO_TEST_CASE(local_only_leaves_its_server_only_for_what_it_cannot_run) {
  auto w = row_world(1, 2);
  w.placed.grouping.clear();
  const auto policy = plain_policy(candidate_rule::local_only, 1);
  std::vector<loss_units> losses(2), other(2);
  const auto tables = built(w, policy, 1'000'000'000);
  tables->slot_losses(0, 0, 0.5f, {}, losses);
  tables->slot_losses(0, 1, 0.5f, {}, other);
  const std::vector<slot_query> slots{{0, 0.5f, losses}, {1, 0.5f, other}};
  decision_query query;
  query.slots = slots;
  query.budget_left = 1'000'000'000;
  auto made = tables->select(query);
  BOOST_TEST(made.slots[0].server == 0u);
  BOOST_TEST(made.slots[1].server == 0u);
  BOOST_TEST(made.slots[1].expert == 0u);
  query.budget_left = made.slots[1].loss - 1;
  made = tables->select(query);
  BOOST_TEST(made.slots[0].server == 0u);
  BOOST_TEST(made.slots[1].server == 2u);
  BOOST_TEST(made.slots[1].expert == 1u);
  query.server = 1;
  made = tables->select(query);
  BOOST_TEST(spent(made) == 0);
}

BOOST_AUTO_TEST_CASE(router_restricted_takes_the_routers_best_local_experts_whatever_the_budget) {
  random_stream random(5);
  const shape of{2, 1, 4, 2};
  auto w = draw_world(random, of);
  w.placed.experts.clear();
  for (const std::size_t e : {0, 2, 3})
    w.placed.experts.push_back({server_id{0}, layer_id{0}, expert_id{e}});
  w.placed.experts.push_back({server_id{1}, layer_id{0}, expert_id{1}});
  w.placed.residence = access_residency(2, 1);
  auto policy = plain_policy(candidate_rule::router_restricted, 1);
  policy.metric = loss_metric::token_gate;
  const auto tables = built(w, policy, 1);
  const std::vector<float> p{0.1f, 0.5f, 0.15f, 0.25f};
  std::vector<loss_units> first(4), second(4);
  tables->slot_losses(0, 1, 0.66f, p, first);
  tables->slot_losses(0, 3, 0.33f, p, second);
  const std::vector<slot_query> slots{{1, 0.66f, first}, {3, 0.33f, second}};
  decision_query query;
  query.slots = slots;
  query.probabilities = p;
  auto made = tables->select(query);
  BOOST_TEST(made.slots[0].expert == 2u);  // The best two here are 3, which keeps its slot, and 2.
  BOOST_TEST(made.slots[1].expert == 3u);
  BOOST_TEST(made.slots[0].loss > 1);
  BOOST_TEST(made.slots[1].loss == 0);
  query.server = query.access = 1;
  made = tables->select(query);
  BOOST_TEST(made.slots[0].expert == 1u);
  BOOST_TEST(made.slots[1].expert == 1u);
}

BOOST_AUTO_TEST_CASE(losses_are_rounded_up_and_scaled_by_the_measured_damage) {
  auto w = row_world(2, 2);
  w.placed.grouping.clear();
  w.experts.layers[0].damage = {0.5, 0};
  const auto losses = [&](loss_metric metric, bool calibrated, float gate,
                          const std::vector<float>& p) {
    auto policy = plain_policy(candidate_rule::any, 1);
    policy.metric = metric;
    policy.calibrated = calibrated;
    std::vector<loss_units> found(2);
    built(w, policy, 1'000'000)->slot_losses(0, 0, gate, p, found);
    BOOST_TEST(found[0] == 0);
    return found[1];
  };
  BOOST_TEST(losses(loss_metric::router_logit, false, 0.5f, {}) == 125'000'000);  // g (1 - Sim) / 2
  BOOST_TEST(losses(loss_metric::router_logit, true, 0.5f, {}) == 62'500'000);
  BOOST_TEST(losses(loss_metric::token_gate, false, 0.5f, {0.75f, 0.25f}) == 500'000'000);
  // Better than the target, and yet not the target.
  BOOST_TEST(losses(loss_metric::token_gate, false, 0.5f, {0.25f, 0.75f}) == 1);
  // A damage of 0 was measured: 1e-6 is charged all the same.
  BOOST_TEST(losses(loss_metric::token_gate, true, 0.5f, {0.75f, 0.25f}) == 500);
  w.experts.layers[0].router_logit(0, 1) = 1 - 0x1p-40;
  BOOST_TEST(losses(loss_metric::router_logit, false, 0.5f, {}) == 1);
}

// What a position does is known in nats.
BOOST_AUTO_TEST_CASE(losses_in_nats_go_by_positions_and_by_what_is_read) {
  random_stream random(8);
  auto w = draw_world(random, {2, 2, 4, 2});
  auto policy = plain_policy(candidate_rule::any, 1);
  policy.metric = loss_metric::token_gate;
  const auto damage = [&](std::size_t position, std::size_t unread_before) {
    return built(w, policy, unbounded_budget)->position_damage(position, unread_before);
  };
  for (const bool is_calibrated : {false, true}) {
    policy.calibrated = is_calibrated;
    w.experts.position_damage.clear();
    w.experts.unread_damage.clear();
    BOOST_TEST(damage(0, 0) == 1);
    BOOST_TEST(damage(0, 1) == 1);
    w.experts.position_damage = {8, 3, 1.5};
    BOOST_TEST(damage(0, 0) == (is_calibrated ? 8 : 1));
    BOOST_TEST(damage(2, 2) == (is_calibrated ? 3 : 1));
    BOOST_TEST(damage(400, 300) == (is_calibrated ? 1.5 : 1));
    w.experts.unread_damage = {6, 2, 0.25};
    BOOST_TEST(damage(0, 1) == (is_calibrated ? 2 : 1));
    BOOST_TEST(damage(0, 2) == (is_calibrated ? 1.125 : 1));
    BOOST_TEST(damage(1, 3) == (is_calibrated ? 0.25 : 1));
    BOOST_TEST(damage(1, 6) == (is_calibrated ? 0.25 : 1));
    BOOST_TEST(damage(400, 401) == (is_calibrated ? 0.25 : 1));
    BOOST_TEST(damage(401, 401) == (is_calibrated ? 1.5 : 1));
  }
}

BOOST_AUTO_TEST_CASE(a_group_is_bounded_by_its_threshold) {
  auto w = row_world(1, 1);
  layer_grouping grouping;
  grouping.groups = {{0, {0, 1}}};
  grouping.group_of = {0, 0};
  grouping.threshold = 0.5;
  w.placed.grouping = {grouping};
  const auto policy = plain_policy(candidate_rule::group, 1);
  std::vector<loss_units> losses(2);
  built(w, policy, 1)->slot_losses(0, 0, 1.0f, {}, losses);
  BOOST_TEST(losses[1] == 250'000'000);
  w.placed.grouping[0].threshold = 0.51;
  built(w, policy, 1)->slot_losses(0, 0, 1.0f, {}, losses);
  BOOST_TEST(losses[1] == forbidden);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ordermoe::planning
