#include "actors/planner.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "planning/strategies/adaptation.hpp"
#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using actors::planner_phase;

/// A planner of three servers that are probes; the plan of the start is the one by hand.
struct one_planner : test::probe_server {
  actors::planner_work work;
  std::vector<test::probe> servers;
  actors::planner_actor planning;

  one_planner() {
    work.profile = profile();
    work.chosen.name = "layer-shards";
    work.chosen.plan = plan();
    work.chosen.policy = policy();
    work.chosen.token_budget = 10;
    for (std::uint32_t m = 0; m < n_servers; ++m) {
      servers.emplace_back(*this);
      work.servers.push_back(servers.back().as<actors::edge_server_actor>());
      work.ids.push_back(m);
    }
    work.recorder = recorder.as<actors::recorder_actor>();
    work.monitor = monitor.as<actors::monitor_actor>();
    work.most_positions.assign(n_servers, 8);
  }
  void spawn() {
    planning = keep(actors::spawn_planner(system(), context, work));
    tell(planning, actors::push_plan{});
  }
  /// Servers with room for three experts more than the plan of the start has there.
  void leave_little_room() {
    const auto resident = context->costs.resident_bytes(n_layers);
    for (auto& server : context->servers.servers)
      server.memory_bytes = resident + kv_bytes + 9 * context->costs.expert_bytes;
  }
  /// What the servers were told last.
  actors::install_plans told() const { return servers[0].all<actors::install_plans>().back(); }
  /// Every server has done what it was told last.
  void installed() {
    const auto number = told().number;
    for (std::uint32_t m = 0; m < n_servers; ++m)
      tell(planning, actors::plans_installed{number, m});
  }
  /// No request of any server is under a plan before this one.
  void ended(std::uint64_t epoch) {
    for (std::uint32_t m = 0; m < n_servers; ++m) tell(planning, actors::requests_ended{epoch, m});
  }
  /// From where weights have moved to the end of a change.
  void go_over(std::uint64_t epoch) {
    installed();
    installed();
    ended(epoch);
    installed();
  }
  static std::vector<std::uint64_t> epochs_of(const actors::install_plans& message) {
    std::vector<std::uint64_t> epochs;
    for (const auto& each : message.plans) epochs.push_back(each->plan.epoch);
    return epochs;
  }
  /// The first plan is in force everywhere.
  void steady() {
    spawn();
    installed();
    forget();
  }
  void forget() {
    for (auto& each : servers) each.forget();
    recorder.forget();
    monitor.forget();
  }
  void order(const std::string& strategy) {
    auto content = std::make_shared<actors::replan_order>();
    content->strategy = strategy;
    tell(planning, actors::replan{content});
  }
  void order_policy(const planning::selection_policy& by) {
    auto content = std::make_shared<actors::policy_order>();
    content->policy = by;
    tell(planning, actors::change_policy{content});
  }
  void propose(double least_gain) {
    tell(planning, actors::propose_replan{std::make_shared<const planning::profile>(profile()), 2,
                                          least_gain});
  }
  void held(std::uint64_t change) {
    for (std::uint32_t m = 0; m < n_servers; ++m) tell(planning, actors::admission_held{change, m});
  }
  /// Every server holds admission, and says so.
  void drain() { held(servers[0].only<actors::hold_admission>().change); }
  actors::planner_status status() {
    return ask<actors::planner_status>(planning, actors::status_query{});
  }
  planner_phase phase() { return status().phase; }
  /// Every server heard this once.
  template <class Message>
  bool all_heard(std::size_t times = 1) const {
    return std::ranges::all_of(
        servers, [times](const test::probe& each) { return each.count<Message>() == times; });
  }
};

/// A policy that needs groups, which the plan does not have.
planning::selection_policy impossible() {
  auto made = test::probe_server::policy();
  made.candidates = planning::candidate_rule::group;
  return made;
}

bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

}  // namespace

/// Steps of a change that all servers make, as the admin says them.
struct joint_planner : one_planner {
  test::probe admin{*this};
  std::vector<std::size_t> loaded;  ///< How many experts were asked for, each time.
  error load_fails;

