#include "test/actors/one_server.hpp"

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(edge_server_epochs)

/// Between a plan and the next, under which users of server 0 keep rows at servers 0 and 1 alone.
struct between_plans : one_server {
  std::shared_ptr<const actors::plan_in_force> before = plan_of_epoch(1), after = next_plan();

  std::shared_ptr<const actors::plan_in_force> next_plan() const {
    auto content = plan();
    content.residence[0].layers = {0b011, 0b011, 0b011};
    content.residence[1].layers = {0b010, 0b010, 0b010};
    return plan_of_epoch(2, std::move(content));
  }
  template <class Message>
  void receive_under(std::uint64_t epoch, std::uint32_t from, const Message& content) {
    auto made = frame_from(from, content);
    made.epoch = epoch;
    tell(edge, made);
  }
  std::vector<std::uint64_t> epochs() { return status().epochs; }
  /// Of a token of `foreign`, for an expert that is here.
  wire::expert_call call_for(std::uint32_t layer) const {
    wire::expert_call call;
    call.token = {foreign, 0, 0, 0};
    call.layer = layer;
    call.rows = {0};
    call.whole = {1};
    call.items = {{0, 0, 4, 1.0f}};
    call.x.assign(context->wire.hidden_size, 0.5f);
    return call;
  }
};

BOOST_AUTO_TEST_CASE(requests_begin_under_the_plan_that_is_named_and_keep_to_it) {
  between_plans world;
  world.open();
  world.install({world.before, world.after}, 1);
  world.submit();
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  const auto status = world.status();
  BOOST_TEST(status.epoch == 2u);
  BOOST_TEST(status.epochs.size() == 2u);
  BOOST_TEST(status.requests.at(0).epoch == 1u);
  BOOST_TEST(status.requests.at(1).epoch == 2u);
  // The first asks servers 0 and 2 for memory, under its plan; the second needs nobody else's.
  BOOST_TEST(world.sent(0, frame_kind::reservation).size() == 1u);
  BOOST_TEST(world.sent(2, frame_kind::reservation).at(0).epoch == 1u);
}

BOOST_AUTO_TEST_CASE(the_planner_hears_when_the_last_request_under_the_plan_before_has_ended) {
  between_plans world;
  world.open();
  world.submit();
  world.install({world.before, world.after}, 1);
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  BOOST_TEST(world.planner.count<actors::requests_ended>() == 0u);
  world.tell(world.edge, actors::cancel_request{own});
  const auto ended = world.planner.only<actors::requests_ended>();
  BOOST_TEST(ended.epoch == 2u);
  BOOST_TEST(ended.server == world.id);
  world.tell(world.edge, actors::cancel_request{own + 1});
  BOOST_TEST(world.planner.count<actors::requests_ended>() == 1u);
}

BOOST_AUTO_TEST_CASE(requests_under_the_plan_before_end_by_name_and_no_others) {
  between_plans world;
  world.open();
  world.submit();
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  world.tell(world.edge, actors::end_requests{2, "it took too long"});
  BOOST_REQUIRE_EQUAL(world.status().requests.size(), 1u);
  BOOST_TEST(world.status().requests[0].request == own + 1);
  BOOST_TEST(says(world.reason(), "it took too long"));
}

