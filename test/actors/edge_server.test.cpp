#include "test/actors/one_server.hpp"

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(edge_server)

// ------------------------------------------------------------------------------------- its plan

BOOST_AUTO_TEST_CASE(before_its_first_plan_it_holds_requests_and_refuses_frames) {
  one_server world;
  world.view->placed = nullptr;
  world.attach();
  BOOST_TEST(!world.status().admitting);
  BOOST_TEST(world.status().name == "s1");
  wire::frame early;
  early.from = 0;
  early.to = world.id;
  world.tell(world.edge, early);
  BOOST_TEST(world.status().refused_frames == 1u);
  BOOST_TEST(world.recorder.count<actors::problem>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_plan_reaches_compute_and_selector_and_the_planner_hears_of_it) {
  one_server world;
  world.view->placed = nullptr;
  world.attach();
  auto plan = world.plan_of_epoch(4);
  plan->policy = 2;
  world.install({plan});
  const auto installed = world.planner.only<actors::plans_installed>();
  BOOST_TEST(installed.number == 1u);
  BOOST_TEST(installed.server == world.id);
  const auto view = world.compute.only<actors::attach_view>().view;
  BOOST_TEST((view->placed == plan));
  const auto by = world.selector.only<actors::decide_by>();
  BOOST_TEST((by.view == view));
  BOOST_TEST(by.plans.size() == 1u);
  for (const auto& shard : view->shards) BOOST_TEST(static_cast<bool>(shard));
  BOOST_TEST(world.status().epoch == 4u);
  BOOST_TEST(world.status().policy == 2u);
}

BOOST_AUTO_TEST_CASE(shards_are_of_the_layers_that_the_plan_has_experts_of_here) {
  one_server world;
  world.attach();
  auto content = world.plan();
  for (auto& each : content.experts)
    if (each.layer == layer_id{1} && each.server == server_id{1}) each.server = server_id{0};
  world.install({world.plan_of_epoch(2, std::move(content))});
  const auto shards = world.compute.only<actors::attach_view>().view->shards;
  BOOST_TEST(static_cast<bool>(shards[0]));
  BOOST_TEST(!static_cast<bool>(shards[1]));
  BOOST_TEST(static_cast<bool>(shards[2]));
  for (const auto& before : world.shards) BOOST_TEST(before.ended());
}

BOOST_AUTO_TEST_CASE(another_policy_leaves_the_shards_of_the_plan) {
  one_server world;
  world.attach();
  auto plan = world.plan_of_epoch(1);
  plan->policy = 5;
  world.install({plan});
  for (const auto& before : world.shards) BOOST_TEST(!before.ended());
  BOOST_TEST(world.status().policy == 5u);
}

// ------------------------------------------------------------------------------------- admission

BOOST_AUTO_TEST_CASE(requests_that_come_while_it_holds_begin_when_it_opens) {
  one_server world;
  world.attach();
  world.submit();
  BOOST_TEST(world.links[0].heard() == 0u);
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::held));
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST(world.status().admitting);
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::reserving));
  BOOST_TEST(world.reservations(0).size() == 1u);
  BOOST_TEST(world.reservations(2).size() == 1u);
}

BOOST_AUTO_TEST_CASE(admission_is_held_once_nobody_is_in_flight) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::hold_admission{9, world.planner.as<actors::planner_actor>()});
  BOOST_TEST(world.planner.heard() == 0u);
  BOOST_TEST(!world.status().admitting);
  world.submit(own + 1);  // Waits.
  world.tell(world.edge, actors::cancel_request{own});
  const auto held = world.planner.only<actors::admission_held>();
  BOOST_TEST(held.change == 9u);
  BOOST_TEST(held.server == world.id);
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::held));
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::reserving));
}

BOOST_AUTO_TEST_CASE(with_nobody_in_flight_admission_is_held_at_once_and_told_once) {
  one_server world;
  world.open();
  world.tell(world.edge, actors::hold_admission{9, world.planner.as<actors::planner_actor>()});
  BOOST_TEST(world.planner.only<actors::admission_held>().change == 9u);
  world.submit();
  world.tell(world.edge, actors::cancel_request{own});
  BOOST_TEST(world.planner.heard() == 1u);
}

BOOST_AUTO_TEST_CASE(a_change_that_was_given_up_is_not_answered_any_more) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::hold_admission{9, world.planner.as<actors::planner_actor>()});
  world.tell(world.edge, actors::resume_admission{});
  BOOST_TEST(world.status().admitting);
  world.tell(world.edge, actors::cancel_request{own});
  BOOST_TEST(world.planner.heard() == 0u);
}

// -------------------------------------------------------------------------------------- requests