  explicit joint_planner(bool roomy = true) {
    if (!roomy) leave_little_room();
    work.load = [this](std::uint64_t, const std::function<bool(layer_id, expert_id)>& hosts)
        -> result<std::shared_ptr<const model::transformer>> {
      if (!load_fails.message.empty()) return load_fails;
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

BOOST_AUTO_TEST_SUITE(planner)

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

// ------------------------------------------------------------------------------------- first plan

BOOST_AUTO_TEST_CASE(the_first_plan_is_in_force_once_every_server_has_it) {
  one_planner world;
  world.spawn();
  BOOST_TEST((world.phase() == planner_phase::installing));
  const auto told = world.servers[2].only<actors::install_plans>();
  BOOST_TEST(told.begins_under == 1u);
  const auto content = told.plans.at(0);
  BOOST_TEST(content->plan.epoch == 1u);
  BOOST_TEST(content->policy == 0u);
  BOOST_TEST(content->decoding.token_budget == 10);
  BOOST_TEST(world.all_heard<actors::install_plans>());
  const auto announced = world.monitor.only<actors::plan_announced>();
  BOOST_TEST((announced.content == content));
  BOOST_TEST(announced.new_policy);
  world.tell(world.planning, actors::plans_installed{1, 0});
  world.tell(world.planning, actors::plans_installed{1, 0});
  world.tell(world.planning, actors::plans_installed{1, 1});
  world.tell(world.planning, actors::plans_installed{0, 2});
  BOOST_TEST(world.all_heard<actors::resume_admission>(0));
  world.tell(world.planning, actors::plans_installed{1, 2});
  BOOST_TEST(world.all_heard<actors::resume_admission>());
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(world.status().epoch == 1u);
  BOOST_TEST(world.recorder.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(a_plan_is_pushed_once) {
  one_planner world;
  world.steady();
  world.tell(world.planning, actors::push_plan{});
  BOOST_TEST(world.all_heard<actors::install_plans>(0));
}

BOOST_AUTO_TEST_CASE(a_first_plan_that_nothing_can_select_by_is_a_problem) {
  one_planner world;
  world.work.chosen.policy = impossible();
  world.spawn();
  BOOST_TEST(says(world.recorder.only<actors::problem>().what.message, "group"));
  BOOST_TEST(world.all_heard<actors::install_plans>(0));
  BOOST_TEST((world.phase() == planner_phase::idle));
}

BOOST_AUTO_TEST_CASE(a_server_that_does_not_install_it_is_a_problem_and_the_others_go_on) {
  one_planner world;
  world.spawn();
  world.tell(world.planning, actors::plans_installed{1, 0});
  world.tell(world.planning, actors::plans_installed{1, 2});
  world.run_next();
  BOOST_TEST(world.time_ns() == world.timeout_ns + 30'000'000'000);
  const auto problem = world.recorder.only<actors::problem>();
  BOOST_TEST((problem.of == actors::problem::scope::server));
  BOOST_TEST(problem.server == 1u);
  BOOST_TEST((problem.what.code == errc::timed_out));
  BOOST_TEST(world.all_heard<actors::resume_admission>());
  BOOST_TEST((world.phase() == planner_phase::steady));
}

// ----------------------------------------------------------------------------------------- orders

BOOST_AUTO_TEST_CASE(an_order_moves_installs_begins_and_retires_one_after_the_other) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  BOOST_TEST((world.phase() == planner_phase::moving));
  BOOST_TEST(world.all_heard<actors::install_plans>(0));
  const auto asked = world.time_ns();
  world.run_next();
  BOOST_TEST((world.phase() == planner_phase::installing));
  BOOST_TEST(world.time_ns() > asked);
  BOOST_TEST(world.epochs_of(world.told()) == (std::vector<std::uint64_t>{1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(world.told().begins_under == 1u);
  BOOST_TEST(world.monitor.heard() == 0u);
  world.installed();
  BOOST_TEST((world.phase() == planner_phase::beginning));
  BOOST_TEST(world.told().begins_under == 2u);
  BOOST_TEST(!world.monitor.only<actors::plan_announced>().new_policy);
  // One whose requests had ended before it was told says so at once.
  world.tell(world.planning, actors::requests_ended{2, 1});
  world.installed();
  BOOST_TEST((world.phase() == planner_phase::ending));
  const auto change = world.recorder.only<actors::plan_change>();
  BOOST_TEST(change.epoch == 2u);
  BOOST_TEST(change.reason == "order");
  BOOST_TEST(change.refused == "");
  BOOST_TEST(!change.held);
  BOOST_TEST(change.done_ns == world.time_ns());
  BOOST_TEST(change.moved_bytes > 0);
  BOOST_TEST(change.cost_before_ns > 0);
  world.tell(world.planning, actors::requests_ended{1, 0});
  world.tell(world.planning, actors::requests_ended{2, 0});
  BOOST_TEST((world.phase() == planner_phase::ending));
  world.tell(world.planning, actors::requests_ended{2, 2});
  BOOST_TEST((world.phase() == planner_phase::retiring));
  BOOST_TEST(world.epochs_of(world.told()) == std::vector<std::uint64_t>{2},
             boost::test_tools::per_element());
  world.installed();
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(world.status().epoch == 2u);
  BOOST_TEST(world.all_heard<actors::hold_admission>(0));
  BOOST_TEST(world.all_heard<actors::resume_admission>(0));
}

BOOST_AUTO_TEST_CASE(where_both_plans_do_not_fit_an_order_drains_first) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  world.order("exact");
  BOOST_TEST((world.phase() == planner_phase::draining));
  BOOST_TEST(world.all_heard<actors::hold_admission>());
  world.advance_ns(1000);
  world.drain();
  BOOST_TEST((world.phase() == planner_phase::moving));
  world.run_next();
  world.installed();
  BOOST_TEST(world.all_heard<actors::resume_admission>(0));
  world.installed();
  BOOST_TEST(world.all_heard<actors::resume_admission>());
  const auto change = world.recorder.only<actors::plan_change>();
  BOOST_TEST(change.held);
  BOOST_TEST(change.drained_ns - change.asked_ns == 1000);
  world.ended(2);
  world.installed();
  BOOST_TEST((world.phase() == planner_phase::steady));
}

BOOST_AUTO_TEST_CASE(a_server_that_does_not_install_the_next_plan_keeps_all_at_the_one_in_force) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  world.run_next();
  world.tell(world.planning, actors::plans_installed{world.told().number, 0});
  world.run_all();
  BOOST_TEST(says(world.recorder.only<actors::plan_change>().refused, "server 1 did not install"));
  BOOST_TEST(world.epochs_of(world.told()) == std::vector<std::uint64_t>{1},
             boost::test_tools::per_element());
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(world.status().epoch == 1u);
}

BOOST_AUTO_TEST_CASE(tables_that_change_while_requests_end_are_no_word_of_their_end) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  world.run_next();
  world.installed();
  world.installed();
  world.order_policy(world.policy());
  world.installed();
  BOOST_TEST((world.phase() == planner_phase::ending));
  world.ended(2);
  BOOST_TEST((world.phase() == planner_phase::retiring));
  // While admission is held likewise.
  one_planner tight;
  tight.leave_little_room();
  tight.steady();
  tight.order("exact");
  const auto change = tight.servers[0].only<actors::hold_admission>().change;
  tight.order_policy(tight.policy());
  tight.installed();
  BOOST_TEST((tight.phase() == planner_phase::draining));
  tight.held(change);
  BOOST_TEST((tight.phase() == planner_phase::moving));
}

BOOST_AUTO_TEST_CASE(requests_that_do_not_end_are_a_problem_and_the_plan_goes) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  world.run_next();
  world.installed();
  world.installed();
  world.tell(world.planning, actors::requests_ended{2, 0});
  world.tell(world.planning, actors::requests_ended{2, 2});
  while (world.phase() == planner_phase::ending) BOOST_REQUIRE(world.run_next());
  BOOST_TEST((world.phase() == planner_phase::retiring));
  BOOST_TEST(world.recorder.only<actors::problem>().server == 1u);
}

BOOST_AUTO_TEST_CASE(nothing_moves_before_every_server_has_answered_this_change) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  world.order("exact");
  const auto change = world.servers[0].only<actors::hold_admission>().change;
  world.held(change - 1);
  world.tell(world.planning, actors::admission_held{change, 0});
  world.tell(world.planning, actors::admission_held{change, 0});
  world.tell(world.planning, actors::admission_held{change, 1});
  BOOST_TEST((world.phase() == planner_phase::draining));
  world.tell(world.planning, actors::weights_moved{change});
  BOOST_TEST((world.phase() == planner_phase::draining));
  world.tell(world.planning, actors::admission_held{change, 2});
  BOOST_TEST((world.phase() == planner_phase::moving));
  world.tell(world.planning, actors::weights_moved{change - 1});
  BOOST_TEST((world.phase() == planner_phase::moving));
  world.tell(world.planning, actors::weights_moved{change});
  BOOST_TEST((world.phase() == planner_phase::installing));
}

BOOST_AUTO_TEST_CASE(an_order_that_cannot_be_is_refused_with_the_reason_and_disturbs_nobody) {
  one_planner world;
  world.steady();
  world.order("no such strategy");
  const auto change = world.recorder.only<actors::plan_change>();
  BOOST_TEST(says(change.refused, "no such strategy"));
  BOOST_TEST(change.epoch == 1u);
  BOOST_TEST(world.all_heard<actors::hold_admission>(0));
  BOOST_TEST((world.phase() == planner_phase::steady));
}

BOOST_AUTO_TEST_CASE(the_plan_in_force_is_no_other_plan) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  world.run_next();
  world.go_over(2);
  world.forget();
  world.order("layer-shards");
  BOOST_TEST(says(world.recorder.only<actors::plan_change>().refused, "plan in force"));
  BOOST_TEST(world.all_heard<actors::hold_admission>(0));
}

BOOST_AUTO_TEST_CASE(a_plan_under_which_the_longest_request_never_fits_is_refused) {
  one_planner world;
  world.work.most_positions.assign(world.n_servers, 1000);
  world.steady();
  world.order("layer-shards");
  BOOST_TEST(says(world.recorder.only<actors::plan_change>().refused, "1000 positions"));
}

BOOST_AUTO_TEST_CASE(an_order_that_comes_during_a_change_waits_for_its_end) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  world.order("no such strategy");
  BOOST_TEST(world.status().waiting_orders == 1u);
  BOOST_TEST(world.recorder.heard() == 0u);
  world.run_next();
  world.go_over(2);
  BOOST_TEST(world.status().waiting_orders == 0u);
  BOOST_TEST(world.recorder.count<actors::plan_change>() == 2u);
}

BOOST_AUTO_TEST_CASE(draining_that_takes_too_long_is_given_up_and_requests_go_on) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  world.order("exact");
  world.order("no such strategy");
  world.tell(world.planning,
             actors::admission_held{world.servers[0].only<actors::hold_admission>().change, 1});
  world.run_all();
  BOOST_TEST(world.all_heard<actors::resume_admission>());
  const auto changes = world.recorder.all<actors::plan_change>();
  BOOST_REQUIRE_EQUAL(changes.size(), 2u);
  BOOST_TEST(says(changes[0].refused, "2 of 3 servers"));
  BOOST_TEST(says(changes[1].refused, "no such strategy"));
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(world.status().epoch == 1u);
}

