#include "actors/compute.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <map>
#include <string>

#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

constexpr std::uint64_t number = 7;

/// The compute of server 1. A byte is read in a nanosecond, as is a FLOP: attention of one row at position
/// p takes 600 + p + 1 (500 + 10 (p + 1) bytes are fewer), an expert 2000 a row, the head 900.
struct one_compute : test::probe_server {
  actors::compute_actor computing = keep(actors::spawn_compute(system(), context, id, nullptr));

  one_compute() { tell(computing, actors::attach_view{view}); }
  void open(std::uint64_t request = number, std::uint32_t attempt = 0) {
    tell(computing, actors::open_sequence{request, attempt});
  }
  actors::attend_work attention(std::uint32_t first, std::uint32_t layer = 0,
                                std::uint64_t request = number, std::uint32_t attempt = 0) const {
    actors::attend_work work;
    work.token = token.as<actors::token_actor>();
    work.terms.request = request;
    work.terms.attempt = attempt;
    work.terms.access = 1;
    work.terms.prompt_tokens = 4;
    work.terms.max_new_tokens = 4;
    work.layer = layer;
    work.first = first;
    work.n = 1;
    work.ids = {5};
    work.allowance = {40};
    work.pool = 100;
    work.tokens_left = 2.5;
    return work;
  }
  void attend(std::uint32_t first, std::uint32_t layer = 0, std::uint64_t request = number,
              std::uint32_t attempt = 0) {
    tell(computing, attention(first, layer, request, attempt));
  }
  actors::expert_work call(std::uint32_t reply_to) const {
    actors::expert_work work;
    work.call.token = {number, 0, 1, 3};
    work.call.layer = 1;
    work.call.reply_to = reply_to;
    work.call.rows = {0};
    work.call.whole = {1};
    work.call.items = {{0, 0, 1, 0.5f}, {0, 1, 4, 0.5f}};
    work.call.x.assign(context->wire.hidden_size, 0.5f);
    return work;
  }
  /// The KV rows that another server wrote for this position.
  actors::store_kv rows(std::uint32_t first, std::uint32_t attempt = 0) const {
    actors::store_kv made;
    made.capacity = 40;
    made.content.blocks.push_back({number, attempt, first, 1, {}});
    made.content.blocks[0].rows.resize(context->wire.kv_row_bytes);
    return made;
  }
  actors::compute_status status() {
    return ask<actors::compute_status>(computing, actors::status_query{});
  }
  std::vector<actors::select_query> attended() const {
    std::vector<actors::select_query> found;
    for (const auto& batch : selector.all<actors::select_batch>())
      found.insert(found.end(), batch.queries.begin(), batch.queries.end());
    return found;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(compute)

BOOST_AUTO_TEST_CASE(attended_rows_go_to_the_selector_when_their_time_has_passed) {
  one_compute world;
  world.open();
  world.attend(0);
  BOOST_TEST(world.selector.heard() == 0u);
  BOOST_TEST(world.status().waiting_batches == 1u);
  BOOST_TEST(world.run_next());
  BOOST_TEST(world.time_ns() == 601);
  const auto query = world.attended().at(0);
  BOOST_TEST((query.token == world.token.as<actors::token_actor>()));
  BOOST_TEST((query.key == wire::token_key{number, 0, 1, 0}));
  BOOST_TEST(query.access == 1u);
  BOOST_TEST(query.layer == 0u);
  BOOST_TEST(query.hidden.size() == world.context->wire.hidden_size);
  BOOST_TEST(query.normed.size() == world.context->wire.hidden_size);
  BOOST_TEST(query.logits.size() == world.n_experts);
  BOOST_TEST(query.allowance.at(0) == 40);
  BOOST_TEST(query.pool == 100);
  BOOST_TEST(query.tokens_left == 2.5);
  BOOST_TEST(world.server.heard() == 0u);
  BOOST_TEST(world.status().waiting_batches == 0u);
}

BOOST_AUTO_TEST_CASE(decoded_positions_are_told_from_those_of_a_prompt) {
  one_compute world;
  world.open();
  for (std::uint32_t position = 0; position < 6; ++position) world.attend(position);
  // Of a text that is scored from its first token on, and of one that is scored behind a prompt of two.
  for (const std::uint32_t prompt : {1u, 2u}) {
    world.open(number + prompt);
    for (std::uint32_t position = 0; position < 3; ++position) {
      auto scored = world.attention(position, 0, number + prompt, 0);
      scored.terms.score = 1;
      scored.terms.prompt_tokens = prompt;
      world.tell(world.computing, std::move(scored));
    }
  }
  world.run_all();
  std::map<std::uint64_t, std::string> decodes;
  for (const auto& query : world.attended())
    decodes[query.key.request] += query.decodes ? 'd' : 'p';
  BOOST_TEST(decodes[number] == "ppppdd");
  BOOST_TEST(decodes[number + 1] == "ddd");
  BOOST_TEST(decodes[number + 2] == "ppd");
}

BOOST_AUTO_TEST_CASE(what_waits_for_the_same_weights_runs_together) {
  one_compute world;
  world.open();
  world.open(number + 1);
  world.open(number + 2);
  world.attend(0);  // Runs at once; the others join while it does.
  world.attend(0, 0, number + 1);
  world.attend(0, 0, number + 2);
  BOOST_TEST(world.status().waiting_batches == 2u);
  world.run_all();
  BOOST_TEST(world.selector.count<actors::select_batch>() == 2u);
  BOOST_TEST(world.attended().size() == 3u);
  const auto ledger = world.status().ledger;
  BOOST_TEST(ledger.server == world.id);
  BOOST_TEST(ledger.batches == 2);
  BOOST_TEST(ledger.rows == 3);
  BOOST_TEST(ledger.flops == 3 * 601);
  BOOST_TEST(ledger.bytes_read == 510 + 520);
  BOOST_TEST(ledger.busy_ns == 601 + 2 * 601);
  BOOST_TEST(world.time_ns() == 3 * 601);
}

BOOST_AUTO_TEST_CASE(rows_are_kept_for_attempts_that_were_opened_and_no_others) {
  one_compute world;
  world.attend(0);
  world.open(number, 2);
  world.attend(0, 0, number, 1);
  world.attend(0, 0, number + 1, 2);
  BOOST_TEST(world.status().waiting_batches == 0u);
  BOOST_TEST(world.status().sequences == 1u);
  world.attend(0, 0, number, 2);
  world.run_all();
  BOOST_TEST(world.attended().size() == 1u);
}

BOOST_AUTO_TEST_CASE(attention_waits_for_every_earlier_row_of_its_layer) {
  one_compute world;
  world.open();
  world.attend(1);
  world.attend(0, 1);  // Another layer does not help.
  world.run_all();
  BOOST_TEST(world.attended().size() == 1u);
  world.attend(0);
  world.run_all();
  const auto found = world.attended();
  BOOST_REQUIRE_EQUAL(found.size(), 3u);
  BOOST_TEST(found[1].key.first == 0u);
  BOOST_TEST(found[2].key.first == 1u);
}

BOOST_AUTO_TEST_CASE(rows_of_another_member_let_waiting_attention_go_on) {
  one_compute world;
  world.open();
  world.attend(1);
  world.tell(world.computing, world.rows(0, 1));  // Of another attempt.
  BOOST_TEST(world.status().waiting_batches == 0u);
  world.tell(world.computing, world.rows(0));
  BOOST_TEST(world.status().waiting_batches == 1u);
  world.run_all();
  BOOST_TEST(world.attended().at(0).key.first == 1u);
}

BOOST_AUTO_TEST_CASE(stored_rows_are_what_later_rows_attend_to) {
  // The same position with other rows before it comes out differently.
  std::vector<std::vector<float>> hidden;
  for (const std::uint8_t byte : {0, 1}) {
    one_compute world;
    world.open();
    auto before = world.rows(0);
    // Numbers around one, however they are kept.
    std::ranges::fill(before.content.blocks[0].rows, static_cast<std::uint8_t>(byte * 0x3f));
    world.tell(world.computing, before);
    world.attend(1);
    world.run_all();
    hidden.push_back(world.attended().at(0).hidden);
  }
  BOOST_TEST((hidden[0] != hidden[1]));
}

BOOST_AUTO_TEST_CASE(a_dropped_sequence_takes_its_waiting_work_with_it) {
  one_compute world;
  world.open();
  world.open(number + 1);
  world.attend(0, 0, number + 1);
  world.attend(0);
  world.attend(5);
  world.tell(world.computing, actors::drop_sequence{number});
  BOOST_TEST(world.status().sequences == 1u);
  world.run_all();
  BOOST_TEST(world.attended().size() == 1u);
  BOOST_TEST(world.attended()[0].key.request == number + 1);
  world.attend(0);
  BOOST_TEST(world.status().waiting_batches == 0u);
}

BOOST_AUTO_TEST_CASE(a_new_attempt_begins_without_the_rows_of_the_one_before) {
  one_compute world;
  world.open();
  world.attend(0);
  world.run_all();
  world.open(number, 1);
  world.attend(1, 0, number, 1);
  world.run_all();
  BOOST_TEST(world.attended().size() == 1u);
  world.attend(0, 0, number, 1);
  world.run_all();
  BOOST_TEST(world.attended().size() == 3u);
}

BOOST_AUTO_TEST_CASE(new_rows_are_handed_on_where_the_work_says_so) {
  one_compute world;
  world.open();
  auto work = world.attention(0, 2);
  work.stream = true;
  world.tell(world.computing, work);
  world.run_all();
  const auto written = world.server.only<actors::kv_written>();
  BOOST_TEST(written.content.layer == 2u);
  BOOST_TEST(written.access.at(0) == 1u);
  BOOST_REQUIRE_EQUAL(written.content.blocks.size(), 1u);
  BOOST_TEST(written.content.blocks[0].request == number);
  BOOST_TEST(written.content.blocks[0].rows.size() == world.context->wire.kv_row_bytes);
}

BOOST_AUTO_TEST_CASE(outputs_go_to_the_token_the_own_server_or_over_the_link) {
  one_compute world;
  auto to_token = world.call(world.id);
  to_token.token = world.token.as<actors::token_actor>();
  world.tell(world.computing, to_token);
  world.run_all();
  // Two experts, one after the other.
  BOOST_TEST(world.time_ns() == 4000);
  const auto arrived = world.token.only<actors::arrived_output>();
  const auto& output = arrived.content;
  BOOST_TEST(arrived.from == world.id);
  BOOST_TEST((output.token == wire::token_key{number, 0, 1, 3}));
  BOOST_TEST(output.layer == 1u);
  BOOST_TEST(output.rows.at(0).slot == wire::whole_row);
  BOOST_TEST(output.y.size() == world.context->wire.hidden_size);
  BOOST_TEST(world.server.heard() == 0u);
  world.tell(world.computing, world.call(world.id));
  world.run_all();
  BOOST_TEST((world.server.only<actors::arrived_output>().content == output));
  world.tell(world.computing, world.call(2));
  world.run_all();
  const auto frames = world.sent(2, wire::frame_kind::output);
  BOOST_REQUIRE_EQUAL(frames.size(), 1u);
  BOOST_TEST((*wire::decode_output(frames[0], world.context->wire) == output));
  BOOST_TEST(world.token.heard() == 1u);
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_end_what_waits_for_them_by_name) {
  // Where a call goes, nobody would take its outputs in.
  one_compute world;
  auto asked = world.call(2);
  asked.call.x[0] = std::numeric_limits<float>::infinity();
  world.tell(world.computing, asked);
  world.run_all();
  const auto frames = world.sent(2, wire::frame_kind::output);
  BOOST_REQUIRE_EQUAL(frames.size(), 1u);
  const auto output = wire::decode_output(frames[0], world.context->wire);
  BOOST_REQUIRE(output.has_value());
  BOOST_TEST(output->problem == "experts of layer 1 on server 1 give numbers that are not finite");
  BOOST_TEST((output->code == static_cast<std::uint8_t>(errc::failed)));
  BOOST_TEST(output->y.empty());
  BOOST_TEST((output->rows == std::vector<wire::output_row>{{0, wire::whole_row}}));
  // Nor the rows of a token; others of its batch go on, and its own keys and values go nowhere.
  one_compute attending;
  attending.open();
  attending.open(number + 1);
  attending.attend(0, 0, number + 1);  // Runs at once; the others join while it does.
  auto work = attending.attention(0);
  work.ids.clear();
  work.hidden.assign(attending.context->wire.hidden_size, std::numeric_limits<float>::infinity());
  work.stream = true;
  attending.tell(attending.computing, work);
  attending.attend(1, 0, number + 1);
  attending.run_all();
  BOOST_TEST(attending.token.only<actors::work_failed>().what.message ==
             "the attention of layer 0 gives numbers that are not finite");
  BOOST_TEST(attending.attended().size() == 2u);
  BOOST_TEST(attending.server.count<actors::kv_written>() == 0u);
}

BOOST_AUTO_TEST_CASE(outputs_of_a_call_under_the_plan_before_say_so) {
  one_compute world;
  auto call = world.call(2);
  call.epoch = 7;
  world.tell(world.computing, call);
  world.run_all();
  BOOST_TEST(world.sent(2, wire::frame_kind::output).at(0).epoch == 7u);
}

BOOST_AUTO_TEST_CASE(each_head_gets_its_own_logits) {
  one_compute world;
  test::probe other(world);
  const auto width = world.context->wire.hidden_size;
  std::vector<float> rising(width);
  for (std::size_t i = 0; i < width; ++i) rising[i] = static_cast<float>(i);
  world.tell(world.computing, actors::head_work{world.token.as<actors::token_actor>(), rising});
  world.tell(world.computing, actors::head_work{world.token.as<actors::token_actor>(),
                                                std::vector<float>(width, 1.0f)});
  world.tell(world.computing, actors::head_work{other.as<actors::token_actor>(), rising});
  world.run_all();
  BOOST_TEST(world.time_ns() == 900 + 2 * 900);
  const auto mine = world.token.all<actors::head_done>();
  BOOST_REQUIRE_EQUAL(mine.size(), 2u);
  BOOST_TEST(mine[0].logits().size() == world.context->shape().vocab_size);
  BOOST_TEST(!std::ranges::equal(mine[0].logits(), mine[1].logits()));
  const auto others = other.only<actors::head_done>();
  BOOST_TEST(std::ranges::equal(others.logits(), mine[0].logits()));
}

BOOST_AUTO_TEST_CASE(its_wait_is_the_rest_of_the_running_batch_and_all_that_waits) {
  one_compute world;
  BOOST_TEST(world.status().wait_ns == 0);
  world.tell(world.computing, world.call(world.id));
  world.advance_ns(500);
  world.tell(world.computing, actors::tell_load{});
  BOOST_TEST(world.server.only<actors::compute_load>().wait_ns == 1500 + 2000);
  BOOST_TEST(world.status().wait_ns == 3500);
}

BOOST_AUTO_TEST_CASE(another_view_is_the_one_that_it_speaks_to_from_then_on) {
  one_compute world;
  test::probe other(world);
  auto next = std::make_shared<actors::server_view>(*world.view);
  next->selector = other.as<actors::selector_actor>();
  world.tell(world.computing, actors::attach_view{next});
  world.open();
  world.attend(0);
  world.run_all();
  BOOST_TEST(world.selector.heard() == 0u);
  BOOST_TEST(other.count<actors::select_batch>() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