BOOST_AUTO_TEST_CASE(a_request_is_refused_with_the_reason_and_counted) {
  one_server world;
  world.open();
  const auto refused = [&](auto change) {
    auto spec = std::make_shared<actors::request_spec>();
    spec->access = world.id;
    spec->prompt = {5};
    change(*spec);
    world.client.forget();
    world.tell(world.edge,
               actors::submit_request{99, spec, world.client.as<actors::client_actor>()});
    const auto outcome = world.client.only<actors::answer_end>().outcome;
    BOOST_TEST(outcome->request == 99u);
    BOOST_TEST(outcome->finish == "failed");
    return outcome->problem->message;
  };
  BOOST_TEST(refused([](auto& spec) { spec.access = 2; }).find("this is server 1") !=
             std::string::npos);
  BOOST_TEST(refused([](auto& spec) { spec.prompt.clear(); }).find("no tokens") !=
             std::string::npos);
  BOOST_TEST(world.status().ended_requests == 2u);
  world.submit(99);
  BOOST_TEST(refused([](auto&) {}).find("is being answered") != std::string::npos);
  BOOST_TEST(world.status().requests.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_drained_server_refuses_its_users_until_it_is_drained_no_more) {
  one_server world;
  world.open();
  world.submit(98);
  world.tell(world.edge, actors::drain_server{true});
  BOOST_TEST(world.status().drained);
  world.submit(99);
  const auto outcome = world.client.only<actors::answer_end>().outcome;
  BOOST_TEST(outcome->request == 99u);
  BOOST_TEST(says(outcome->problem->message, "is drained; ask another node"));
  // Those that it had go on.
  BOOST_TEST(world.status().requests.size() == 1u);
  world.tell(world.edge, actors::drain_server{false});
  BOOST_TEST(!world.status().drained);
  world.submit(99);
  BOOST_TEST(world.status().requests.size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_request_lives_until_its_answer_ends_and_is_forgotten_then) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::running));
  BOOST_TEST(world.status().requests.at(0).prompt_tokens == 3u);
  // Its one chunk runs here.
  BOOST_TEST(world.compute.only<actors::attend_work>().ids.size() == 3u);
  world.tell(world.edge, world.token_of_own(3));
  world.tell(world.edge, world.token_of_own(3));  // The same again.
  BOOST_TEST(world.status().requests.at(0).new_tokens == 1u);
  world.receive(2, world.token_of_own(4, true));
  BOOST_TEST(world.finish() == "length");
  BOOST_TEST(world.status().requests.empty());
  BOOST_TEST(world.status().ended_requests == 1u);
  BOOST_TEST(world.status().sequences.empty());
  BOOST_TEST(world.compute.count<actors::drop_sequence>() == 1u);
  BOOST_TEST((world.reservations(0).back().step == reserve_step::release));
}

BOOST_AUTO_TEST_CASE(a_request_is_cancelled_or_begins_again_by_its_number) {
  one_server world;
  world.open();
  world.submit();
  world.grant();
  world.tell(world.edge, actors::restart_request{own + 1});
  BOOST_TEST(world.status().requests.at(0).attempt == 0u);
  world.tell(world.edge, actors::restart_request{own});
  BOOST_TEST(world.status().requests.at(0).attempt == 1u);
  BOOST_TEST((world.reservations(2).back().step == reserve_step::fence));
  world.tell(world.edge, actors::cancel_request{own + 1});
  BOOST_TEST(world.client.heard() == 0u);
  world.tell(world.edge, actors::cancel_request{own});
  BOOST_TEST(world.finish() == "cancelled");
}

BOOST_AUTO_TEST_CASE(what_a_request_says_of_itself_is_its_status) {
  one_server world;
  world.open();
  world.submit();
  world.tell(world.edge, actors::request_moved{own, request_phase::settling, 3});
  BOOST_TEST((world.status().requests.at(0).phase == request_phase::settling));
  BOOST_TEST(world.status().requests.at(0).attempt == 3u);
  world.tell(world.edge, actors::request_moved{own + 1, request_phase::ended, 0});
  BOOST_TEST(world.status().requests.size() == 1u);
  world.tell(world.edge, actors::request_moved{own, request_phase::ended, 3});
  BOOST_TEST(world.status().requests.empty());
}

BOOST_AUTO_TEST_CASE(at_its_deadline_a_request_ends_and_a_lease_gives_memory_back) {
  one_server world;
  world.open();
  world.submit();
  world.receive(0, world.ask_of(reserve_step::attempt));
  world.context->load_period_ns = 0;
  BOOST_TEST(world.run_next());
  BOOST_TEST(world.run_next());
  // The lease of five seconds ends before the deadline of a minute.
  const auto after_lease = world.status();
  BOOST_TEST(world.time_ns() == 5'000'000'000);
  BOOST_TEST(std::ranges::none_of(after_lease.sequences,
                                  [](const auto& each) { return each.request == foreign; }));
  BOOST_TEST(world.client.heard() == 0u);
  world.run_all();
  BOOST_TEST(world.finish() == "failed");
  const auto outcome = world.client.only<actors::answer_end>().outcome;
  BOOST_TEST(outcome->done_ns - outcome->arrival_ns == world.timeout_ns);
}

BOOST_AUTO_TEST_CASE(leases_that_end_earlier_leave_no_timer_behind) {
  one_server world;
  world.open();
  world.submit();
  world.context->load_period_ns = 0;
  constexpr int n_leases = 8;
  for (int i = 0; i < n_leases; ++i) {
    world.receive(0, world.ask_of(reserve_step::attempt, static_cast<std::uint32_t>(i) + 1));
    while (world.status().sequences.size() > 1) BOOST_REQUIRE(world.run_next());
  }
  BOOST_TEST(world.client.heard() == 0u);
  BOOST_TEST(world.time_ns() == n_leases * 5'000'000'000);
  int n_more = 0;
  while (world.run_next()) ++n_more;
  BOOST_TEST(world.finish() == "failed");
  BOOST_TEST(n_more <= 2);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