BOOST_AUTO_TEST_CASE(a_step_that_is_over_is_not_overdue) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  world.order("exact");
  const auto change = world.servers[0].only<actors::hold_admission>().change;
  world.tell(world.planning, actors::change_overdue{change - 1});
  BOOST_TEST((world.phase() == planner_phase::draining));
  world.drain();
  world.tell(world.planning, actors::change_overdue{change});
  BOOST_TEST((world.phase() == planner_phase::moving));
  world.run_next();
  world.go_over(2);
  world.run_all();
  BOOST_TEST(world.recorder.count<actors::problem>() == 0u);
}

// -------------------------------------------------------------------------------------- proposals

BOOST_AUTO_TEST_CASE(a_proposal_whose_plan_saves_enough_changes_the_plan) {
  one_planner world;
  world.steady();
  world.propose(-100);  // Any plan is cheaper by that.
  BOOST_TEST((world.phase() == planner_phase::moving));
  world.run_next();
  world.go_over(2);
  BOOST_TEST(world.recorder.only<actors::plan_change>().reason == "drift");
  BOOST_TEST(world.monitor.count<actors::plan_kept>() == 0u);
}

BOOST_AUTO_TEST_CASE(a_proposal_that_saves_too_little_keeps_the_plan_and_is_answered_so) {
  one_planner world;
  world.steady();
  world.propose(0.99);
  BOOST_TEST(world.monitor.count<actors::plan_kept>() == 1u);
  BOOST_TEST(says(world.recorder.only<actors::plan_change>().refused, "margin"));
  BOOST_TEST((world.phase() == planner_phase::steady));
}

