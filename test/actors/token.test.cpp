#include "actors/token.hpp"

#include <boost/test/unit_test.hpp>

#include "model/sampling.hpp"
#include "planning/serving/token_visits.hpp"
#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using serving::step_of;
using wire::executed_slot;
using wire::frame_kind;
using wire::whole_row;

constexpr std::uint64_t number = 7;

/// A token of a user of server 1, at that server. Users of server 1 may be at server 1 at layer 0, at 0
/// and 1 at layer 1, at 1 and 2 at layer 2.
actors::head_done computed(std::vector<float> logits) {
  const std::size_t n = logits.size();
  return {std::make_shared<const std::vector<float>>(std::move(logits)), 0, n};
}

struct one_token : test::probe_server {
  wire::token_state state;
  std::vector<actors::arrived_output> early;
  std::vector<std::uint32_t> targets;  ///< Of every row decided on.
  actors::token_actor token;

  one_token() {
    state.terms.request = number;
    state.terms.attempt = 2;
    state.terms.access = id;
    state.terms.prompt_tokens = 4;
    state.terms.given_tokens = 4;
    state.terms.max_new_tokens = 6;
    state.terms.continue_in_place = 1;
    state.first = 4;
    state.ids = {11};
    state.pool = 100;
    state.spent = 5;
    state.allowance = {40};
  }
  std::size_t width() const { return context->wire.hidden_size; }
  std::vector<float> row(float value, std::size_t n = 1) const {
    return std::vector<float>(n * width(), value);
  }
  void spawn() {
    keep(system().spawn([this](caf::event_based_actor* self) {
      token = actors::spawn_token(*self, view, state, early);
    }));
    run_ready();
    keep(token);
  }
  /// Before layer `layer`, with hidden states.
  void at_layer(std::uint32_t layer) {
    state.layer = layer;
    state.hidden = row(1.0f, state.ids.size());
  }
  /// Awaits one sum of one row at `layer`, from an expert of server 2.
  void awaiting(std::uint32_t layer) {
    at_layer(layer);
    state.slots_of_row = {1};
    state.slots = {{2, 5, 1.0f}};
  }

  using rows = std::vector<std::vector<executed_slot>>;
  void decide(std::uint32_t residence, const rows& executed, loss_units loss_of_row = 0) {
    actors::decided answer;
    answer.choice.residence = residence;
    answer.choice.pool_left = state.pool - loss_of_row * static_cast<loss_units>(executed.size());
    for (const auto& slots : executed) {
      serving::row_decision row;
      row.executed.assign(slots.begin(), slots.end());
      row.targets.assign(targets.begin(), targets.end());
      row.loss = loss_of_row;
      answer.choice.rows.push_back(row);
    }
    answer.hidden = row(2.0f, executed.size());
    answer.normed = row(3.0f, executed.size());
    answer.allowance.assign(executed.size(), 40);
    tell(token, answer);
  }
  void deliver(std::uint32_t layer, std::vector<wire::output_row> of, float value = 10.0f,
               std::uint32_t from = 2) {
    wire::expert_output output;
    output.token = {number, 2, state.terms.access, state.first};
    output.layer = layer;
    output.y = row(value, of.size());
    output.rows = std::move(of);
    tell(token, actors::arrived_output{output, from});
  }
  wire::token_state travelled(std::uint32_t to) const {
    const auto frames = sent(to, frame_kind::token);
    BOOST_REQUIRE_EQUAL(frames.size(), 1u);
    const auto decoded = wire::decode_token(frames[0], context->wire);
    BOOST_REQUIRE(decoded.has_value());
    return *decoded;
  }
  wire::expert_call called(std::uint32_t to) const {
    const auto frames = sent(to, frame_kind::call);
    BOOST_REQUIRE_EQUAL(frames.size(), 1u);
    const auto decoded = wire::decode_call(frames[0], context->wire);
    BOOST_REQUIRE(decoded.has_value());
    return *decoded;
  }
  /// Logits whose largest is this id's.
  void sample(std::int32_t id_wanted) {
    std::vector<float> logits(context->shape().vocab_size, 0.0f);
    logits[static_cast<std::size_t>(id_wanted)] = 5.0f;
    tell(token, computed(std::move(logits)));
  }
  bool gone() const { return server.count<actors::token_departed>() == 1; }
  bool gone_at(std::uint32_t layer) const {
    const auto left = server.only<actors::token_departed>();
    return left.key == wire::token_key{number, 2, state.terms.access, state.first} &&
           left.step == step_of(layer, true);
  }
};

