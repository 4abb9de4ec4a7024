#include "actors/cluster/client.hpp"

#include <boost/test/unit_test.hpp>

#include "test/actors/cluster/nodes.hpp"

namespace ordermoe {

namespace {

using actors::cluster_client;
using actors::control_kind;
using net::session_event;
using test::asked_requests;
using test::bare_end;
using test::eventually;
using test::request_of;
using test::says;

/// A client of something that a test makes say what it likes.
struct one_client {
  test::scratch_authority authority;
  bare_end node;
  std::unique_ptr<cluster_client> client;

  one_client() {
    listen({"127.0.0.1", 0});
    client = connect();
    BOOST_REQUIRE(eventually([&] { return !node.events(session_event::what::up).empty(); }));
  }
  void listen(const net::address& at) {
    net::transport_options options;
    options.identity = authority.identity("s0");
    options.listen = {at};
    options.takes_clients = true;
    node.start(std::move(options));
  }
  std::unique_ptr<cluster_client> connect() const {
    auto made = cluster_client::connect(authority.identity("ann", net::role::operate), node.at(),
                                        test::patience);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return std::move(*made);
  }
  /// Once it was asked so often.
  void await_frames(std::size_t n) {
    BOOST_REQUIRE(eventually([&] { return node.frames().size() == n; }));
  }
  void answer(control_kind kind, std::string text) {
    BOOST_REQUIRE(node.client().has_value());
    BOOST_TEST(node.send(*node.client(), net::lane::control, static_cast<std::uint8_t>(kind),
                         std::move(text)));
  }
};

actors::answer_token token_of(std::uint64_t ref, std::uint32_t index, std::int32_t id) {
  actors::answer_token made;
  made.request = ref;
  made.index = index;
  made.id = id;
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(client)

BOOST_AUTO_TEST_CASE(what_it_asks_is_sent_and_what_is_answered_goes_to_whoever_asked) {
  one_client world;
  BOOST_TEST(world.client->node_name() == "s0");
  asked_requests asked(*world.client);
  asked.ask(request_of(0));
  asked.ask(request_of(1), "nobody reads this");
  world.await_frames(2);
  const auto frames = world.node.frames();
  std::vector<std::uint64_t> refs;
  for (const std::uint32_t i : {0u, 1u}) {
    BOOST_TEST((frames[i].header.of == net::lane::control));
    BOOST_TEST(frames[i].header.kind == static_cast<std::uint8_t>(control_kind::submit));
    const auto wanted = actors::parse_submit(frames[i].text);
    BOOST_REQUIRE(wanted.has_value());
    BOOST_TEST(wanted->spec.prompt == request_of(i).prompt, boost::test_tools::per_element());
    BOOST_TEST(wanted->tells_tokens);
    refs.push_back(wanted->ref);
  }
  world.answer(control_kind::token, token_text(token_of(refs[1], 0, 50)));
  world.answer(control_kind::token, token_text(token_of(refs[0], 0, 40)));
  world.answer(control_kind::token, token_text(token_of(99, 0, 1)));  // Nobody's.
  world.answer(control_kind::token, token_text(token_of(refs[1], 1, 51)));
  actors::request_outcome outcome;
  outcome.request = refs[1];
  outcome.token_ids = {50, 51};
  outcome.finish = "length";
  world.answer(control_kind::ended, ended_text(outcome));
  BOOST_REQUIRE(eventually([&] { return world.client->outstanding() == 1; }));
  BOOST_TEST(asked.all()[1].ended->finish == "length");
  BOOST_TEST((asked.all()[1].streamed == std::vector<std::int32_t>{50, 51}));
  world.answer(control_kind::ended, ended_text(outcome));  // The same again.
  asked.cancel(0);
  world.await_frames(3);
  BOOST_TEST(*actors::parse_cancel(world.node.frames()[2].text) == refs[0]);
  outcome.request = refs[0];
  outcome.token_ids = {40};
  outcome.finish = "cancelled";
  world.answer(control_kind::ended, ended_text(outcome));
  asked.await_all();
  BOOST_TEST(asked.all()[0].ended->finish == "cancelled");
}

BOOST_AUTO_TEST_CASE(tokens_that_nobody_waits_for_are_not_asked_for) {
  one_client world;
  world.client->submit({0, {}, request_of(0)}, {});
  world.await_frames(1);
  const auto wanted = actors::parse_submit(world.node.frames()[0].text);
  BOOST_REQUIRE(wanted.has_value());
  BOOST_TEST(!wanted->tells_tokens);
}

BOOST_AUTO_TEST_CASE(a_node_that_makes_no_sense_ends_every_answer_with_what_it_said) {
  for (const auto kind : {control_kind::token, control_kind::ended}) {
    one_client world;
    asked_requests asked(*world.client);
    asked.ask(request_of(0));
    asked.ask(request_of(1));
    world.await_frames(2);
    world.answer(kind, "{\"ref\": 0}");
    asked.await_all();
    BOOST_TEST(asked.n_failed() == 2u);
    for (const auto& each : asked.all()) {
      const auto& why = *each.ended->problem;
      BOOST_TEST((why.code == errc::io));
      BOOST_TEST(says(why.message, "s0 went away: it says what makes no sense"), why.message);
      BOOST_TEST(says(why.message, kind == control_kind::token ? "index" : "access"), why.message);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_budget_that_is_no_percentage_fails_its_request_alone_and_is_not_sent) {
  one_client world;
  asked_requests asked(*world.client);
  asked.ask(request_of(0));
  for (const double percent : {std::numeric_limits<double>::quiet_NaN(), -1.0, 1e308}) {
    auto wanted = request_of(1);
    wanted.quality_percent = percent;
    asked.ask(wanted);
  }
  auto last = request_of(2);
  last.quality_percent = 0.25;
  asked.ask(last);
  world.await_frames(2);
  BOOST_REQUIRE(eventually([&] { return world.client->outstanding() == 2; }));
  for (const std::size_t i : {1u, 2u, 3u}) {
    BOOST_REQUIRE(asked.all()[i].ended && asked.all()[i].ended->problem);
    BOOST_TEST((asked.all()[i].ended->problem->code == errc::out_of_range));
  }
  BOOST_TEST(world.client->outstanding() == 2u);
  BOOST_TEST(actors::parse_submit(world.node.frames()[1].text)->spec.quality_percent.value() ==
             0.25);
}

BOOST_AUTO_TEST_CASE(words_that_a_later_node_may_know_are_passed_over) {
  one_client world;
  asked_requests asked(*world.client);
  asked.ask(request_of(0));
  world.await_frames(1);
  for (const std::uint8_t kind : {0, 64, 200})
    BOOST_TEST(world.node.send(*world.node.client(), net::lane::control, kind, "?"));
  actors::request_outcome outcome;
  outcome.finish = "length";
  world.answer(control_kind::ended, ended_text(outcome));
  asked.await_all();
  BOOST_TEST(asked.n_failed() == 0u);
}

BOOST_AUTO_TEST_CASE(what_it_has_heard_is_taken_off_the_nodes_credit) {
  one_client world;
  constexpr std::size_t much = 100'000;
  world.answer(control_kind::status, std::string(much, '.'));
  const auto client = *world.node.client();
  BOOST_TEST(eventually([&] { return world.node.is_done_with(client, net::lane::control, much); }));
}

BOOST_AUTO_TEST_CASE(a_status_is_the_nodes_own_text_and_is_not_waited_for_in_vain) {
  one_client world;
  const auto none = world.client->status(std::chrono::milliseconds(20));
  BOOST_REQUIRE(!none.has_value());
  BOOST_TEST((none.error().code == errc::timed_out));
  BOOST_TEST(says(none.error().message, "s0 did not say how it is"));
  std::thread answers([&] {
    if (eventually([&] { return world.node.frames().size() == 2; }))
      world.answer(control_kind::status, R"({"is":"well"})");
  });
  const auto status = world.client->status(test::patience);
  answers.join();
  BOOST_REQUIRE_MESSAGE(status, (status ? "" : status.error().message));
  BOOST_TEST(*status == R"({"is":"well"})");
  // What was said before answers nothing that is asked now.
  BOOST_TEST(!world.client->status(std::chrono::milliseconds(20)).has_value());
  world.node.stop();
  BOOST_REQUIRE(eventually([&] {
    const auto gone = world.client->status(test::patience);
    return !gone && gone.error().code == errc::io;
  }));
}

BOOST_AUTO_TEST_CASE(when_its_node_goes_away_every_answer_ends_and_so_do_later_ones) {
  one_client world;
  asked_requests asked(*world.client);
  for (std::uint32_t i = 0; i < 3; ++i) asked.ask(request_of(i));
  world.await_frames(3);
  world.node.stop();
  asked.await_all();
  BOOST_TEST(asked.n_failed() == 3u);
  for (const auto& each : asked.all())
    BOOST_TEST(says(each.ended->problem->message, "s0 went away: "));
  asked_requests later(*world.client);
  later.ask(request_of(0));
  later.await_all();
  BOOST_TEST(later.all()[0].ended->problem->message == "s0 is not connected");
}

BOOST_AUTO_TEST_CASE(a_wait_ends_when_it_is_done_or_paused) {
  one_client world;
  BOOST_TEST(world.client->wait([] { return true; }));
  BOOST_TEST(!world.client->wait([] { return false; }, [] { return true; }));
}

BOOST_AUTO_TEST_CASE(where_no_node_is_it_says_what_it_tried_and_why_not) {
  one_client world;
  const auto at = world.node.at();
  const auto reason = [&](const std::shared_ptr<const net::tls_identity>& identity,
                          std::chrono::milliseconds longest, errc code) {
    const auto refused = cluster_client::connect(identity, at, longest);
    BOOST_REQUIRE(!refused.has_value());
    BOOST_CHECK_MESSAGE(refused.error().code == code, refused.error().message);
    const auto tried = "cannot reach a node at " + net::to_string(at) + ": ";
    BOOST_TEST(refused.error().message.starts_with(tried));
    return refused.error().message.substr(tried.size());
  };
  // Of another authority: no waiting helps.
  const test::scratch_authority other;
  const auto foreign =
      reason(other.identity("ann", net::role::admin), test::patience, errc::mismatch);
  BOOST_TEST(foreign.starts_with("TLS: the peer's certificate"), foreign);
  world.client.reset();
  world.node.stop();
  const auto nobody = reason(world.authority.identity("ann"), std::chrono::seconds(3), errc::io);
  BOOST_TEST(nobody == "Connection refused");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
