#include "actors/request.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "model/text/tokenizer.hpp"
#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using actors::request_phase;
using wire::reserve_step;

constexpr std::uint64_t number = 7;

/// A request of a user of server 1: five prompt ids in chunks of four, three new tokens, so that eight
/// positions take memory at servers 0, 1 and 2 for 1, 3 and 1 layers.
struct one_request : test::probe_server {
  std::shared_ptr<actors::request_spec> spec = std::make_shared<actors::request_spec>();
  actors::request_actor request;

  one_request() {
    spec->access = id;
    spec->prompt = {5, 6, 7, 8, 9};
    spec->max_new_tokens = 3;
  }
  void spawn() {
    request = keep(
        actors::spawn_request(system(), view, {number, spec, client.as<actors::client_actor>()}));
    run_ready();
  }
  void resume() { tell(request, actors::resume_request{view}); }
  /// The newest asks by server.
  std::vector<wire::reservation> asks() const { return server.all<wire::reservation>(); }
  void answer(std::uint32_t member, std::uint32_t ask, reserve_step step,
              std::uint32_t attempt = 0) {
    wire::reservation made;
    made.request = number;
    made.attempt = attempt;
    made.ask = ask;
    made.step = step;
    made.server = member;
    made.access = id;
    tell(request, made);
  }
  void grant_all(std::uint32_t ask = 1, reserve_step step = reserve_step::granted,
                 std::uint32_t attempt = 0) {
    for (std::uint32_t m = 0; m < n_servers; ++m) answer(m, ask, step, attempt);
  }
  void run() {
    spawn();
    resume();
    grant_all();
  }
  void report(std::uint32_t position, std::int32_t token_id, bool last = false,
              loss_units spent = 0, std::uint32_t attempt = 0) {
    wire::progress_report made;
    made.request = number;
    made.attempt = attempt;
    made.access = id;
    made.position = position;
    made.id = token_id;
    made.last = last;
    made.spent = spent;
    tell(request, made);
  }
  void report_chunk(std::uint32_t first, loss_units spent = 0) { report(first, -1, false, spent); }
  std::vector<request_phase> phases() const {
    std::vector<request_phase> found;
    for (const auto& each : server.all<actors::request_moved>()) found.push_back(each.phase);
    return found;
  }
  std::vector<std::int32_t> streamed() const {
    std::vector<std::int32_t> ids;
    for (const auto& each : client.all<actors::answer_token>()) ids.push_back(each.id);
    return ids;
  }
  actors::request_outcome outcome() const { return *client.only<actors::answer_end>().outcome; }
  /// Servers that were told to release, once each.
  std::vector<std::uint32_t> released() const {
    std::vector<std::uint32_t> found;
    for (const auto& each : asks())
      if (each.step == reserve_step::release) found.push_back(each.server);
    std::ranges::sort(found);
    return found;
  }
};

const std::vector<std::uint32_t> everybody{0, 1, 2};

