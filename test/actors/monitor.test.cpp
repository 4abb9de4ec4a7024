#include "actors/monitor.hpp"

#include <boost/test/unit_test.hpp>

#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using planning::selection_weights;

struct one_monitor : test::probe_server {
  actors::monitor_options options;
  actors::monitor_actor measuring;

  one_monitor() {
    options.on = true;
    options.least_rows = 100;
    options.window_requests = 2;
  }
  void spawn() { measuring = keep(actors::spawn_monitor(system(), context, options)); }
  /// Residency only at access servers, so that time depends on where experts are.
  void announce(bool new_policy = true, double price = 0) {
    auto content = plan_of_epoch(1);
    auto by = policy();
    by.omega_quality = 0.5;
    by.price_ns_per_loss = price;
    content->tables =
        *planning::selection_tables::build(profile(), content->plan, context->prices, by, 0);
    tell(measuring,
         actors::plan_announced{content, planner.as<actors::planner_actor>(), new_policy});
  }
  actors::observations seen() {
    return ask<actors::observations>(measuring, actors::status_query{});
  }
  /// A layer's rows all choose experts `a` and `b`.
  void activate(std::uint32_t rows, std::uint32_t a, std::uint32_t b) {
    actors::activation_report report;
    report.targets.resize(n_layers);
    for (auto& targets : report.targets)
      for (std::uint32_t row = 0; row < rows; ++row) targets.insert(targets.end(), {a, b});
    tell(measuring, report);
  }
  void answer(std::uint64_t request, loss_units budget, loss_units spent,
              std::int64_t took_ns = 1) {
    auto report = std::make_shared<planning::answered_request>();
    report->request = request;
    report->prompt_tokens = 1;
    report->new_tokens = 1;
    report->budget = budget;
    report->spent = spent;
    report->done_ns = took_ns;
    report->epoch = 1;
    tell(measuring, actors::request_report{report});
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(monitor)

BOOST_AUTO_TEST_CASE(a_wait_counts_for_as_long_as_it_holds) {
  one_monitor world;
  world.spawn();
  world.tell(world.measuring, wire::load_report{2, 1, 400, {0, 0, 0}});
  world.advance_ns(1000);
  world.tell(world.measuring, wire::load_report{2, 2, 0, {0, 0, 0}});
  const auto near = boost::test_tools::tolerance(1e-4);
  BOOST_TEST(world.seen().wait_ns[2] == 400.0, near);
  world.advance_ns(3000);
  BOOST_TEST(world.seen().wait_ns[2] == 100.0, near);
  BOOST_TEST(world.seen().wait_ns[0] == 0.0);
}

BOOST_AUTO_TEST_CASE(what_is_long_past_is_forgotten) {
  one_monitor world;
  world.spawn();
  world.tell(world.measuring, wire::load_report{2, 1, 400, {0, 0, 0}});
  world.advance_ns(1'000'000'000);
  world.tell(world.measuring, wire::load_report{2, 2, 0, {0, 0, 0}});
  world.advance_ns(10'000'000'000);
  BOOST_TEST(world.seen().wait_ns[2] > 0);
  BOOST_TEST(world.seen().wait_ns[2] < 0.02);
}

BOOST_AUTO_TEST_CASE(a_link_is_busy_until_what_waits_at_it_is_sent) {
  one_monitor world;
  world.spawn();
  const auto index = 1 * world.n_servers + 2;
  const auto near = boost::test_tools::tolerance(1e-4);
  // From 0 on it has 800 to send, at 400 another 600: it is free at 1,400.
  world.tell(world.measuring, actors::link_load{1, 2, 0, 800, 800});
  world.advance_ns(400);
  BOOST_TEST(world.seen().link_use[index] == 1.0, near);
  BOOST_TEST(world.seen().link_wait_ns[index] == 600.0, near);
  world.tell(world.measuring, actors::link_load{1, 2, 400, 1400, 1000});
  world.advance_ns(2400);
  BOOST_TEST(world.seen().link_use[index] == 0.5, near);
  BOOST_TEST(world.seen().link_wait_ns[index] == (600.0 * 400 + 500.0 * 1000) / 2800, near);
  BOOST_TEST(world.seen().link_use[0] == 0.0);
}

BOOST_AUTO_TEST_CASE(activation_is_told_as_shares_by_layer) {
  one_monitor world;
  world.spawn();
  BOOST_TEST(world.seen().activation.shares.at(0).empty());
  world.activate(10, 1, 3);
  const std::vector<double> expected{0, 0.5, 0, 0.5, 0, 0};
  BOOST_TEST(world.seen().activation.shares.at(2) == expected, boost::test_tools::per_element());
  const std::vector<planning::measured_set> sets{{{1, 3}, planning::whole_share}};
  BOOST_TEST((world.seen().activation.sets.at(2) == sets));
}

BOOST_AUTO_TEST_CASE(rows_count_half_after_a_half_life_of_virtual_time) {
  one_monitor world;
  world.options.half_life_s = 2;
  world.spawn();
  world.activate(8, 1, 3);
  const auto near = boost::test_tools::tolerance(1e-6);
  BOOST_TEST(world.seen().activation.rows.at(0) == 8.0, near);
  world.advance_ns(2'000'000'000);
  BOOST_TEST(world.seen().activation.rows.at(0) == 4.0, near);
  world.activate(4, 0, 5);
  auto seen = world.seen();
  BOOST_TEST(seen.activation.rows.at(0) == 8.0, near);
  BOOST_TEST(seen.activation.shares.at(0).at(1) == 0.25, near);
  BOOST_TEST(seen.activation.shares.at(0).at(5) == 0.25, near);
  BOOST_TEST(seen.activation_rows == 12 * seen.activation.rows.size());
  world.advance_ns(100'000'000'000);
  BOOST_TEST(world.seen().activation.shares.at(0).empty());
}

BOOST_AUTO_TEST_CASE(drift_is_not_judged_by_rows_that_count_no_more) {
  one_monitor world;
  world.options.drift_margin = 0.01;
  world.options.half_life_s = 1;
  world.spawn();
  world.announce();
  world.activate(60, 0, 5);
  world.advance_ns(1'000'000'000);
  // 120 came, of which 90 count, and of 100 it would be proposed.
  world.activate(60, 0, 5);
  BOOST_TEST(world.planner.heard() == 0u);
  world.activate(11, 0, 5);
  BOOST_TEST(world.planner.count<actors::propose_replan>() == 1u);
}

BOOST_AUTO_TEST_CASE(drift_is_proposed_once_it_is_seen_enough_and_not_again_before_the_answer) {
  one_monitor world;
  world.options.drift_margin = 0.01;
  world.spawn();
  world.announce();
  world.activate(99, 0, 5);
  BOOST_TEST(world.planner.heard() == 0u);
  world.activate(1, 0, 5);
  const auto proposal = world.planner.take<actors::propose_replan>();
  BOOST_TEST(std::abs(proposal.cost_ratio - 1) > 0.01);
  BOOST_TEST(proposal.least_gain == 0.01);
  BOOST_TEST(proposal.profile->layers[0].activation[0] > 0.4);
  world.activate(1000, 0, 3);
  BOOST_TEST(world.planner.heard() == 0u);
  BOOST_TEST(world.seen().proposals == 1u);
}

BOOST_AUTO_TEST_CASE(where_the_plan_is_kept_only_further_drift_counts) {
  one_monitor world;
  world.options.drift_margin = 0.001;
  world.spawn();
  world.announce();
  world.activate(100, 1, 4);
  world.planner.take<actors::propose_replan>();
  world.tell(world.measuring, actors::plan_kept{});
  world.activate(100, 1, 4);
  BOOST_TEST(world.planner.heard() == 0u);
  world.activate(5000, 0, 5);
  BOOST_TEST(world.planner.count<actors::propose_replan>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_new_plan_ends_the_silence_and_is_what_is_compared_with) {
  one_monitor world;
  world.options.drift_margin = 0.01;
  world.spawn();
  world.announce();
  world.activate(100, 0, 5);
  world.planner.take<actors::propose_replan>();
  world.announce(false);
  world.activate(100, 0, 5);
  BOOST_TEST(world.planner.count<actors::propose_replan>() == 1u);
}

BOOST_AUTO_TEST_CASE(without_a_margin_or_a_plan_nothing_is_proposed) {
  one_monitor without_margin;
  without_margin.spawn();
  without_margin.announce();
  without_margin.activate(1000, 1, 4);
  BOOST_TEST(without_margin.planner.heard() == 0u);
  one_monitor without_plan;
  without_plan.options.drift_margin = 0.01;
  without_plan.spawn();
  without_plan.activate(1000, 1, 4);
  BOOST_TEST(without_plan.planner.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(every_full_window_of_requests_moves_the_weights) {
  one_monitor world;
  world.options.kappa = 0.1;
  world.spawn();
  world.announce();
  world.answer(1, 100, 100);
  BOOST_TEST(world.planner.heard() == 0u);
  world.answer(2, 100, 50);
  const auto moved = world.planner.take<actors::change_weights>();
  const std::vector<std::uint64_t> window{1, 2};
  BOOST_TEST(moved.requests == window, boost::test_tools::per_element());
  BOOST_TEST(moved.kappa == 0.1);
  // Use 0.75 and next to no delay: losses weigh more.
  BOOST_TEST(moved.weights.omega_quality > 0.57);
  BOOST_TEST(moved.weights.omega_quality < 0.575 + 1e-9);
  BOOST_TEST(moved.weights.omega_time == 1 - moved.weights.omega_quality);
  world.answer(3, 100, 100);
  world.answer(4, 100, 100);
  BOOST_TEST(world.planner.only<actors::change_weights>().weights.omega_quality >
             moved.weights.omega_quality);
}

BOOST_AUTO_TEST_CASE(weights_stay_where_nothing_weighs_by_them) {
  one_monitor no_step;
  no_step.spawn();
  no_step.announce();
  one_monitor priced;
  priced.options.kappa = 0.1;
  priced.spawn();
  priced.announce(true, 5.0);
  for (auto* world : {&no_step, &priced}) {
    world->answer(1, 100, 100);
    world->answer(2, 100, 100);
    BOOST_TEST(world->planner.heard() == 0u);
    BOOST_TEST(world->seen().requests == 2u);
    BOOST_TEST(world->seen().budget_use == 1.0);
  }
}

BOOST_AUTO_TEST_CASE(requests_without_a_finite_budget_do_not_count) {
  one_monitor world;
  world.options.kappa = 0.1;
  world.spawn();
  world.announce();
  world.answer(1, 0, 0);
  world.answer(2, unbounded_budget, 5);
  BOOST_TEST(world.seen().requests == 0u);
  world.answer(3, 100, 20);
  BOOST_TEST(world.planner.heard() == 0u);
  BOOST_TEST(world.seen().requests == 1u);
  BOOST_TEST(world.seen().budget_use == 0.2);
  BOOST_TEST(world.seen().normalised_delay > 0);
}

BOOST_AUTO_TEST_CASE(another_policy_begins_a_window_and_the_own_steps_do_not) {
  one_monitor world;
  world.options.kappa = 0.1;
  world.spawn();
  world.announce();
  world.answer(1, 100, 100);
  world.announce(false);
  world.answer(2, 100, 100);
  BOOST_TEST(world.planner.take<actors::change_weights>().requests.size() == 2u);
  world.answer(3, 100, 100);
  world.announce(true);
  world.answer(4, 100, 100);
  BOOST_TEST(world.planner.heard() == 0u);
  world.answer(5, 100, 100);
  BOOST_TEST(world.planner.only<actors::change_weights>().requests.front() == 4u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
