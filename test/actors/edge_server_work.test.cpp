#include "test/actors/one_server.hpp"

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(edge_server_work)

// --------------------------------------------------------------------------------------- memory

BOOST_AUTO_TEST_CASE(memory_is_granted_to_owners_elsewhere_and_told_over_their_link) {
  one_server world;
  world.open();
  world.reserve();
  const auto answers = world.reservations(0);
  BOOST_REQUIRE_EQUAL(answers.size(), 1u);
  BOOST_TEST((answers[0].step == reserve_step::granted));
  BOOST_TEST(world.compute.only<actors::open_sequence>().request == foreign);
  const auto sequence = world.status().sequences.at(0);
  BOOST_TEST(sequence.granted);
  BOOST_TEST(sequence.bytes == foreign_bytes);
  BOOST_TEST(world.status().reserved_bytes == foreign_bytes);
  world.receive(0, world.ask_of(reserve_step::release));
  BOOST_TEST(world.compute.only<actors::drop_sequence>().request == foreign);
  BOOST_TEST(world.status().sequences.empty());
  BOOST_TEST(world.status().ledger.kv_peak_bytes == foreign_bytes);
}

BOOST_AUTO_TEST_CASE(asks_of_own_requests_go_where_the_memory_is) {
  one_server world;
  world.open();
  auto ask = world.answer_of(2, reserve_step::attempt);
  world.tell(world.edge, ask);
  BOOST_TEST((world.reservations(2).at(0) == ask));
  ask.server = world.id;
  world.tell(world.edge, ask);
  BOOST_TEST(world.compute.count<actors::open_sequence>() == 1u);
  // No request of this number is here: what was granted is given back.
  BOOST_TEST(world.status().reserved_bytes == 0);
  BOOST_TEST(world.status().late_frames == 1u);
}

BOOST_AUTO_TEST_CASE(memory_that_is_granted_to_a_request_that_is_over_is_given_back) {
  one_server world;
  world.open();
  world.receive(2, world.answer_of(2, reserve_step::granted));
  const auto release = world.reservations(2).at(0);
  BOOST_TEST((release.step == reserve_step::release));
  BOOST_TEST(release.request == own);
  BOOST_TEST(release.ask == 1u);
  BOOST_TEST(world.status().late_frames == 1u);
  world.receive(2, world.answer_of(2, reserve_step::refused));
  BOOST_TEST(world.reservations(2).size() == 1u);
}

BOOST_AUTO_TEST_CASE(nobody_but_its_owner_speaks_for_a_sequence) {
  one_server world;
  world.open();
  world.reserve();
  auto stranger = world.ask_of(reserve_step::release);
  stranger.access = 2;
  world.receive(2, stranger);
  BOOST_TEST(world.status().reserved_bytes == foreign_bytes);
  BOOST_TEST(world.status().late_frames == 1u);
  // Nor for one that waits.
  auto waits = world.ask_of(reserve_step::wait);
  waits.request = foreign + 1;
  waits.bytes = world.status().kv_bytes;
  world.receive(0, waits);
  BOOST_TEST(!world.status().sequences.at(1).granted);
  stranger.request = foreign + 1;
  world.receive(2, stranger);
  BOOST_TEST(world.status().late_frames == 2u);
  world.receive(0, world.ask_of(reserve_step::release));
  BOOST_TEST(world.status().sequences.at(0).granted);
}

BOOST_AUTO_TEST_CASE(a_fence_ends_the_tokens_of_the_attempt_before_and_keeps_the_memory) {
  one_server world;
  world.open();
  world.reserve();
  world.receive(0, world.token_at(0, 0));
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
  world.receive(0, world.ask_of(reserve_step::fence, 2, 1));
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  BOOST_TEST(world.status().sequences.at(0).attempt == 1u);
  BOOST_TEST((world.reservations(0).back().step == reserve_step::fenced));
  BOOST_TEST(world.compute.all<actors::open_sequence>().back().attempt == 1u);
  world.receive(0, world.token_at(1, 0));  // Late: of the attempt before.
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  world.receive(0, world.token_at(0, 0, 1));  // What was here then may come again.
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
}

// --------------------------------------------------------------------------------------- tokens