constexpr executed_slot here{1, 4, 0.75f}, there{2, 5, 0.25f};

}  // namespace

BOOST_AUTO_TEST_SUITE(token)

BOOST_AUTO_TEST_CASE(what_a_decoded_row_chose_is_known_at_its_next_layer_where_it_is_counted) {
  const std::vector<std::uint16_t> chosen{2, 5};
  const auto begin = [](one_token& world, bool counts, bool in_a_cluster, std::uint32_t first) {
    if (counts) world.with_monitor();
    if (in_a_cluster) world.context->seat.emplace().server = world.id;
    world.state.first = first;
    world.at_layer(0);
    world.targets = {5, 2};
    world.spawn();
  };
  one_token stays;
  begin(stays, true, false, 4);
  stays.decide(stays.id, {{here}});
  stays.deliver(0, {{0, wire::whole_row}}, 1, stays.id);
  BOOST_REQUIRE_EQUAL(stays.compute.count<actors::attend_work>(), 2u);
  BOOST_TEST(stays.compute.all<actors::attend_work>().back().chosen == chosen,
             boost::test_tools::per_element());
  one_token moves;
  begin(moves, true, true, 4);
  moves.decide(0, {{there}});
  BOOST_TEST(moves.travelled(0).chosen == chosen, boost::test_tools::per_element());
  one_token arrives;
  arrives.state.chosen = chosen;
  begin(arrives, true, true, 4);
  BOOST_TEST(arrives.compute.only<actors::attend_work>().chosen == chosen,
             boost::test_tools::per_element());
  // Not of prompts, nor where nobody counts; and within one process frames are as they are without.
  for (int i = 0; i < 3; ++i) {
    one_token without;
    begin(without, i != 0, i != 1, i == 2 ? 3 : 4);
    without.decide(0, {{there}});
    BOOST_TEST(without.travelled(0).chosen.empty());
  }
}

BOOST_AUTO_TEST_CASE(it_begins_with_the_attention_of_its_layer) {
  one_token world;
  world.spawn();
  const auto work = world.compute.only<actors::attend_work>();
  BOOST_TEST((work.token == world.token));
  BOOST_TEST(work.layer == 0u);
  BOOST_TEST(work.first == 4u);
  BOOST_TEST(work.n == 1u);
  BOOST_TEST(work.ids == world.state.ids, boost::test_tools::per_element());
  BOOST_TEST(work.hidden.empty());
  BOOST_TEST(!work.stream);  // Nobody else is a member of layer 0.
  BOOST_TEST(work.pool == 100);
  BOOST_TEST(work.allowance.at(0) == 40);
  BOOST_TEST(work.tokens_left == 6.0);
  BOOST_TEST((work.terms == world.state.terms));
}

BOOST_AUTO_TEST_CASE(its_rows_are_streamed_where_others_are_members_too) {
  for (const bool allowed : {true, false}) {
    one_token world;
    world.context->stream_kv = allowed;
    world.at_layer(1);
    world.spawn();
    const auto work = world.compute.only<actors::attend_work>();
    BOOST_TEST(work.stream == allowed);
    BOOST_TEST(work.ids.empty());
    BOOST_TEST(work.hidden.size() == world.width());
  }
}