BOOST_AUTO_TEST_CASE(what_is_done_for_a_request_goes_by_its_plan) {
  between_plans world;
  world.open();
  world.install({world.before, world.after}, 1);
  // Told to begin or not: memory under the next plan is granted, and a token of it is here.
  world.receive_under(2, 0, world.ask_of(reserve_step::attempt));
  world.receive_under(2, 0, world.token_at(0, 0));
  BOOST_TEST(world.compute.only<actors::attend_work>().epoch == 2u);
  BOOST_TEST(world.sent(0, frame_kind::reservation).at(0).epoch == 2u);
  // Rows of it come from servers 0 and 1 alone; under the plan before all three keep them.
  world.receive_under(2, 2, world.rows_of(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  world.receive_under(2, 0, world.rows_of(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
  const auto rows = world.rows_of(1);
  world.tell(world.edge, actors::kv_written{rows, {0}, {2}});
  BOOST_TEST(world.sent(2, frame_kind::kv).empty());
  world.tell(world.edge, actors::kv_written{rows, {0}, {1}});
  BOOST_TEST(world.sent(2, frame_kind::kv).size() == 1u);
  // Of both plans in one batch: one frame to each, under the later plan.
  auto both = rows;
  both.blocks.push_back(rows.blocks[0]);
  world.tell(world.edge, actors::kv_written{both, {0, 0}, {1, 2}});
  BOOST_TEST(world.sent(0, frame_kind::kv).at(2).epoch == 2u);
  BOOST_TEST(world.sent(2, frame_kind::kv).size() == 2u);
}

BOOST_AUTO_TEST_CASE(calls_run_at_the_shards_of_their_plan) {
  between_plans world;
  auto content = world.plan();
  for (auto& each : content.experts)
    if (each.server == server_id{1}) each.server = server_id{0};
  world.open();
  world.install({world.before, world.plan_of_epoch(2, std::move(content))}, 2);
  const auto call = world.call_for(1);
  world.receive_under(1, 0, call);
  BOOST_TEST(world.shards[call.layer].count<actors::expert_work>() == 1u);
  world.receive_under(2, 0, call);  // Not hosted under that plan.
  BOOST_TEST(world.status().refused_frames == 1u);
  BOOST_TEST(world.shards[call.layer].count<actors::expert_work>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_plan_goes_once_nothing_is_under_it_and_what_comes_later_is_late) {
  between_plans world;
  world.open();
  world.reserve();
  world.install({world.before, world.after}, 2);
  world.planner.forget();
  world.install({world.after});
  // Its memory has not been given back.
  BOOST_TEST(world.planner.heard() == 0u);
  BOOST_TEST(world.epochs().size() == 2u);
  world.receive_under(1, 0, world.token_at(0, 0));
  BOOST_TEST(world.compute.count<actors::attend_work>() == 1u);
  world.receive_under(1, 0, world.ask_of(reserve_step::release));
  BOOST_TEST(world.planner.only<actors::plans_installed>().number == 2u);
  BOOST_TEST(world.epochs().size() == 1u);
  for (const auto& shard : world.shards) BOOST_TEST(shard.ended());
  world.receive_under(1, 0, world.token_at(0, 0));
  BOOST_TEST(world.status().late_frames == 1u);
  // Whoever is cut off from what the others know, and still waits for outputs, hears that there will be none.
  world.receive_under(1, 0, world.call_for(1));
  const auto outputs = world.sent(0, frame_kind::output);
  BOOST_REQUIRE_EQUAL(outputs.size(), 1u);
  BOOST_TEST(outputs[0].epoch == 1u);
  const auto output = wire::decode_output(outputs[0], world.context->wire);
  BOOST_REQUIRE(output.has_value());
  BOOST_TEST(says(output->problem, "let go of the plan of epoch 1"));
}

BOOST_AUTO_TEST_CASE(
    a_policy_that_comes_while_a_plan_waits_to_go_leaves_the_experts_that_were_to_come) {
  between_plans world;
  world.open();
  world.reserve();
  world.install({world.before, world.after}, 2);
  // Nobody looks into it.
  const auto something = std::make_shared<std::int64_t>(0);
  const std::shared_ptr<const model::transformer> experts(
      something, reinterpret_cast<const model::transformer*>(something.get()));
  world.install({world.after}, 2, experts);
  auto by_policy = world.plan_of_epoch(2, world.after->plan);
  by_policy->policy = 5;
  world.install({by_policy});
  world.compute.forget();
  world.receive_under(1, 0, world.ask_of(reserve_step::release));
  BOOST_TEST((world.compute.only<actors::attach_view>().model == experts));
  BOOST_TEST(world.status().policy == 5u);
  BOOST_TEST(world.epochs().size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_plan_that_was_given_up_goes_at_once) {
  between_plans world;
  world.open();
  world.install({world.before, world.after}, 1);
  world.install({world.before});
  BOOST_TEST(world.epochs().size() == 1u);
  BOOST_TEST(world.planner.count<actors::plans_installed>() == 2u);
  for (const auto& shard : world.shards) BOOST_TEST(!shard.ended());
  world.receive_under(2, 0, world.ask_of(reserve_step::attempt));
  BOOST_TEST(world.status().late_frames == 1u);
  BOOST_TEST(world.status().reserved_bytes == 0);
}

BOOST_AUTO_TEST_CASE(a_server_that_comes_back_between_plans_ends_requests_under_the_one_before) {
  between_plans world;
  world.context->seat.emplace();
  world.open();
  for (const std::uint32_t peer : {0u, 2u}) world.happens(peer, what::up);
  world.submit();
  world.install({world.before, world.after}, 2);
  world.submit(own + 1);
  world.happens(0, what::up);
  BOOST_REQUIRE_EQUAL(world.status().requests.size(), 1u);
  BOOST_TEST(world.status().requests[0].request == own + 1);
  BOOST_TEST(world.planner.count<actors::requests_ended>() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