BOOST_AUTO_TEST_CASE(a_token_starts_where_memory_is_held_for_it_and_once) {
  one_server world;
  world.open();
  world.receive(0, world.token_at(0, 0));
  BOOST_TEST(world.status().late_frames == 1u);
  world.reserve();
  world.receive(0, world.token_at(0, 0));
  world.receive(0, world.token_at(0, 0));
  world.receive(0, world.token_at(8, 0));  // The memory is for eight positions.
  BOOST_TEST(world.status().late_frames == 3u);
  BOOST_TEST(world.compute.count<actors::attend_work>() == 1u);
  world.tell(world.edge, actors::start_token{world.token_at(7, 0)});
  BOOST_TEST(world.compute.count<actors::attend_work>() == 2u);
  BOOST_TEST(world.status().sequences.at(0).tokens == 2u);
}

BOOST_AUTO_TEST_CASE(frames_that_name_another_access_server_touch_nothing) {
  one_server world;
  world.open();
  world.reserve();  // For a user of server 0.
  auto state = world.token_at(0, 1);
  state.terms.access = world.id;
  world.receive(0, state);
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  auto output = world.output_for(0, 1);
  output.token.access = world.id;
  world.receive(2, output);
  BOOST_TEST(world.status().sequences.at(0).parked_rows == 0u);
  BOOST_TEST(world.status().late_frames == 2u);
  BOOST_TEST(world.status().refused_frames == 0u);  // Nothing else is wrong with them.
}

BOOST_AUTO_TEST_CASE(a_token_that_departed_does_not_come_again_at_an_earlier_step) {
  one_server world;
  world.open();
  world.reserve();
  world.receive(0, world.token_at(0, 0));
  world.tell(world.edge, actors::token_departed{{foreign, 0, 0, 0}, serving::step_of(1, true)});
  BOOST_TEST(world.status().sequences.at(0).tokens == 0u);
  world.receive(0, world.token_at(0, 1));
  BOOST_TEST(world.status().late_frames == 1u);
  world.receive(0, world.token_at(0, 2));
  BOOST_TEST(world.status().sequences.at(0).tokens == 1u);
}

BOOST_AUTO_TEST_CASE(a_token_goes_on_as_the_next_position_where_that_may_be_here) {
  struct successor {
    std::uint32_t attempt, from, to;
    bool goes_on;
  };
  for (const auto& each : {successor{0, 0, 1, true}, successor{0, 0, 5, false},  // Has been here.
                           successor{0, 0, 8, false},     // Beyond the memory.
                           successor{1, 0, 1, false},     // Of another attempt.
                           successor{0, 5, 1, false}}) {  // Another actor's.
    one_server world;
    world.open();
    world.reserve();
    world.receive(0, world.token_at(0, 0));
    const auto token = world.compute.only<actors::attend_work>().token;
    world.receive(0, world.token_at(5, 0));
    const auto other = world.compute.all<actors::attend_work>().back().token;
    world.tell(world.edge, actors::token_succeeded{token,
                                                   {foreign, each.attempt, 0, each.from},
                                                   serving::step_of(2, true),
                                                   each.to,
                                                   serving::step_of(0, false)});
    const auto ended = [](const actors::token_actor& actor) {
      return caf::actor_cast<caf::abstract_actor*>(actor)->getf(
          caf::abstract_actor::is_terminated_flag);
    };
    BOOST_TEST(ended(token) == !each.goes_on);
    BOOST_TEST(!ended(other));
    // What comes for the next position goes to the actor that went on, and its old position is past.
    world.receive(0, world.token_at(0, 1));
    BOOST_TEST(world.status().late_frames == (each.attempt == 0 && each.from == 0 ? 1u : 0u));
    if (!each.goes_on) continue;
    world.receive(0, world.token_at(1, 0));
    BOOST_TEST(world.status().late_frames == 2u);
    world.receive(0, world.ask_of(reserve_step::fence, 2, 1));
    BOOST_TEST(ended(token));
  }
}