BOOST_AUTO_TEST_CASE(a_proposal_that_comes_during_a_change_is_refused_at_once) {
  one_planner world;
  world.steady();
  world.order("layer-shards");
  world.propose(-100);
  BOOST_TEST(world.monitor.count<actors::plan_kept>() == 1u);
  BOOST_TEST(world.recorder.heard() == 0u);
}

// --------------------------------------------------------------------------------------- policies

BOOST_AUTO_TEST_CASE(links_that_are_not_as_stated_go_into_the_tables_and_nobody_waits) {
  one_planner world;
  world.steady();
  const auto told = [&](std::uint32_t from, std::uint64_t number, std::int64_t latency_ns) {
    wire::link_report report{from, number, std::vector<wire::link_measure>(world.n_servers)};
    for (std::uint32_t to = 0; to < world.n_servers; ++to)
      if (to != from) report.links[to].latency_ns = latency_ns;
    world.tell(world.planning, actors::links_told{report});
  };
  told(0, 1, 60'000'000);
  told(2, 1, 70'000'000);
  BOOST_TEST(world.all_heard<actors::install_plans>(0));
  world.run_all();
  // All that was told in the meantime, once.
  BOOST_TEST(world.all_heard<actors::install_plans>());
  const auto content = world.servers[1].only<actors::install_plans>().plans.at(0);
  BOOST_TEST(content->plan.epoch == 1u);
  BOOST_TEST(content->policy == 0u);
  const auto n = world.n_servers;
  BOOST_REQUIRE(content->links != nullptr);
  BOOST_TEST(content->links->at(1).latency_ns == 60'000'000);
  BOOST_TEST(content->links->at(2 * n).latency_ns == 70'000'000);
  BOOST_TEST(content->links->at(n).latency_ns == world.context->servers.links[n].latency_ns);
  const auto hidden_ns = content->tables->link_ns();  // [to, from]
  BOOST_TEST(hidden_ns[1 * n + 0] >= 60e6);
  BOOST_TEST(hidden_ns[0 * n + 2] >= 70e6);
  BOOST_TEST(hidden_ns[0 * n + 1] < 60e6);
  BOOST_TEST((world.phase() == planner_phase::steady));
  // Nothing new.
  told(0, 1, 90'000'000);
  world.run_all();
  BOOST_TEST(world.all_heard<actors::install_plans>());
  // What the next policy decides by is priced so too.
  world.order_policy(world.policy());
  BOOST_TEST(
      (world.servers[0].all<actors::install_plans>().at(1).plans.at(0)->links == content->links));
}