BOOST_AUTO_TEST_CASE(where_it_stays_it_calls_every_server_and_adds_what_comes_back) {
  one_token world;
  world.spawn();
  world.compute.forget();
  world.decide(1, {{here, there}}, 30);
  // The own expert by the shard, with the token to answer; the other over the link.
  const auto own = world.shards[0].only<actors::expert_work>();
  BOOST_TEST((own.token == world.token));
  BOOST_TEST(own.call.reply_to == 1u);
  BOOST_TEST(own.epoch == 1u);
  BOOST_TEST(own.call.items.at(0).expert == 4u);
  BOOST_TEST(own.call.items.at(0).slot == 0u);
  BOOST_TEST(own.call.whole.at(0) == 0);
  BOOST_TEST(own.call.x == world.row(3.0f), boost::test_tools::per_element());
  const auto other = world.called(2);
  BOOST_TEST(other.reply_to == 1u);
  BOOST_TEST(other.items.at(0).slot == 1u);
  BOOST_TEST(other.items.at(0).gate == 0.25f);
  BOOST_TEST((other.token == wire::token_key{number, 2, world.id, 4}));
  world.deliver(0, {{0, 1}}, 100.0f);
  BOOST_TEST(world.compute.heard() == 0u);
  world.deliver(0, {{0, 0}}, 10.0f, 1);
  const auto next = world.compute.only<actors::attend_work>();
  BOOST_TEST(next.layer == 1u);
  BOOST_TEST(next.hidden.at(0) == 2.0f + 0.75f * 10 + 0.25f * 100);
  BOOST_TEST(next.pool == 70);
  BOOST_TEST(next.allowance.at(0) == 10);
  BOOST_TEST(!world.gone());
}