BOOST_AUTO_TEST_CASE(outputs_wait_for_their_token_or_go_to_it) {
  for (const bool over_a_link : {false, true}) {
    one_server world;
    world.open();
    world.reserve();
    const auto deliver = [&](const wire::expert_output& output) {
      if (over_a_link)
        world.receive(2, output);
      else
        world.tell(world.edge, actors::arrived_output{output, 2});
    };
    deliver(world.output_for(0, 0));
    BOOST_TEST(world.status().sequences.at(0).parked_rows == 1u);
    auto awaiting = world.token_at(0, 0);
    awaiting.hidden.assign(world.context->wire.hidden_size, 0.0f);
    awaiting.slots_of_row = {1};
    awaiting.slots = {{2, 2, 1.0f}};
    world.receive(0, awaiting);
    // It was awaited: layer 1 begins with it added.
    auto next = world.compute.take<actors::attend_work>();
    BOOST_TEST(next.layer == 1u);
    BOOST_TEST(next.hidden.at(0) == 1.0f);
    awaiting.first = 1;
    world.receive(0, awaiting);
    BOOST_TEST(world.compute.heard() == 0u);
    deliver(world.output_for(1, 0));
    BOOST_TEST(world.compute.only<actors::attend_work>().layer == 1u);
    deliver(world.output_for(8, 0));
    BOOST_TEST(world.status().late_frames == 1u);
  }
}

BOOST_AUTO_TEST_CASE(a_call_goes_to_the_shard_of_its_layer) {
  one_server world;
  world.open();
  wire::expert_call call;
  call.token = {foreign, 0, 0, 0};
  call.layer = 2;
  call.rows = {0};
  call.whole = {1};
  call.items = {{0, 0, 4, 1.0f}};
  call.x.assign(world.context->wire.hidden_size, 0.5f);
  world.receive(0, call);
  BOOST_TEST((world.shards[2].only<actors::expert_work>().call == call));
  BOOST_TEST(world.shards[2].only<actors::expert_work>().epoch == 1u);
  call.items[0].expert = 5;  // Of server 2.
  world.receive(0, call);
  BOOST_TEST(world.shards[2].heard() == 1u);
  BOOST_TEST(world.status().refused_frames == 1u);
}

BOOST_AUTO_TEST_CASE(a_report_of_a_request_that_is_over_is_late) {
  one_server world;
  world.open();
  world.tell(world.edge, world.token_of_own(3));
  BOOST_TEST(world.status().late_frames == 1u);
}

// ------------------------------------------------------------------------------------- failures

BOOST_AUTO_TEST_CASE(a_token_that_failed_here_is_told_to_its_request) {
  one_server world;
  world.open();
  world.submit();
  wire::failure_report report{own, 0, world.id, static_cast<std::uint8_t>(errc::failed), "why"};
  world.tell(world.edge, report);
  BOOST_TEST(world.finish() == "failed");
}

BOOST_AUTO_TEST_CASE(a_failure_elsewhere_ends_the_request_that_it_is_of) {
  one_server world;
  world.open();
  world.submit();
  wire::failure_report report{own + 1, 0, 2, static_cast<std::uint8_t>(errc::failed), "why"};
  world.receive(2, report);
  BOOST_TEST(world.client.heard() == 0u);
  report.request = own;
  world.receive(2, report);
  BOOST_TEST(world.finish() == "failed");
}

// --------------------------------------------------------------------------------------- KV rows

BOOST_AUTO_TEST_CASE(rows_written_here_go_to_the_other_members_of_the_layer) {
  one_server world;
  world.open();
  // Layer 1 of users of server 0: everybody; of users of server 1: servers 0 and 1.
  auto rows = world.rows_of(1);
  world.tell(world.edge, actors::kv_written{rows, {0}, {1}});
  BOOST_TEST(world.sent(0, frame_kind::kv).size() == 1u);
  BOOST_TEST(world.sent(2, frame_kind::kv).size() == 1u);
  rows.blocks.push_back(rows.blocks[0]);
  rows.blocks[1].request = own;
  world.tell(world.edge, actors::kv_written{rows, {0, 1}, {1, 1}});
  const auto decode = [&](const wire::frame& content) {
    return wire::decode_kv(content, world.context->wire);
  };
  const auto to_0 = world.decoded<wire::kv_rows>(0, frame_kind::kv, decode);
  const auto to_2 = world.decoded<wire::kv_rows>(2, frame_kind::kv, decode);
  BOOST_TEST(to_0.at(1).blocks.size() == 2u);
  BOOST_TEST(to_2.at(1).blocks.size() == 1u);
  BOOST_TEST(to_2.at(1).blocks[0].request == foreign);
}

