#include <boost/test/unit_test.hpp>

#include "planning/strategies/adaptation.hpp"
#include "test/actors/planner_world.hpp"

namespace ordermoe {

using test::impossible;
using test::one_planner;
using test::planner_phase;
using test::says;

BOOST_AUTO_TEST_SUITE(planner)

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

BOOST_AUTO_TEST_CASE(experts_do_not_go_to_the_memory_of_hosts_while_requests_run) {
  one_planner world;
  world.leave_little_room();
  world.steady();
  world.order("offload");
  BOOST_TEST(says(world.recorder.only<actors::plan_change>().refused, "from the start to the end"));
  BOOST_TEST((world.phase() == planner_phase::steady));
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