BOOST_AUTO_TEST_CASE(links_that_are_told_before_the_first_plan_are_in_its_tables) {
  one_planner world;
  world.planning = world.keep(actors::spawn_planner(world.system(), world.context, world.work));
  wire::link_report report{0, 1, std::vector<wire::link_measure>(world.n_servers)};
  report.links[1].latency_ns = 60'000'000;
  world.tell(world.planning, actors::links_told{report});
  world.run_all();
  BOOST_TEST(world.all_heard<actors::install_plans>(0));
  world.tell(world.planning, actors::push_plan{});
  BOOST_TEST(world.servers[0].only<actors::install_plans>().plans.at(0)->links->at(1).latency_ns ==
             60'000'000);
}

BOOST_AUTO_TEST_CASE(weights_change_within_an_epoch_and_nobody_waits) {
  one_planner world;
  world.steady();
  world.tell(world.planning, actors::change_weights{{0.25, 0.75}, 0.1, {4, 5}});
  const auto content = world.servers[1].only<actors::install_plans>().plans.at(0);
  BOOST_TEST(world.all_heard<actors::install_plans>());
  BOOST_TEST(content->plan.epoch == 1u);
  BOOST_TEST(content->policy == 1u);
  BOOST_TEST(content->tables->policy().omega_quality == 0.75);
  const auto change = world.recorder.only<actors::policy_change>();
  BOOST_TEST(change.reason == "window");
  BOOST_TEST(change.version == 1u);
  BOOST_TEST(change.weights.omega_time == 0.25);
  BOOST_TEST(change.requests.size() == 2u);
  BOOST_TEST(world.monitor.heard() == 0u);
  BOOST_TEST((world.phase() == planner_phase::steady));
  BOOST_TEST(world.status().policy == 1u);
}

BOOST_AUTO_TEST_CASE(another_policy_is_announced_as_a_new_one) {
  one_planner world;
  world.steady();
  auto by = world.policy();
  by.horizon = 2;
  world.order_policy(by);
  BOOST_TEST(world.servers[0].only<actors::install_plans>().plans.at(0)->tables->policy().horizon ==
             2u);
  BOOST_TEST(world.monitor.only<actors::plan_announced>().new_policy);
  const auto change = world.recorder.only<actors::policy_change>();
  BOOST_TEST(change.reason == "order");
  BOOST_TEST(change.refused == "");
}