BOOST_AUTO_TEST_CASE(rows_of_live_sequences_are_kept_and_others_are_late) {
  one_server world;
  world.open();
  world.receive(0, world.rows_of(1));
  BOOST_TEST(world.status().late_frames == 1u);
  world.reserve();
  world.receive(0, world.rows_of(1));
  const auto stored = world.compute.all<actors::store_kv>();
  BOOST_REQUIRE_EQUAL(stored.size(), 1u);
  BOOST_TEST(stored[0].content.blocks.size() == 1u);
  BOOST_TEST(stored[0].capacity == 40u);
  world.receive(0, world.rows_of(1, 8));  // Beyond its memory.
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
  BOOST_TEST(world.status().late_frames == 2u);
}

BOOST_AUTO_TEST_CASE(rows_belong_to_the_attempt_that_is_live) {
  one_server world;
  world.open();
  world.reserve();
  const auto rows_of_attempt = [&](std::uint32_t attempt) {
    auto rows = world.rows_of(1);
    rows.blocks[0].attempt = attempt;
    return rows;
  };
  world.receive(0, rows_of_attempt(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  world.receive(0, world.ask_of(reserve_step::fence, 2, 1));
  world.receive(0, rows_of_attempt(0));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  BOOST_TEST(world.status().late_frames == 2u);
  world.receive(0, rows_of_attempt(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
}

BOOST_AUTO_TEST_CASE(rows_come_only_from_members_of_their_layer) {
  one_server world;
  auto content = world.plan();
  content.residence[0].layers[1] = 0b011;
  world.view->placed = world.plan_of_epoch(1, std::move(content));
  world.open();
  world.reserve();
  world.receive(2, world.rows_of(1));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 0u);
  world.receive(2, world.rows_of(2));
  BOOST_TEST(world.compute.count<actors::store_kv>() == 1u);
}

// ---------------------------------------------------------------------------------------- frames

BOOST_AUTO_TEST_CASE(frames_that_make_no_sense_are_counted_and_told_ever_more_rarely) {
  one_server world;
  world.open();
  for (int i = 0; i < 5; ++i) {
    auto damaged = world.frame_from(0, world.token_at(0, 0));
    damaged.bytes.resize(damaged.bytes.size() / 2);
    world.tell(world.edge, damaged);
  }
  BOOST_TEST(world.status().refused_frames == 5u);
  std::vector<std::uint64_t> counts;
  for (const auto& each : world.recorder.all<actors::problem>()) {
    counts.push_back(each.count);
    BOOST_TEST((each.of == actors::problem::scope::peer));
    BOOST_TEST(each.peer == 0u);
    BOOST_TEST(each.server == world.id);
  }
  const std::vector<std::uint64_t> expected{1, 2, 4};
  BOOST_TEST(counts == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(frames_from_nowhere_to_others_or_of_no_kind_are_refused) {
  one_server world;
  world.open();
  auto content = world.frame_from(3, world.token_at(0, 0));
  world.tell(world.edge, content);
  content.from = 0;
  content.to = 2;
  world.tell(world.edge, content);
  content.to = world.id;
  content.kind = static_cast<frame_kind>(200);
  world.tell(world.edge, content);
  BOOST_TEST(world.status().refused_frames == 3u);
  BOOST_TEST(world.status().late_frames == 0u);
}

BOOST_AUTO_TEST_CASE(what_was_sent_under_another_plan_is_late) {
  one_server world;
  world.open();
  world.reserve();
  auto content = world.frame_from(0, world.token_at(0, 0));
  content.epoch = 2;
  world.tell(world.edge, content);
  BOOST_TEST(world.status().late_frames == 1u);
  BOOST_TEST(world.compute.count<actors::attend_work>() == 0u);
  auto ask = world.frame_from(0, world.ask_of(reserve_step::attempt));
  ask.epoch = 2;
  world.tell(world.edge, ask);
  BOOST_TEST(world.status().late_frames == 2u);
  auto failure = world.frame_from(0, wire::failure_report{7, 0, 0, 1, "too late"});
  failure.epoch = 2;
  world.tell(world.edge, failure);
  BOOST_TEST(world.status().late_frames == 3u);
  BOOST_TEST(world.status().refused_frames == 0u);
  // Memory is given back under any plan.
  auto release = world.frame_from(0, world.ask_of(reserve_step::release));
  release.epoch = 2;
  world.tell(world.edge, release);
  BOOST_TEST(world.status().reserved_bytes == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
