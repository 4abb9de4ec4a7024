#include <boost/test/unit_test.hpp>

#include "test/actors/planner_world.hpp"

namespace ordermoe {

using test::one_planner;
using test::planner_phase;
using test::says;

/// Steps of a change that all servers make, as the admin says them.
struct joint_planner : one_planner {
  test::probe admin{*this};
  std::vector<std::size_t> loaded;  ///< How many experts were asked for, each time.
  error load_fails;
  std::size_t most_failed = SIZE_MAX, failed = 0;  ///< So often.

  explicit joint_planner(bool roomy = true) {
    if (!roomy) leave_little_room();
    work.load = [this](std::uint64_t, const std::function<bool(layer_id, expert_id)>& hosts)
        -> result<std::shared_ptr<const model::transformer>> {
      if (!load_fails.message.empty() && failed < most_failed) {
        ++failed;
        return load_fails;
      }
      std::size_t n = 0;
      for (std::uint32_t layer = 0; layer < n_layers; ++layer)
        for (std::uint32_t expert = 0; expert < n_experts; ++expert)
          n += hosts(layer_id{layer}, expert_id{expert});
      loaded.push_back(n);
      return context->model;
    };
    // A node has one server; which it is says the first of the ids.
    work.servers.resize(1);
    work.ids.resize(1);
    steady();
  }
  /// How many experts are on the planner's server under a plan, or under either.
  std::size_t hosted(const planning::plan& one, const planning::plan& other) const {
    const planning::placement_index a(one), b(other);
    std::size_t n = 0;
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < n_experts; ++expert)
        n += a.hosts(0, layer, expert) || b.hosts(0, layer, expert);
    return n;
  }
  std::shared_ptr<const planning::plan> next_plan(std::uint64_t epoch = 2) {
    actors::replan_order wanted;
    wanted.strategy = "exact";
    auto made = ask<actors::plan_proposal>(
        planning, actors::plan_query{std::make_shared<const actors::replan_order>(wanted)});
    BOOST_REQUIRE_MESSAGE(made.plan, made.refused);
    auto plan = *made.plan;
    plan.epoch = epoch;
    return std::make_shared<const planning::plan>(std::move(plan));
  }
  void step(serving::change_step what, std::uint64_t change = 7,
            std::shared_ptr<const planning::plan> plan = nullptr, const char* why = "",
            bool holds = false) {
    actors::plan_step message;
    message.change = change;
    message.step = what;
    message.plan = std::move(plan);
    message.drain_ns = 1'000'000'000;
    message.holds = holds;
    message.why = why;
    message.admin = caf::actor_cast<caf::strong_actor_ptr>(admin.as<actors::admin_actor>());
    tell(planning, std::move(message));
  }
  /// The one server has done what it was told last.
  void installed_here() { tell(planning, actors::plans_installed{told().number, 0}); }
  void held_here() {
    tell(planning, actors::admission_held{servers[0].only<actors::hold_admission>().change, 0});
  }
  /// What the admin was told last, and nothing else since forget().
  std::string answer() { return admin.only<actors::plan_step_done>().why; }
};

BOOST_AUTO_TEST_SUITE(planner_steps)

// ------------------------------------------------------------------------- changes that all servers make