BOOST_AUTO_TEST_CASE(who_asks_is_told_the_plan_and_the_policy_in_force) {
  one_planner world;
  const auto now = [&] {
    return world.ask<actors::in_force>(world.planning, actors::in_force_query{});
  };
  world.planning = world.keep(actors::spawn_planner(world.system(), world.context, world.work));
  BOOST_TEST(!now().content);
  world.tell(world.planning, actors::push_plan{});
  world.installed();
  BOOST_REQUIRE(now().content);
  BOOST_TEST(now().content->plan.epoch == 1u);
  auto by = world.policy();
  by.horizon = 2;
  world.order_policy(by);
  BOOST_TEST(now().policy.horizon == 2u);
  BOOST_TEST(now().content->plan.epoch == 1u);
}

BOOST_AUTO_TEST_CASE(a_policy_without_tables_is_refused_and_the_one_in_force_stays) {
  one_planner world;
  world.steady();
  world.order_policy(impossible());
  BOOST_TEST(says(world.recorder.only<actors::policy_change>().refused, "group"));
  BOOST_TEST(world.all_heard<actors::install_plans>(0));
  BOOST_TEST(world.status().policy == 0u);
}

BOOST_AUTO_TEST_CASE(before_the_first_plan_there_is_no_policy_to_change) {
  one_planner world;
  world.planning = world.keep(actors::spawn_planner(world.system(), world.context, world.work));
  world.tell(world.planning, actors::change_weights{{0.25, 0.75}, 0.1, {4, 5}});
  world.order_policy(world.policy());
  BOOST_TEST(world.recorder.heard() == 0u);
  BOOST_TEST(world.status().epoch == 0u);
}

BOOST_AUTO_TEST_CASE(a_policy_that_changed_while_weights_moved_holds_under_the_next_plan) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  world.order("exact");
  world.drain();
  world.tell(world.planning, actors::change_weights{{0.25, 0.75}, 0.1, {4}});
  BOOST_TEST(world.servers[0].take<actors::install_plans>().plans.size() == 1u);
  world.run_next();
  const auto content = world.servers[0].only<actors::install_plans>().plans.at(1);
  BOOST_TEST(content->plan.epoch == 2u);
  BOOST_TEST(content->policy == 1u);
  BOOST_TEST(content->tables->policy().omega_quality == 0.75);
}

BOOST_AUTO_TEST_CASE(without_a_monitor_the_same_happens) {
  one_planner world;
  world.work.monitor = nullptr;
  world.steady();
  world.order_policy(world.policy());
  BOOST_TEST(world.all_heard<actors::install_plans>());
  BOOST_TEST(world.monitor.heard() == 0u);
}

// ----------------------------------------------------------------------------------------- KV fit

BOOST_AUTO_TEST_CASE(kv_fits_where_every_members_memory_has_room_for_the_longest_request) {
  const test::probe_server world;
  const auto check = [&](std::size_t positions) {
    return actors::check_kv_fits(world.plan().residence, {positions, 1, 1}, world.context->servers,
                                 world.context->costs);
  };
  // Three layers of 10 bytes a position, 3000 bytes.
  BOOST_TEST(check(100).has_value());
  const auto refused = check(101);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
  BOOST_TEST(says(refused.error().message, "101 positions at server 0 need 3030 bytes"));
}

// ------------------------------------------------------------------------------ servers that start again

BOOST_AUTO_TEST_CASE(
    a_server_that_started_again_gets_what_is_in_force_and_takes_part_from_then_on) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  test::probe fresh(world);
  const auto come_back = [&] {
    world.tell(world.planning,
               actors::server_replaced{1, caf::actor_cast<caf::strong_actor_ptr>(
                                              fresh.as<actors::edge_server_actor>())});
  };
  come_back();
  BOOST_TEST(fresh.only<actors::install_plans>().plans.at(0)->plan.epoch == 1u);
  BOOST_TEST(fresh.count<actors::resume_admission>() == 1u);
  BOOST_TEST(world.servers[1].count<actors::install_plans>() == 0u);
  fresh.forget();
  world.order("exact");
  BOOST_TEST(fresh.count<actors::hold_admission>() == 1u);
  BOOST_TEST(world.servers[1].count<actors::hold_admission>() == 0u);
  // While requests end: it is asked to hold admission too, and admits nothing meanwhile.
  come_back();
  BOOST_TEST(fresh.count<actors::hold_admission>() == 2u);
  BOOST_TEST(fresh.count<actors::resume_admission>() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