bool failed_with(const actors::request_outcome& outcome, errc code) {
  return outcome.finish == "failed" && outcome.problem && outcome.problem->code == code;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(request)

BOOST_AUTO_TEST_CASE(it_waits_until_it_may_begin_and_then_asks_every_member_at_once) {
  one_request world;
  world.spawn();
  BOOST_TEST(world.server.heard() == 0u);
  world.resume();
  const auto asks = world.asks();
  BOOST_REQUIRE_EQUAL(asks.size(), 3u);
  const std::vector<std::int64_t> bytes{80, 240, 80};
  for (std::uint32_t m = 0; m < 3; ++m) {
    BOOST_TEST(asks[m].server == m);
    BOOST_TEST(asks[m].request == number);
    BOOST_TEST((asks[m].step == reserve_step::attempt));
    BOOST_TEST(asks[m].bytes == bytes[m]);
    BOOST_TEST(asks[m].access == world.id);
    // Its own deadline, and ten seconds.
    BOOST_TEST(asks[m].lease_ns == world.timeout_ns + 10'000'000'000);
  }
  BOOST_TEST((world.phases() == std::vector{request_phase::reserving}));
  world.resume();
  BOOST_TEST(world.asks().size() == 3u);
}

BOOST_AUTO_TEST_CASE(granted_everywhere_it_starts_the_chunks_of_its_prompt) {
  one_request world;
  auto plan = world.plan_of_epoch(1);
  plan->decoding.token_budget = 10;
  world.view->placed = plan;
  world.spec->temperature = 0.5;
  world.spec->sampling_seed = 3;
  world.spawn();
  world.resume();
  world.answer(0, 1, reserve_step::granted);
  world.answer(2, 1, reserve_step::granted);
  BOOST_TEST(world.server.count<actors::start_token>() == 0u);
  world.answer(1, 1, reserve_step::granted);
  const auto chunks = world.server.all<actors::start_token>();
  BOOST_REQUIRE_EQUAL(chunks.size(), 2u);
  const auto& first = chunks[0].state;
  const auto& last = chunks[1].state;
  const std::vector<std::int32_t> first_ids{5, 6, 7, 8}, last_ids{9};
  BOOST_TEST(first.ids == first_ids, boost::test_tools::per_element());
  BOOST_TEST(last.ids == last_ids, boost::test_tools::per_element());
  BOOST_TEST(first.first == 0u);
  BOOST_TEST(last.first == 4u);
  // The last one carries what three new tokens may spend.
  BOOST_TEST(first.pool == 40);
  BOOST_TEST(last.pool == 40);
  BOOST_TEST(last.allowance == std::vector<loss_units>{10}, boost::test_tools::per_element());
  const auto& terms = last.terms;
  BOOST_TEST(terms.request == number);
  BOOST_TEST(terms.access == world.id);
  BOOST_TEST(terms.prompt_tokens == 5u);
  BOOST_TEST(terms.given_tokens == 5u);
  BOOST_TEST(terms.max_new_tokens == 3u);
  BOOST_TEST(terms.temperature == 0.5);
  BOOST_TEST(terms.sampling_seed == 3u);
  BOOST_TEST(terms.sampling_stream == number);
  BOOST_TEST(terms.continue_in_place == 1);
  BOOST_TEST((world.phases() == std::vector{request_phase::reserving, request_phase::running}));
}

BOOST_AUTO_TEST_CASE(chunks_start_at_the_nearest_member_of_the_first_layer) {
  one_request world;
  auto content = world.plan();
  content.residence[1].layers[0] = 0b001;
  world.view->placed = world.plan_of_epoch(1, std::move(content));
  world.run();
  BOOST_TEST(world.server.count<actors::start_token>() == 0u);
  const auto frames = world.sent(0, wire::frame_kind::token);
  BOOST_REQUIRE_EQUAL(frames.size(), 2u);
  const auto state = wire::decode_token(frames[1], world.context->wire);
  BOOST_REQUIRE(state.has_value());
  BOOST_TEST(state->first == 4u);
}

BOOST_AUTO_TEST_CASE(refused_somewhere_it_gives_all_back_and_waits_server_by_server) {
  one_request world;
  world.spawn();
  world.resume();
  world.server.forget();
  world.answer(0, 1, reserve_step::granted);
  world.answer(1, 1, reserve_step::refused);
  world.answer(2, 1, reserve_step::granted);
  const std::vector<std::uint32_t> held{0, 2};
  BOOST_TEST(world.released() == held, boost::test_tools::per_element());
  for (std::uint32_t m = 0; m < 3; ++m) {
    const auto wait = world.asks().back();
    BOOST_TEST((wait.step == reserve_step::wait));
    BOOST_TEST(wait.server == m);
    BOOST_TEST(wait.ask == 2u);
    BOOST_TEST(wait.bytes > 0);
    BOOST_TEST((world.phases().back() == request_phase::queueing));
    world.answer(m, 2, reserve_step::granted);
  }
  BOOST_TEST((world.phases().back() == request_phase::running));
  BOOST_TEST(world.server.count<actors::start_token>() == 2u);
}

BOOST_AUTO_TEST_CASE(while_it_waits_in_order_it_holds_nothing_out_of_turn) {
  one_request world;
  world.spawn();
  world.resume();
  for (std::uint32_t m = 0; m < 3; ++m)
    world.answer(m, 1, m == 0 ? reserve_step::refused : reserve_step::granted);
  world.server.forget();
  // The first ask came to server 2 again, after its release.
  world.answer(2, 1, reserve_step::granted);
  BOOST_TEST(world.released() == std::vector<std::uint32_t>{2}, boost::test_tools::per_element());
  BOOST_TEST(world.asks().size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_was_granted_after_it_had_been_refused_is_given_back_with_the_others) {
  one_request world;
  world.spawn();
  world.resume();
  world.answer(0, 1, reserve_step::refused);
  world.answer(0, 1, reserve_step::granted);  // The ask came again, and there was room then.
  world.answer(1, 1, reserve_step::granted);
  world.answer(2, 1, reserve_step::refused);
  const std::vector<std::uint32_t> held{0, 1};
  BOOST_TEST(world.released() == held, boost::test_tools::per_element());
  BOOST_TEST((world.phases().back() == request_phase::queueing));
}

BOOST_AUTO_TEST_CASE(answers_to_other_asks_and_of_strangers_are_left_alone) {
  one_request world;
  world.spawn();
  world.resume();
  world.answer(0, 1, reserve_step::granted);
  world.answer(0, 1, reserve_step::granted);
  world.answer(1, 9, reserve_step::granted);
  world.answer(2, 1, reserve_step::granted);
  world.answer(77, 1, reserve_step::granted);
  BOOST_TEST(world.server.count<actors::start_token>() == 0u);
  world.answer(1, 1, reserve_step::granted);
  BOOST_TEST(world.server.count<actors::start_token>() == 2u);
}

BOOST_AUTO_TEST_CASE(tokens_reach_the_client_in_order_and_the_answer_ends_with_the_last_chunk) {
  one_request world;
  world.run();
  world.report(6, 31, false, 20);
  BOOST_TEST(world.streamed().empty());
  world.report(5, 30, false, 10);
  world.report(5, 99);
  world.advance_ns(500);
  world.report(7, 32, true, 30);
  const std::vector<std::int32_t> expected{30, 31, 32};
  BOOST_TEST(world.streamed() == expected, boost::test_tools::per_element());
  for (std::uint32_t i = 0; i < 3; ++i)
    BOOST_TEST(world.client.all<actors::answer_token>()[i].index == i);
  BOOST_TEST((world.phases().back() == request_phase::settling));
  BOOST_TEST(world.client.count<actors::answer_end>() == 0u);
  BOOST_TEST(world.released().empty());
  world.report_chunk(0, 4);
  const auto outcome = world.outcome();
  BOOST_TEST(outcome.finish == "length");
  BOOST_TEST(outcome.token_ids == expected, boost::test_tools::per_element());
  BOOST_TEST(outcome.spent == 34);
  BOOST_TEST(outcome.request == number);
  BOOST_TEST(outcome.attempts == 1u);
  BOOST_TEST(outcome.done_ns - outcome.first_token_ns == 500);
  BOOST_TEST((world.phases().back() == request_phase::ended));
  BOOST_TEST(world.released() == everybody, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_end_of_text_ends_the_answer_and_is_no_part_of_it) {
  for (const bool ignored : {false, true}) {
    one_request world;
    world.spec->ignore_end_of_text = ignored;
    world.run();
    world.report_chunk(0);
    world.report(5, 30);
    world.report(6, 2, !ignored);  // The tiny model ends texts with 2.
    if (ignored) {
      BOOST_TEST(world.client.count<actors::answer_end>() == 0u);
      BOOST_TEST(world.streamed().size() == 2u);
    } else {
      BOOST_TEST(world.outcome().finish == "end_of_text");
      BOOST_TEST(world.outcome().token_ids.size() == 1u);
      BOOST_TEST(world.streamed().size() == 1u);
    }
  }
}

BOOST_AUTO_TEST_CASE(an_answer_that_the_context_ends_says_so) {
  one_request world;
  world.run();
  world.report_chunk(0);
  world.report(5, 30, true);
  BOOST_TEST(world.outcome().finish == "context");
}

BOOST_AUTO_TEST_CASE(with_stop_strings_it_starts_each_position_itself_until_one_is_found) {
  one_request world;
  world.context->tokens = *model::tokenizer::load(ORDERMOE_TEST_DATA "/mixtral-tiny");
  world.spec->stop_strings = {"b"};
  world.run();
  world.report_chunk(0);
  BOOST_TEST(world.server.all<actors::start_token>().back().state.terms.continue_in_place == 0);
  world.server.forget();
  const std::int32_t a = 3 + 'a', b = 3 + 'b';  // The tiny model's byte pieces.
  world.report(5, a);
  const auto next = world.server.only<actors::start_token>().state;
  BOOST_TEST(next.first == 5u);
  BOOST_TEST(next.ids == std::vector<std::int32_t>{a}, boost::test_tools::per_element());
  BOOST_TEST(world.client.all<actors::answer_token>().back().text == "a");
  world.report(6, b);
  BOOST_TEST(world.outcome().finish == "stop_string");
  BOOST_TEST(world.outcome().text == "a");
  BOOST_TEST(world.server.count<actors::start_token>() == 1u);
}

BOOST_AUTO_TEST_CASE(a_scored_text_reports_the_loss_of_every_token_but_the_first) {
  one_request world;
  world.spec->score = true;
  world.spec->prompt = {5, 6, 7};
  world.run();
  const auto begin = world.server.only<actors::start_token>().state;
  const std::vector<std::int32_t> first{5}, following{6, 7};
  BOOST_TEST(begin.ids == first, boost::test_tools::per_element());
  BOOST_TEST(begin.forced == following, boost::test_tools::per_element());
  BOOST_TEST(begin.terms.score == 1);
  for (std::uint32_t i = 0; i < 2; ++i) {
    wire::progress_report made;
    made.request = number;
    made.access = world.id;
    made.position = 1 + i;
    made.id = following[i];
    made.losses = {0.5 + i};
    made.last = i == 1;
    world.tell(world.request, made);
  }
  const std::vector<double> losses{0.5, 1.5};
  BOOST_TEST(world.outcome().losses == losses, boost::test_tools::per_element());
  BOOST_TEST(world.outcome().finish == "scored");
  BOOST_TEST(*world.client.all<actors::answer_token>()[1].loss == 1.5);
}

BOOST_AUTO_TEST_CASE(a_text_that_is_scored_behind_a_prompt_begins_with_the_prompt_in_chunks) {
  one_request world;
  world.spec->score = true;
  world.spec->prompt = {5, 6, 7, 8};
  world.spec->scored_after = 3;
  world.run();
  const auto begin = world.server.all<actors::start_token>().back().state;
  const std::vector<std::int32_t> following{8};
  BOOST_TEST(begin.first + begin.ids.size() == 3u);
  BOOST_TEST(begin.ids.back() == 7);
  BOOST_TEST(begin.forced == following, boost::test_tools::per_element());
  BOOST_TEST(begin.terms.prompt_tokens == 3u);
  BOOST_TEST(begin.terms.max_new_tokens == 1u);
  BOOST_TEST(!begin.terms.decodes(2));
  BOOST_TEST(begin.terms.decodes(3));
}

BOOST_AUTO_TEST_CASE(a_monitor_hears_of_every_answer) {
  one_request world;
  world.with_monitor();
  world.run();
  world.advance_ns(900);
  world.report_chunk(0, 4);
  world.report(5, 30, false, 10);
  world.report(6, 31, true, 20);
  const auto report = *world.monitor.only<actors::request_report>().content;
  BOOST_TEST(report.request == number);
  BOOST_TEST(report.prompt_tokens == 5u);
  BOOST_TEST(report.new_tokens == 2u);
  BOOST_TEST(report.spent == 24);
  BOOST_TEST(report.done_ns - report.admitted_ns == 900);
}

BOOST_AUTO_TEST_CASE(cancelled_it_ends_at_once_and_gives_everything_back) {
  one_request world;
  world.run();
  world.report(5, 30);
  world.tell(world.request, actors::cancel_request{number});
  BOOST_TEST(world.outcome().finish == "cancelled");
  BOOST_TEST(!world.outcome().problem.has_value());
  BOOST_TEST(world.outcome().token_ids.size() == 1u);
  BOOST_TEST(world.released() == everybody, boost::test_tools::per_element());
  BOOST_TEST((world.phases().back() == request_phase::ended));
}

BOOST_AUTO_TEST_CASE(cancelled_before_it_began_it_has_nothing_to_give_back) {
  one_request world;
  world.spawn();
  world.tell(world.request, actors::cancel_request{number});
  BOOST_TEST(world.outcome().finish == "cancelled");
  BOOST_TEST(world.asks().empty());
}

BOOST_AUTO_TEST_CASE(cancelled_while_it_asks_it_takes_back_what_may_still_be_granted) {
  one_request world;
  world.spawn();
  world.resume();
  world.answer(1, 1, reserve_step::refused);
  world.tell(world.request, actors::cancel_request{number});
  const std::vector<std::uint32_t> others{0, 2};
  BOOST_TEST(world.released() == others, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_complete_answer_is_not_cancelled_any_more) {
  one_request world;
  world.run();
  world.report(5, 30, true);
  world.tell(world.request, actors::cancel_request{number});
  BOOST_TEST(world.client.count<actors::answer_end>() == 0u);
  world.report_chunk(0);
  BOOST_TEST(world.outcome().finish == "context");
}

BOOST_AUTO_TEST_CASE(its_deadline_fails_it_wherever_it_is) {
  for (const int stage : {0, 1, 2}) {
    one_request world;
    world.spec->deadline_ns = 1'500'000'000;
    world.spawn();
    if (stage > 0) world.resume();
    if (stage > 1) world.grant_all();
    world.tell(world.request, actors::request_deadline{});
    BOOST_TEST(failed_with(world.outcome(), errc::timed_out));
    BOOST_TEST(world.outcome().problem->message == "request 7: not answered within 1.5 s");
  }
}

BOOST_AUTO_TEST_CASE(at_its_deadline_a_complete_answer_stays_one) {
  one_request world;
  world.run();
  world.report(5, 30, true, 6);
  world.tell(world.request, actors::request_deadline{});
  BOOST_TEST(world.outcome().finish == "context");
  BOOST_TEST(world.outcome().spent == 6);
}

BOOST_AUTO_TEST_CASE(work_that_failed_ends_it_unless_it_was_for_another_attempt) {
  one_request world;
  world.run();
  wire::failure_report report;
  report.request = number;
  report.attempt = 1;
  report.code = static_cast<std::uint8_t>(errc::io);
  report.text = "no memory";
  world.tell(world.request, report);
  BOOST_TEST(world.client.heard() == 0u);
  report.attempt = 0;
  world.tell(world.request, report);
  BOOST_TEST(failed_with(world.outcome(), errc::io));
  BOOST_TEST(world.outcome().problem->message.find("no memory") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_complete_answer_does_not_fail_any_more) {
  one_request world;
  world.run();
  world.report(5, 30, true, 6);
  world.tell(world.request, wire::failure_report{number, 0, 2, 0, "too late"});
  BOOST_TEST(world.outcome().finish == "context");
  BOOST_TEST(!world.outcome().problem.has_value());
  BOOST_TEST(world.outcome().spent == 6);
}

BOOST_AUTO_TEST_CASE(what_would_never_fit_fails_before_it_asks_anybody) {
  one_request world;
  world.context->servers.servers[1].kv_bytes = 239;
  world.spawn();
  world.resume();
  BOOST_TEST(failed_with(world.outcome(), errc::infeasible));
  BOOST_TEST(world.outcome().problem->message.find("239") != std::string::npos);
  BOOST_TEST(world.asks().empty());
}

BOOST_AUTO_TEST_CASE(a_restart_fences_every_member_and_begins_on_what_is_known) {
  one_request world;
  world.run();
  world.report_chunk(0, 4);
  world.report(5, 30, false, 10);
  world.server.forget();
  world.tell(world.request, actors::restart_request{number});
  const auto fences = world.asks();
  BOOST_REQUIRE_EQUAL(fences.size(), 3u);
  for (const auto& each : fences) {
    BOOST_TEST((each.step == reserve_step::fence));
    BOOST_TEST(each.attempt == 1u);
    BOOST_TEST(each.ask == 2u);
  }
  BOOST_TEST((world.phases() == std::vector{request_phase::fencing}));
  world.report(6, 99, false, 0, 0);  // Of the attempt before.
  world.answer(0, 2, reserve_step::fenced, 1);
  world.answer(1, 2, reserve_step::fenced, 1);
  BOOST_TEST(world.server.count<actors::start_token>() == 0u);
  world.answer(2, 2, reserve_step::fenced, 1);
  const auto chunks = world.server.all<actors::start_token>();
  BOOST_REQUIRE_EQUAL(chunks.size(), 2u);
  const std::vector<std::int32_t> known{9, 30};
  const auto& last = chunks[1].state;
  BOOST_TEST(last.ids == known, boost::test_tools::per_element());
  BOOST_TEST(last.terms.attempt == 1u);
  BOOST_TEST(last.terms.given_tokens == 6u);
  BOOST_TEST(last.spent == 10);
  world.report(6, 31, true, 15, 1);
  wire::progress_report chunk;
  chunk.attempt = 1;
  chunk.access = world.id;
  world.tell(world.request, chunk);
  const std::vector<std::int32_t> ids{30, 31};
  BOOST_TEST(world.outcome().token_ids == ids, boost::test_tools::per_element());
  BOOST_TEST(world.outcome().attempts == 2u);
  BOOST_TEST(world.outcome().spent == 19);
}

BOOST_AUTO_TEST_CASE(its_own_budget_is_what_it_spends_and_outlasts_a_restart) {
  one_request world;
  auto plan = world.plan_of_epoch(1);
  plan->decoding.token_budget = 1'000'000'000;
  plan->decoding.quality = {.percent = 200, .units_per_nat = 1e9};
  world.view->placed = plan;
  world.spec->quality_percent = 1;
  const auto own = static_cast<loss_units>(planning::nats_of_percent(1) * 1e9);
  world.run();
  auto chunks = world.server.all<actors::start_token>();
  BOOST_REQUIRE_EQUAL(chunks.size(), 2u);
  BOOST_TEST(chunks[0].state.pool == 4 * own);
  BOOST_TEST(chunks[1].state.pool == 4 * own);
  // It begins again before anything is answered: what new tokens may spend is there as it was.
  world.server.forget();
  world.tell(world.request, actors::restart_request{number});
  for (const std::uint32_t m : {0u, 1u, 2u}) world.answer(m, 2, reserve_step::fenced, 1);
  chunks = world.server.all<actors::start_token>();
  BOOST_REQUIRE_EQUAL(chunks.size(), 2u);
  BOOST_TEST(chunks[0].state.pool == 0);
  BOOST_TEST(chunks[1].state.pool == 3 * own);
  BOOST_TEST(chunks[1].state.allowance == std::vector<loss_units>{0},
             boost::test_tools::per_element());
  world.tell(world.request, actors::cancel_request{number});
  BOOST_TEST(world.outcome().budget == 8 * own);
  BOOST_TEST(world.outcome().quality_percent.value() == 1);
}

BOOST_AUTO_TEST_CASE(a_report_of_more_than_is_left_gives_it_no_more) {
  for (const loss_units said : {loss_units{70}, loss_units{73}, unbounded_budget}) {
    one_request world;
    auto plan = world.plan_of_epoch(1);
    plan->decoding.token_budget = 10;
    world.view->placed = plan;
    world.run();
    wire::progress_report made;
    made.request = number;
    made.access = world.id;
    made.position = 5;
    made.id = 30;
    made.spent = 10;
    made.pool = said;
    world.tell(world.request, made);
    world.server.forget();
    world.tell(world.request, actors::restart_request{number});
    for (const std::uint32_t m : {0u, 1u, 2u}) world.answer(m, 2, reserve_step::fenced, 1);
    const auto chunks = world.server.all<actors::start_token>();
    BOOST_REQUIRE_EQUAL(chunks.size(), 2u);
    // 80 in all, of which 10 are spent.
    BOOST_TEST(chunks[1].state.pool == 70);
  }
}

BOOST_AUTO_TEST_CASE(a_budget_above_the_plans_counts_as_that_and_one_that_cannot_be_kept_fails_it) {
  one_request capped;
  auto plan = capped.plan_of_epoch(1);
  plan->decoding.token_budget = 10;
  plan->decoding.quality = {.percent = 2, .units_per_nat = 1e9};
  capped.view->placed = plan;
  capped.spec->quality_percent = 50;
  capped.run();
  BOOST_TEST(capped.server.all<actors::start_token>()[0].state.pool == 40);
  capped.tell(capped.request, actors::cancel_request{number});
  BOOST_TEST(capped.outcome().quality_percent.value() == 2);

  one_request refused;
  plan = refused.plan_of_epoch(1);
  plan->decoding.quality.is_kept = false;
  refused.view->placed = plan;
  refused.spec->quality_percent = 0;
  refused.spawn();
  refused.resume();
  BOOST_TEST(failed_with(refused.outcome(), errc::unsupported));
  BOOST_TEST(!refused.outcome().quality_percent.has_value());
  BOOST_TEST(refused.asks().empty());
}

BOOST_AUTO_TEST_CASE(a_restart_where_a_member_keeps_nothing_any_more_fails) {
  one_request world;
  world.run();
  world.tell(world.request, actors::restart_request{number});
  world.answer(0, 2, reserve_step::fenced, 1);
  world.answer(1, 2, reserve_step::refused, 1);
  BOOST_TEST(failed_with(world.outcome(), errc::timed_out));
}

BOOST_AUTO_TEST_CASE(a_restart_before_it_runs_changes_nothing) {
  one_request world;
  world.spawn();
  world.tell(world.request, actors::restart_request{number});
  world.resume();
  world.tell(world.request, actors::restart_request{number});
  BOOST_TEST(world.asks().size() == 3u);
  world.grant_all();
  BOOST_TEST(world.server.all<actors::start_token>().at(0).state.terms.attempt == 0u);
}

BOOST_AUTO_TEST_CASE(prompts_that_cannot_be_answered_are_refused_by_what_is_wrong) {
  const test::probe_server world;
  const auto says = [&](const char* words, auto change) {
    actors::request_spec spec;
    spec.prompt = {5, 6, 7};
    change(spec);
    const auto checked = actors::check_prompt(spec, *world.context);
    BOOST_REQUIRE(!checked.has_value());
    BOOST_TEST((checked.error().code == errc::out_of_range));
    BOOST_TEST(checked.error().message.find(words) != std::string::npos, checked.error().message);
  };
  says("no tokens", [](auto& spec) { spec.prompt.clear(); });
  says("access server 3 of 3", [](auto& spec) { spec.access = 3; });
  says("one token cannot be scored", [](auto& spec) {
    spec.prompt = {5};
    spec.score = true;
  });
  for (const std::uint32_t after : {0u, 3u, 4u})
    says("scored after", [&](auto& spec) {
      spec.score = true;
      spec.scored_after = after;
    });
  says("context is 64", [](auto& spec) { spec.prompt.assign(64, 5); });
  says("the 40 positions", [](auto& spec) { spec.max_new_tokens = 38; });
  says("temperature", [](auto& spec) {
    spec.max_new_tokens = 5;
    spec.temperature = -1;
  });
  says("vocabulary of 320", [](auto& spec) {
    spec.max_new_tokens = 5;
    spec.prompt[2] = 320;
  });
  for (const double percent : {-0.5, 100.5, 1e308, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()})
    says("quality budget", [&](auto& spec) {
      spec.max_new_tokens = 5;
      spec.quality_percent = percent;
    });
  actors::request_spec good;
  good.quality_percent = 100;
  good.prompt = {5, 6, 7};
  good.max_new_tokens = 37;
  BOOST_TEST(actors::check_prompt(good, *world.context).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