BOOST_AUTO_TEST_CASE(a_plan_comes_into_force_step_by_step_as_the_admin_says) {
  using serving::change_step;
  joint_planner world;
  const auto plan = world.next_plan();
  const auto before = test::probe_server::plan();
  world.step(change_step::prepare, 7, plan);
  BOOST_TEST(world.answer() == "");
  // What both plans place here.
  BOOST_TEST(world.loaded == std::vector<std::size_t>{world.hosted(before, *plan)},
             boost::test_tools::per_element());
  // Nothing changes yet, and the old plan's tables may be built anew without the new plan's weights.
  world.order_policy(test::probe_server::policy());
  BOOST_TEST(!world.servers[0].only<actors::install_plans>().model);
  world.forget();
  world.admin.forget();
  world.step(change_step::install);
  const auto beside = world.servers[0].take<actors::install_plans>();
  BOOST_TEST(world.epochs_of(beside) == (std::vector<std::uint64_t>{1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(beside.begins_under == 1u);
  BOOST_TEST(bool(beside.model));
  BOOST_TEST(world.admin.heard() == 0u);
  world.tell(world.planning, actors::plans_installed{beside.number, 0});
  BOOST_TEST(world.answer() == "");
  BOOST_TEST((world.phase() == planner_phase::installed));
  world.admin.forget();
  world.step(change_step::commit);
  const auto begun = world.told();
  BOOST_TEST(begun.plans.size() == 2u);
  BOOST_TEST(begun.begins_under == 2u);
  world.installed_here();
  BOOST_TEST(world.answer() == "");
  BOOST_TEST((world.phase() == planner_phase::ending));
  BOOST_TEST(world.recorder.only<actors::plan_change>().epoch == 2u);
  BOOST_TEST(!world.recorder.only<actors::plan_change>().held);
  world.admin.forget();
  world.tell(world.planning, actors::requests_ended{2, 0});
  BOOST_TEST(world.admin.only<actors::plan_before_ended>().change == 7u);
  world.admin.forget();
  // The others' requests have ended, too.
  world.step(change_step::retire);
  BOOST_TEST(world.epochs_of(world.told()) == std::vector<std::uint64_t>{2},
             boost::test_tools::per_element());
  BOOST_TEST(bool(world.told().model));
  BOOST_TEST(world.loaded.back() == world.hosted(*plan, *plan));
  world.installed_here();
  BOOST_TEST(world.answer() == "");
  BOOST_TEST((world.phase() == planner_phase::steady));
  // No request waited for any of it.
  BOOST_TEST(world.servers[0].count<actors::hold_admission>() == 0u);
}

BOOST_AUTO_TEST_CASE(a_plan_may_go_by_what_routers_chose_and_later_ones_do_so_too) {
  using serving::change_step;
  joint_planner world;
  // All rows choose the experts that the plan of the start has far away from most.
  planning::measured_activation measured;
  measured.rows.assign(world.n_layers, 1e6);
  std::vector<double> shares(world.n_experts, 0);
  shares.front() = shares.back() = 0.5;
  measured.shares.assign(world.n_layers, shares);
  const auto seen = std::make_shared<const planning::measured_activation>(measured);
  const auto expected = planning::with_measured_activation(world.profile(), measured);
  const auto cost_ns = [&](const planning::profile& by, const planning::plan& of) {
    return planning::placement_cost_ns(by, of, world.context->servers, world.context->costs);
  };

  const auto drift = world.ask<actors::drift_report>(world.planning, actors::drift_query{seen});
  BOOST_TEST(drift.epoch == 1u);
  BOOST_TEST(drift.cost_planned_ns == cost_ns(world.profile(), test::probe_server::plan()));
  BOOST_TEST(drift.cost_measured_ns == cost_ns(expected, test::probe_server::plan()));
  BOOST_TEST(drift.cost_measured_ns != drift.cost_planned_ns);
  BOOST_TEST(drift.moved.size() == world.n_layers);
  BOOST_TEST(drift.moved[0] > 0.1);

  auto wanted = std::make_shared<actors::replan_order>();
  wanted->strategy = "exact";
  const auto made =
      world.ask<actors::plan_proposal>(world.planning, actors::plan_query{wanted, seen});
  BOOST_REQUIRE_MESSAGE(made.plan, made.refused);
  BOOST_TEST(made.cost_before_ns == drift.cost_measured_ns);
  BOOST_TEST(made.cost_after_ns == cost_ns(expected, *made.plan));

  const auto change_to = [&](const std::shared_ptr<const planning::plan>& plan,
                             const std::shared_ptr<const planning::measured_activation>& by) {
    actors::plan_step step;
    step.change = 6 + plan->epoch;
    step.plan = plan;
    step.measured = by;
    step.drain_ns = 1'000'000'000;
    step.admin = caf::actor_cast<caf::strong_actor_ptr>(world.admin.as<actors::admin_actor>());
    world.tell(world.planning, step);
    BOOST_TEST(world.admin.all<actors::plan_step_done>().back().why == "");
    world.step(change_step::install, step.change);
    world.installed_here();
    world.step(change_step::commit, step.change);
    world.installed_here();
    world.tell(world.planning, actors::requests_ended{plan->epoch, 0});
    world.step(change_step::retire, step.change);
    world.installed_here();
    BOOST_TEST((world.phase() == planner_phase::steady));
    return world.told().plans.back()->profile;
  };
  const auto profile = change_to(made.plan, seen);
  BOOST_TEST(profile->layers[0].activation == expected.layers[0].activation,
             boost::test_tools::per_element());
  // Under which what is measured is what was planned for.
  const auto after = world.ask<actors::drift_report>(world.planning, actors::drift_query{seen});
  BOOST_TEST(after.cost_planned_ns == after.cost_measured_ns);
  // A later plan by nothing new stays with it.
  auto other = std::make_shared<actors::replan_order>();
  other->strategy = "layer-shards";
  const auto back =
      world.ask<actors::plan_proposal>(world.planning, actors::plan_query{other, nullptr});
  BOOST_REQUIRE_MESSAGE(back.plan, back.refused);
  const auto later = change_to(back.plan, nullptr);
  BOOST_TEST(later->layers[0].activation == expected.layers[0].activation,
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(where_both_do_not_fit_requests_wait_and_weights_come_in_steps) {
  using serving::change_step;
  joint_planner world(false);
  const auto plan = world.next_plan();
  const auto before = test::probe_server::plan();
  world.step(change_step::prepare, 7, plan);
  BOOST_TEST(says(world.answer(), "experts of both plans take"), world.answer());
  world.admin.forget();
  world.step(change_step::prepare, 7, plan, "", true);
  BOOST_TEST(world.answer() == "");
  BOOST_TEST(world.loaded.empty());
  world.admin.forget();
  world.step(change_step::hold);
  BOOST_TEST((world.phase() == planner_phase::draining));
  BOOST_TEST(world.admin.heard() == 0u);
  world.held_here();
  BOOST_TEST(world.answer() == "");
  world.admin.forget();
  world.step(change_step::install);
  // First without what goes, and then with what comes.
  BOOST_REQUIRE_EQUAL(world.loaded.size(), 2u);
  BOOST_TEST(world.loaded[1] == world.hosted(*plan, *plan));
  BOOST_TEST(world.loaded[0] ==
             world.loaded[1] + world.hosted(before, before) - world.hosted(before, *plan));
  const auto steps = world.servers[0].all<actors::install_plans>();
  BOOST_REQUIRE_EQUAL(steps.size(), 2u);
  BOOST_TEST(steps[0].plans.size() == 1u);
  BOOST_TEST(bool(steps[0].model));
  BOOST_TEST(bool(steps[1].model));
  world.installed_here();
  BOOST_TEST(world.answer() == "");
  world.step(change_step::commit);
  BOOST_TEST(world.servers[0].count<actors::resume_admission>() == 0u);
  world.installed_here();
  BOOST_TEST(world.servers[0].count<actors::resume_admission>() == 1u);
  BOOST_TEST(world.recorder.only<actors::plan_change>().held);
}

BOOST_AUTO_TEST_CASE(a_policy_that_changes_between_plans_holds_under_both) {
  using serving::change_step;
  joint_planner world;
  world.step(change_step::prepare, 7, world.next_plan());
  world.step(change_step::install);
  world.installed_here();
  auto by = world.policy();
  by.horizon = 2;
  world.order_policy(by);
  for (const auto& each : world.told().plans) {
    BOOST_TEST(each->policy == 1u);
    BOOST_TEST(each->tables->policy().horizon == 2u);
  }
  world.step(change_step::commit);
  BOOST_TEST(world.told().plans.at(1)->policy == 1u);
  by.horizon = 1;
  world.order_policy(by);
  BOOST_TEST(world.told().begins_under == 2u);
  for (const auto& each : world.told().plans) BOOST_TEST(each->policy == 2u);
  // Who did what it was told later has done what it was told before.
  world.admin.forget();
  world.installed_here();
  BOOST_TEST(world.answer() == "");
}

BOOST_AUTO_TEST_CASE(an_order_of_this_server_alone_waits_for_what_was_prepared_with_the_others) {
  using serving::change_step;
  joint_planner world;
  world.step(change_step::prepare, 7, world.next_plan());
  world.order("exact");
  world.propose(0);
  BOOST_TEST(world.monitor.count<actors::plan_kept>() == 1u);
  BOOST_TEST(world.recorder.count<actors::plan_change>() == 0u);
  world.step(change_step::install);
  world.installed_here();
  world.step(change_step::commit);
  world.installed_here();
  world.tell(world.planning, actors::requests_ended{2, 0});
  world.step(change_step::retire);
  world.installed_here();
  // The order's turn: it is the plan in force by now.
  const auto told = world.recorder.all<actors::plan_change>();
  BOOST_REQUIRE_EQUAL(told.size(), 2u);
  BOOST_TEST(told[0].refused == "");
  BOOST_TEST(says(told[1].refused, "plan in force"), told[1].refused);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_prepared_is_said_and_leaves_everything_as_it_was) {
  using serving::change_step;
  joint_planner world;
  const auto refused = [&](const char* words, std::shared_ptr<const planning::plan> plan) {
    world.admin.forget();
    world.step(change_step::prepare, 7, std::move(plan));
    BOOST_TEST(says(world.answer(), words), world.answer());
    BOOST_TEST((world.phase() == planner_phase::steady));
  };
  refused("in force is that of epoch 1", world.next_plan(3));
  auto hostless = *world.next_plan();
  hostless.experts.pop_back();
  refused("", std::make_shared<const planning::plan>(hostless));
  BOOST_TEST(world.admin.only<actors::plan_step_done>().why != "");
  world.load_fails = {errc::io, "the disk is gone"};
  refused("the disk is gone", world.next_plan());
  world.load_fails = {};
  world.admin.forget();
  world.step(change_step::prepare, 7, world.next_plan());
  BOOST_TEST(world.answer() == "");
  refused("another change", world.next_plan());
  // What was not prepared is neither held nor committed.
  world.admin.forget();
  world.step(change_step::hold, 8);
  BOOST_TEST(says(world.answer(), "nothing was prepared"));
  BOOST_TEST(world.servers[0].count<actors::hold_admission>() == 0u);
}

BOOST_AUTO_TEST_CASE(an_abort_leads_back_from_every_step_before_the_commit) {
  using serving::change_step;
  for (const bool holds : {false, true})
    for (int reached = 0; reached < 5; ++reached) {
      joint_planner world(!holds);
      const auto before = test::probe_server::plan();
      world.step(change_step::prepare, 7, world.next_plan(), "", holds);
      if (holds && reached > 0) world.step(change_step::hold);
      if (holds && reached > 1) world.held_here();
      if (reached > 2) world.step(change_step::install);
      if (reached > 3) world.installed_here();
      world.step(change_step::abort, 7, nullptr, "no more");
      BOOST_TEST((world.phase() == planner_phase::steady));
      BOOST_TEST(world.servers[0].count<actors::resume_admission>() ==
                 (holds && reached > 0 ? 1u : 0u));
      BOOST_TEST(world.recorder.only<actors::plan_change>().refused == "no more");
      // Weights and plan are what they were.
      BOOST_TEST(world.loaded.back() == world.hosted(before, before));
      BOOST_TEST(world.epochs_of(world.told()) == std::vector<std::uint64_t>{1},
                 boost::test_tools::per_element());
      // And the next one goes through.
      world.forget();
      world.admin.forget();
      world.step(change_step::prepare, 9, world.next_plan(), "", holds);
      BOOST_TEST(world.answer() == "");
    }
}

BOOST_AUTO_TEST_CASE(
    experts_that_cannot_be_read_back_are_asked_for_again_and_nothing_begins_before_they_are) {
  using serving::change_step;
  joint_planner world(false);
  const auto before = test::probe_server::plan();
  const auto plan = world.next_plan();
  world.step(change_step::prepare, 7, plan, "", true);
  world.step(change_step::hold);
  world.held_here();
  // The target's cannot be read, nor, at first, those that it took the place of.
  world.load_fails = {errc::io, "the disk is away"};
  world.most_failed = 3;
  world.admin.forget();
  world.step(change_step::install);
  BOOST_TEST(says(world.answer(), "the disk is away"));
  world.step(change_step::abort, 7, nullptr, "it did not install");
  BOOST_TEST(world.failed == 2u);
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(world.recorder.only<actors::plan_change>().refused == "it did not install");
  BOOST_TEST(says(world.recorder.only<actors::problem>().what.message, "the disk is away"));
  BOOST_TEST(world.servers[0].count<actors::resume_admission>() == 0u);
  BOOST_TEST(world.told().lacks_under == 1u);
  BOOST_TEST(world.epochs_of(world.told()) == std::vector<std::uint64_t>{1},
             boost::test_tools::per_element());
  // No other change takes the place of what is missing.
  world.admin.forget();
  world.step(change_step::prepare, 9, plan, "", true);
  BOOST_TEST(says(world.answer(), "are not back"), world.answer());
  while (world.failed < 3) BOOST_REQUIRE(world.run_next());
  BOOST_TEST(world.servers[0].count<actors::resume_admission>() == 0u);
  BOOST_TEST(world.loaded.empty());
  while (world.loaded.empty()) BOOST_REQUIRE(world.run_next());
  // First without what the next plan had, as then.
  BOOST_REQUIRE_EQUAL(world.loaded.size(), 2u);
  BOOST_TEST(world.loaded[1] == world.hosted(before, before));
  BOOST_TEST(world.told().lacks_under == 0u);
  BOOST_TEST(bool(world.told().model));
  BOOST_TEST(world.servers[0].count<actors::resume_admission>() == 1u);
  world.admin.forget();
  world.step(change_step::prepare, 9, plan, "", true);
  BOOST_TEST(world.answer() == "");
}

BOOST_AUTO_TEST_CASE(a_server_that_does_not_install_in_time_fails_the_step_and_all_go_back) {
  using serving::change_step;
  joint_planner world;
  world.step(change_step::prepare, 7, world.next_plan());
  world.admin.forget();
  world.step(change_step::install);
  const auto late = world.told().number;
  while (world.admin.count<actors::plan_step_done>() == 0) BOOST_REQUIRE(world.run_next());
  BOOST_TEST(says(world.answer(), "did not install the plan"));
  world.step(change_step::abort, 7, nullptr, "it did not install");
  BOOST_TEST((world.phase() == planner_phase::steady));
  // Its word that comes after all is of no change any more.
  world.admin.forget();
  world.tell(world.planning, actors::plans_installed{late, 0});
  BOOST_TEST(world.admin.heard() == 0u);
  BOOST_TEST((world.phase() == planner_phase::steady));
}

BOOST_AUTO_TEST_CASE(requests_that_outlast_the_hold_are_ended_by_name_and_then_it_fails) {
  using serving::change_step;
  joint_planner world(false);
  world.step(change_step::prepare, 7, world.next_plan(), "", true);
  world.admin.forget();
  world.step(change_step::hold);
  BOOST_TEST(world.run_next());
  BOOST_TEST(world.servers[0].only<actors::end_requests>().before_epoch == 2u);
  BOOST_TEST(says(world.servers[0].only<actors::end_requests>().why, "the plan changes"));
  BOOST_TEST(world.admin.count<actors::plan_step_done>() == 0u);
  BOOST_TEST(world.run_next());
  BOOST_TEST(says(world.answer(), "do not end"));
  world.step(change_step::abort, 7, nullptr, "they do not end");
  BOOST_TEST((world.phase() == planner_phase::steady));
}

BOOST_AUTO_TEST_CASE(requests_that_outlast_their_plan_are_ended_by_name) {
  using serving::change_step;
  joint_planner world;
  world.step(change_step::prepare, 7, world.next_plan());
  world.step(change_step::install);
  world.installed_here();
  world.step(change_step::commit);
  world.installed_here();
  world.admin.forget();
  while (world.servers[0].count<actors::end_requests>() == 0) BOOST_REQUIRE(world.run_next());
  BOOST_TEST(world.servers[0].only<actors::end_requests>().before_epoch == 2u);
  BOOST_TEST(world.admin.heard() == 0u);
  world.tell(world.planning, actors::requests_ended{2, 0});
  BOOST_TEST(world.admin.count<actors::plan_before_ended>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_proposal_tells_what_it_costs_and_changes_nothing) {
  joint_planner world;
  actors::replan_order wanted;
  wanted.strategy = "exact";
  const auto made = world.ask<actors::plan_proposal>(
      world.planning, actors::plan_query{std::make_shared<const actors::replan_order>(wanted)});
  BOOST_REQUIRE(made.plan);
  BOOST_TEST(made.strategy == "exact");
  BOOST_TEST(made.plan->epoch == 2u);
  BOOST_TEST(made.cost_before_ns > 0);
  BOOST_TEST(made.cost_after_ns > 0);
  BOOST_TEST(made.bytes_to.size() == world.n_servers);
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(made.why_held == "");
  joint_planner tight(false);
  const auto held = tight.ask<actors::plan_proposal>(
      tight.planning, actors::plan_query{std::make_shared<const actors::replan_order>(wanted)});
  BOOST_TEST(says(held.why_held, "experts of both plans take"), held.why_held);
  BOOST_TEST(world.servers[0].count<actors::install_plans>() == 0u);
  BOOST_TEST(world.recorder.count<actors::plan_change>() == 0u);
  wanted.strategy = "nonsense";
  const auto refused = world.ask<actors::plan_proposal>(
      world.planning, actors::plan_query{std::make_shared<const actors::replan_order>(wanted)});
  BOOST_TEST(!refused.plan);
  BOOST_TEST(says(refused.refused, "nonsense"), refused.refused);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