BOOST_AUTO_TEST_CASE(where_all_runs_elsewhere_it_goes_there_and_awaits_the_outputs) {
  one_token world;
  world.at_layer(1);
  world.spawn();
  world.decide(2, {{there, {0, 3, 0.75f}}}, 30);
  BOOST_TEST(world.gone_at(1));
  BOOST_TEST(world.called(0).reply_to == 2u);
  BOOST_TEST(world.called(2).reply_to == 2u);
  const auto state = world.travelled(2);
  BOOST_TEST(state.layer == 1u);
  BOOST_TEST(state.slots_of_row.at(0) == 2u);
  BOOST_TEST((state.slots.at(0) == there));
  BOOST_TEST(state.pool == 70);
  BOOST_TEST(state.spent == 35);
  BOOST_TEST(state.allowance.at(0) == 10);
  BOOST_TEST(state.hidden == world.row(2.0f), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_departure_is_told_before_anything_is_sent) {
  one_token world;
  world.at_layer(1);
  // Everybody into one log, in the order of arrival.
  auto log = world.new_log();
  test::probe server(world, log), link(world, log);
  world.view->server = server.as<actors::edge_server_actor>();
  world.view->links[2] = link.as<actors::link_actor>();
  world.spawn();
  world.decide(2, {{there}});
  BOOST_REQUIRE(log->size() >= 2u);
  BOOST_TEST(log->front().match_elements<actors::token_departed>());
}

BOOST_AUTO_TEST_CASE(rows_that_ran_here_alone_are_added_before_it_leaves) {
  one_token world;
  world.state.ids = {11, 12, 13};
  world.state.allowance = {40, 40, 40};
  world.at_layer(1);
  world.spawn();
  // Row 0 runs here, row 1 at both, row 2 nowhere.
  world.decide(2, {{here}, {here, there}, {}});
  BOOST_TEST(!world.gone());
  const auto calls = world.shards[1].all<actors::expert_work>();
  BOOST_REQUIRE_EQUAL(calls.size(), 2u);
  for (const auto& each : calls) {
    const bool alone = each.call.rows.at(0) == 0;
    BOOST_TEST(static_cast<bool>(each.token) == alone);
    BOOST_TEST(each.call.reply_to == (alone ? 1u : 2u));
    BOOST_TEST(each.call.whole.at(0) == (alone ? 1 : 0));
  }
  BOOST_TEST(world.called(2).rows.at(0) == 1u);
  world.deliver(1, {{0, whole_row}}, 50.0f, 1);
  BOOST_TEST(world.gone_at(1));
  const auto state = world.travelled(2);
  const std::vector<std::uint32_t> awaited{0, 2, 0};
  BOOST_TEST(state.slots_of_row == awaited, boost::test_tools::per_element());
  BOOST_TEST(state.slots.size() == 2u);
  BOOST_TEST(state.layer == 1u);
  BOOST_TEST(state.hidden.front() == 52.0f);
  BOOST_TEST(state.hidden.back() == 2.0f);
}

BOOST_AUTO_TEST_CASE(with_nothing_left_to_await_it_travels_to_the_next_layer) {
  one_token world;
  world.at_layer(1);
  world.spawn();
  world.decide(2, {{here}});
  world.deliver(1, {{0, whole_row}}, 50.0f, 1);
  const auto state = world.travelled(2);
  BOOST_TEST(state.layer == 2u);
  BOOST_TEST(state.slots_of_row.empty());
  BOOST_TEST(state.hidden.front() == 52.0f);
}

BOOST_AUTO_TEST_CASE(a_layer_that_runs_no_expert_ends_with_the_selection) {
  one_token stays;
  stays.spawn();
  stays.compute.forget();
  stays.decide(1, {{}});
  BOOST_TEST(stays.compute.only<actors::attend_work>().layer == 1u);
  one_token leaves;
  leaves.at_layer(1);
  leaves.spawn();
  leaves.decide(2, {{}});
  BOOST_TEST(leaves.gone_at(1));
  BOOST_TEST(leaves.travelled(2).layer == 2u);
  // Behind the last layer the head runs where it is.
  one_token last;
  last.at_layer(2);
  last.spawn();
  last.decide(2, {{}});
  BOOST_TEST(!last.gone());
  BOOST_TEST(last.compute.count<actors::head_work>() == 1u);
}

BOOST_AUTO_TEST_CASE(it_goes_on_where_outputs_were_before_it) {
  one_token world;
  world.awaiting(0);
  wire::expert_output output;
  output.token = {number, 2, world.id, 4};
  output.layer = 0;
  output.rows = {{0, whole_row}};
  output.y = world.row(10.0f);
  world.early = {{output, 2}};
  world.spawn();
  const auto work = world.compute.only<actors::attend_work>();
  BOOST_TEST(work.layer == 1u);
  BOOST_TEST(work.hidden.at(0) == 11.0f);
}

BOOST_AUTO_TEST_CASE(what_it_does_not_wait_for_is_left_alone) {
  one_token world;
  world.awaiting(0);
  world.spawn();
  world.decide(2, {{there}});
  world.sample(9);
  world.deliver(1, {{0, whole_row}});
  BOOST_TEST(world.server.heard() == 0u);
  BOOST_TEST(world.compute.heard() == 0u);
  world.deliver(0, {{0, whole_row}});
  BOOST_TEST(world.compute.count<actors::attend_work>() == 1u);
  world.deliver(0, {{0, whole_row}});
  world.sample(9);
  BOOST_TEST(world.compute.heard() == 1u);
  BOOST_TEST(world.server.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(behind_the_last_layer_its_last_row_gets_logits_and_an_id) {
  one_token world;
  world.context->keep_final_hidden = true;
  world.awaiting(2);
  world.spawn();
  world.deliver(2, {{0, whole_row}}, 10.0f);
  const auto work = world.compute.only<actors::head_work>();
  BOOST_TEST((work.token == world.token));
  BOOST_TEST(work.hidden == world.row(11.0f), boost::test_tools::per_element());
  world.sample(77);
  const auto report = world.server.only<wire::progress_report>();
  BOOST_TEST(report.request == number);
  BOOST_TEST(report.attempt == 2u);
  BOOST_TEST(report.access == world.id);
  BOOST_TEST(report.position == 5u);
  BOOST_TEST(report.id == 77);
  BOOST_TEST(report.last == 0);
  BOOST_TEST(report.pool == 100);
  BOOST_TEST(report.spent == 5);
  BOOST_TEST(report.hidden.size() == world.width());
  // The next position begins here, at the nearest member of layer 0: the same actor goes on.
  BOOST_TEST(!world.gone());
  const auto told = world.server.only<actors::token_succeeded>();
  BOOST_TEST((told.token == world.token));
  BOOST_TEST((told.key == wire::token_key{number, 2, world.id, 4}));
  BOOST_TEST(told.step == step_of(3, true));
  BOOST_TEST(told.next_first == 5u);
  BOOST_TEST(told.next_step == step_of(0, false));
  const auto next = world.compute.only<actors::attend_work>();
  BOOST_TEST((next.token == world.token));
  BOOST_TEST(next.first == 5u);
  BOOST_TEST(next.ids.at(0) == 77);
  BOOST_TEST(next.layer == 0u);
}

BOOST_AUTO_TEST_CASE(an_output_of_the_position_before_is_not_added_to_the_next_one) {
  one_token world;
  world.awaiting(2);
  world.spawn();
  world.deliver(2, {{0, whole_row}});
  world.sample(77);
  world.compute.forget();
  world.decide(1, {{there}});
  // Of position 4 at layer 0, while position 5 awaits the same there.
  world.deliver(0, {{0, whole_row}}, 1000.0f);
  BOOST_TEST(world.compute.heard() == 0u);
  world.state.first = 5;
  world.deliver(0, {{0, whole_row}}, 10.0f);
  BOOST_TEST(world.compute.only<actors::attend_work>().hidden.at(0) == 12.0f);
}

BOOST_AUTO_TEST_CASE(the_next_position_begins_at_the_access_server_where_the_terms_say_so) {
  one_token world;
  world.state.terms.continue_in_place = 0;
  world.awaiting(2);
  world.spawn();
  world.deliver(2, {{0, whole_row}});
  world.sample(77);
  BOOST_TEST(world.gone_at(3));
  BOOST_TEST(world.server.count<actors::token_succeeded>() == 0u);
  BOOST_TEST(world.server.only<wire::progress_report>().id == 77);
}

BOOST_AUTO_TEST_CASE(the_next_position_of_another_servers_user_begins_at_a_member_there) {
  one_token world;
  world.state.terms.access = 2;
  world.awaiting(2);
  world.spawn();
  world.deliver(2, {{0, whole_row}});
  world.sample(77);
  BOOST_TEST(world.gone_at(3));
  BOOST_TEST(world.travelled(2).first == 5u);
  const auto reports = world.sent(2, wire::frame_kind::progress);
  BOOST_REQUIRE_EQUAL(reports.size(), 1u);
  BOOST_TEST(wire::decode_progress(reports[0])->id == 77);
  BOOST_TEST(world.server.count<wire::progress_report>() == 0u);
}

BOOST_AUTO_TEST_CASE(an_answer_ends_by_length_by_context_and_by_its_end_of_text) {
  const auto is_last = [](auto change, std::int32_t sampled) {
    one_token world;
    world.awaiting(2);
    change(world);
    world.spawn();
    world.deliver(2, {{0, whole_row}});
    world.sample(sampled);
    const bool last = world.server.template only<wire::progress_report>().last == 1;
    BOOST_TEST(world.server.template count<actors::token_succeeded>() == (last ? 0u : 1u));
    BOOST_TEST(world.gone() == last);
    return last;
  };
  BOOST_TEST(!is_last([](auto&) {}, 77));
  BOOST_TEST(is_last([](auto& world) { world.state.terms.max_new_tokens = 2; }, 77));
  BOOST_TEST(!is_last([](auto& world) { world.state.terms.max_new_tokens = 3; }, 77));
  BOOST_TEST(is_last([](auto&) {}, 2));
  BOOST_TEST(!is_last([](auto& world) { world.state.terms.ignore_end_of_text = 1; }, 2));
  BOOST_TEST(is_last([](auto& world) { world.context->decoding.max_context = 6; }, 77));
}

BOOST_AUTO_TEST_CASE(given_ids_take_the_place_of_sampled_ones) {
  // Teacher-forced: the loss of the id that was given.
  one_token scored;
  scored.state.terms.score = 1;
  scored.state.forced = {50, 51};
  scored.awaiting(2);
  scored.spawn();
  scored.deliver(2, {{0, whole_row}});
  scored.sample(77);
  const auto report = scored.server.only<wire::progress_report>();
  BOOST_TEST(report.id == 50);
  BOOST_REQUIRE_EQUAL(report.losses.size(), 1u);
  BOOST_TEST(report.losses[0] > 5.0);
  BOOST_TEST(scored.compute.all<actors::attend_work>().back().ids.at(0) == 50);
  // And of the one after it: the ids go along.
  scored.compute.forget();
  scored.server.forget();
  scored.decide(1, {{}});
  scored.decide(1, {{}});
  scored.decide(1, {{}});
  scored.sample(77);
  BOOST_TEST(scored.server.only<wire::progress_report>().id == 51);
  // Computed again: it goes on by itself whatever the terms say.
  one_token replayed;
  replayed.state.terms.continue_in_place = 0;
  replayed.state.forced = {50};
  replayed.awaiting(2);
  replayed.spawn();
  replayed.deliver(2, {{0, whole_row}});
  replayed.sample(77);
  BOOST_TEST(replayed.server.only<wire::progress_report>().losses.empty());
  BOOST_TEST(replayed.compute.only<actors::attend_work>().ids.at(0) == 50);
  BOOST_TEST(!replayed.gone());
}

BOOST_AUTO_TEST_CASE(a_temperature_draws_from_the_requests_stream) {
  one_token world;
  world.state.terms.temperature = 1;
  world.state.terms.sampling_seed = 3;
  world.state.terms.sampling_stream = 9;
  world.awaiting(2);
  world.spawn();
  world.deliver(2, {{0, whole_row}});
  std::vector<float> logits;
  for (std::size_t i = 0; i < world.context->shape().vocab_size; ++i)
    logits.push_back(static_cast<float>(i % 5));
  world.tell(world.token, computed(logits));
  BOOST_TEST(world.server.only<wire::progress_report>().id == model::sample(logits, {1, 3}, 9, 5));
}

BOOST_AUTO_TEST_CASE(a_chunk_before_the_last_only_says_that_it_ended_and_what_it_spent) {
  one_token world;
  world.state.first = 0;
  world.state.ids = {11, 12};
  world.state.allowance = {0, 0};
  world.at_layer(2);
  world.state.slots_of_row = {1, 0};
  world.state.slots = {{2, 5, 1.0f}};
  world.spawn();
  world.deliver(2, {{0, whole_row}});
  BOOST_TEST(world.compute.heard() == 0u);
  const auto report = world.server.only<wire::progress_report>();
  BOOST_TEST(report.id == -1);
  BOOST_TEST(report.position == 0u);
  BOOST_TEST(report.spent == 5);
  BOOST_TEST(world.gone());
}

BOOST_AUTO_TEST_CASE(an_awaited_output_that_failed_is_told_to_the_owner_and_ends_it) {
  for (const bool before_it : {false, true}) {
    one_token world;
    world.awaiting(0);
    wire::expert_output failed;
    failed.token = {number, 2, world.id, 4};
    failed.rows = {{0, whole_row}};
    failed.code = static_cast<std::uint8_t>(errc::io);
    failed.problem = "no memory";
    if (before_it) world.early = {{failed, 2}};
    world.spawn();
    if (!before_it) {
      world.tell(world.token, actors::arrived_output{failed, 0});  // Not from whom it was asked.
      BOOST_TEST(world.server.heard() == 0u);
      world.tell(world.token, actors::arrived_output{failed, 2});
    }
    const auto told = world.server.only<wire::failure_report>();
    BOOST_TEST(told.text == "no memory");
    BOOST_TEST((static_cast<errc>(told.code) == errc::io));
    BOOST_TEST(world.gone());
    BOOST_TEST(world.compute.heard() == 0u);
  }
}

BOOST_AUTO_TEST_CASE(work_that_failed_is_told_to_the_owner_and_ends_it) {
  one_token world;
  world.spawn();
  world.tell(world.token, actors::work_failed{{errc::io, "no memory"}});
  const auto failed = world.server.only<wire::failure_report>();
  BOOST_TEST(failed.request == number);
  BOOST_TEST(failed.attempt == 2u);
  BOOST_TEST((static_cast<errc>(failed.code) == errc::io));
  BOOST_TEST(failed.text == "no memory");
  BOOST_TEST(world.gone());
  world.tell(world.token, actors::work_failed{{errc::io, "again"}});
  BOOST_TEST(world.server.count<wire::failure_report>() == 1u);
}

BOOST_AUTO_TEST_CASE(an_owner_elsewhere_is_told_over_the_link_under_the_plan_of_the_token) {
  one_token world;
  world.state.terms.access = 2;
  world.spawn();
  world.tell(world.token, actors::work_failed{{errc::io, "no memory"}});
  BOOST_TEST(world.server.count<wire::failure_report>() == 0u);
  const auto frames = world.sent(2, wire::frame_kind::failure);
  BOOST_REQUIRE_EQUAL(frames.size(), 1u);
  BOOST_TEST(frames[0].epoch == 1u);
  BOOST_TEST(wire::decode_failure(frames[0])->text == "no memory");
}

BOOST_AUTO_TEST_CASE(a_failure_says_no_more_than_its_owner_takes) {
  one_token world;
  world.spawn();
  world.tell(world.token, actors::work_failed{{errc::io, std::string(5000, 'x')}});
  const auto failed = world.server.only<wire::failure_report>();
  BOOST_TEST(failed.text == std::string(wire::most_problem_bytes, 'x'));
}

// --------------------------------------------------------------------------------- lost servers

BOOST_AUTO_TEST_CASE(it_ends_with_the_server_that_it_awaits_an_output_of) {
  one_token world;
  world.awaiting(0);
  world.spawn();
  world.tell(world.token, actors::server_lost{0});
  BOOST_TEST(world.server.heard() == 0u);
  world.tell(world.token, actors::server_lost{2});
  const auto report = world.server.only<wire::failure_report>();
  BOOST_TEST(report.request == number);
  BOOST_TEST(report.attempt == 2u);
  BOOST_TEST(report.server == world.id);
  BOOST_TEST(report.code == static_cast<std::uint8_t>(errc::failed));
  BOOST_TEST(report.text.find("server 2 (s2) is not connected") != std::string::npos);
  BOOST_TEST(world.gone_at(0));
}

BOOST_AUTO_TEST_CASE(an_owner_elsewhere_hears_of_the_lost_server_over_its_link) {
  one_token world;
  world.state.terms.access = 0;
  world.awaiting(0);
  world.spawn();
  world.tell(world.token, actors::server_lost{2});
  const auto frames = world.sent(0, frame_kind::failure);
  BOOST_REQUIRE_EQUAL(frames.size(), 1u);
  const auto report = wire::decode_failure(frames[0]);
  BOOST_REQUIRE(report.has_value());
  BOOST_TEST(report->request == number);
  BOOST_TEST(report->text.find("server 2 (s2)") != std::string::npos);
  BOOST_TEST(world.server.count<wire::failure_report>() == 0u);
}

BOOST_AUTO_TEST_CASE(it_goes_on_without_a_server_whose_output_is_in) {
  one_token world;
  world.at_layer(0);
  world.state.slots_of_row = {2};
  world.state.slots = {here, there};
  world.spawn();
  world.deliver(0, {{0, 1}}, 100.0f);
  world.tell(world.token, actors::server_lost{2});
  BOOST_TEST(world.server.heard() == 0u);
  world.deliver(0, {{0, 0}}, 10.0f, 1);
  BOOST_TEST(world.compute.only<actors::attend_work>().layer == 1u);
}

BOOST_AUTO_TEST_CASE(a_lost_server_is_nothing_to_a_token_that_awaits_no_output) {
  one_token attending;
  attending.spawn();
  attending.tell(attending.token, actors::server_lost{2});
  BOOST_TEST(attending.server.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(before_it_leaves_it_ends_with_a_server_that_it_called_for_its_residence) {
  one_token world;
  world.state.ids = {11, 12};
  world.state.allowance = {40, 40};
  world.at_layer(1);
  world.spawn();
  // The first row runs here alone; the other one's outputs go to server 0.
  world.decide(0, {{here}, {here, there}});
  world.tell(world.token, actors::server_lost{0});
  BOOST_TEST(!world.gone());
  world.tell(world.token, actors::server_lost{2});
  BOOST_TEST(world.gone_at(1));
  const auto report = world.server.only<wire::failure_report>();
  BOOST_TEST(report.text.find("server 2 (s2)") != std::string::npos);
  BOOST_TEST(world.sent(0, frame_kind::token).empty());
}

BOOST_AUTO_TEST_CASE(where_it_leaves_it_says_whom_it_called_for_its_residence) {
  const auto called = [](std::uint32_t residence, const one_token::rows& executed, bool awaits) {
    one_token world;
    world.state.ids.assign(executed.size(), 11);
    world.state.allowance.assign(executed.size(), 40);
    world.at_layer(1);
    world.spawn();
    world.decide(residence, executed);
    if (awaits) world.deliver(1, {{0, whole_row}}, 50.0f, 1);
    return world.server.only<actors::token_departed>().called;
  };
  BOOST_TEST(called(0, {{there}}, false) == 0b100u);
  BOOST_TEST(called(0, {{here, there}}, false) == 0b100u);
  BOOST_TEST(called(0, {{here}}, true) == 0u);
  BOOST_TEST(called(0, {{here}, {here, there}}, true) == 0b100u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
