#include "actors/cluster/clients.hpp"

#include <algorithm>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <thread>

#include "actors/caf_channel/caf_connections.hpp"
#include "test/actors/cluster/nodes.hpp"
#include "test/net/channel/forwarder.hpp"

namespace ordermoe {

namespace {

using actors::cluster_clients;
using actors::control_kind;
using net::session_event;
using test::bare_end;
using test::eventually;
using test::patience;
using test::request_of;
using test::says;

/// What one who asked was told.
class heard {
 public:
  actors::answer_sink sink() {
    return {[this](const actors::answer_token& token) {
              const std::lock_guard lock(mutex_);
              ids_.push_back(token.id);
            },
            [this](const actors::request_outcome& outcome) {
              const std::lock_guard lock(mutex_);
              ++n_ends_;
              last_ = outcome;
            }};
  }
  std::vector<std::int32_t> ids() const {
    const std::lock_guard lock(mutex_);
    return ids_;
  }
  int n_ends() const {
    const std::lock_guard lock(mutex_);
    return n_ends_;
  }
  bool has_ended() const {
    return eventually([&] { return n_ends() > 0; });
  }
  /// Of the end.
  std::vector<std::int32_t> all_ids() const {
    const std::lock_guard lock(mutex_);
    return last_.token_ids;
  }
  /// Empty: none.
  std::string problem() const {
    const std::lock_guard lock(mutex_);
    return last_.problem ? last_.problem->message : std::string();
  }
  errc code() const {
    const std::lock_guard lock(mutex_);
    return last_.problem ? last_.problem->code : errc::usage;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::int32_t> ids_;
  int n_ends_ = 0;
  actors::request_outcome last_;
};

/// Nodes s0 and s1 that say what a test makes them say, and who asks them.
struct two_nodes {
  explicit two_nodes(net::connections_maker channel = {}) : carried_by(std::move(channel)) {
    for (const std::size_t i : {0u, 1u}) start(i);
  }

  /// Another life of it, at the same address.
  void start(std::size_t i) {
    net::transport_options options;
    options.identity = authority.identity(name_of(i));
    options.listen = {{"127.0.0.1", ports[i]}};
    options.takes_clients = true;
    options.boot = ++boots[i];
    options.carried_by = carried_by;
    node[i] = std::make_unique<bare_end>();
    node[i]->start(std::move(options));
    ports[i] = node[i]->at().port;
  }
  static std::string name_of(std::size_t i) { return fmt::format("s{}", i); }
  net::address at(std::size_t i) const { return {"127.0.0.1", ports[i]}; }

  std::unique_ptr<cluster_clients> dial(std::vector<cluster_clients::place> places) const {
    auto made = cluster_clients::start(authority.identity("ann", net::role::operate),
                                       std::move(places), carried_by);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    return std::move(*made);
  }
  /// Both nodes, up.
  void connect() {
    asks = dial({{"s0", at(0)}, {"s1", at(1)}});
    await_up(2);
  }
  void await_up(std::size_t n) {
    BOOST_REQUIRE(eventually([&] { return asks->n_up() == n; }));
  }
  std::uint64_t ask(std::size_t i, heard& by) {
    return asks->submit(i, {0, {}, request_of(0)}, by.sink());
  }
  void await_frames(std::size_t i, std::size_t n) {
    BOOST_REQUIRE(eventually([&] { return node[i]->n_frames() == n; }));
  }
  void say(std::size_t i, control_kind kind, std::string text) {
    // Whoever asks may know that it is connected before the node has read who it is.
    BOOST_REQUIRE(eventually([&] {
      const auto whom = node[i]->latest_client();
      return whom && node[i]->is_up(*whom);
    }));
    BOOST_TEST(node[i]->send(*node[i]->latest_client(), net::lane::control,
                             static_cast<std::uint8_t>(kind), std::move(text)));
  }
  void say_token(std::size_t i, std::uint64_t ref, std::int32_t id) {
    actors::answer_token token;
    token.request = ref;
    token.id = id;
    say(i, control_kind::token, token_text(token));
  }
  void say_end(std::size_t i, std::uint64_t ref) {
    actors::request_outcome outcome;
    outcome.request = ref;
    outcome.finish = "length";
    say(i, control_kind::ended, ended_text(outcome));
  }

  void say_refusal(std::size_t i, std::uint64_t ref) {
    actors::request_outcome outcome;
    outcome.request = ref;
    outcome.finish = "failed";
    outcome.problem = error{errc::failed, "it is drained"};
    say(i, control_kind::ended, ended_text(outcome));
  }

  test::scratch_authority authority;
  net::connections_maker carried_by;
  std::uint16_t ports[2] = {};
  std::uint64_t boots[2] = {};
  std::unique_ptr<bare_end> node[2];
  std::unique_ptr<cluster_clients> asks;
};

void each_is_asked_and_answers_for_itself_alone(net::connections_maker carried_by) {
  two_nodes world(std::move(carried_by));
  world.connect();
  BOOST_TEST(world.asks->name(1) == "s1");
  heard first, second;
  const auto one = world.ask(0, first), other = world.ask(1, second);
  BOOST_TEST(one != other);
  for (const std::size_t i : {0u, 1u}) world.await_frames(i, 1);
  BOOST_TEST(actors::parse_submit(world.node[1]->frames()[0].text)->ref == other);
  // Of what another was asked.
  world.say_token(1, one, 7);
  world.say_end(1, one);
  world.say_token(1, other, 8);
  world.say_end(1, other);
  BOOST_TEST(second.has_ended());
  BOOST_TEST((second.ids() == std::vector<std::int32_t>{8}));
  // An end without the tokens, as one that is too long with them, has those that were told.
  BOOST_TEST((second.all_ids() == std::vector<std::int32_t>{8}));
  BOOST_TEST(second.problem() == "");
  BOOST_TEST(first.ids().empty());
  BOOST_TEST(first.n_ends() == 0);
  world.asks->cancel(one);
  world.await_frames(0, 2);
  BOOST_TEST(*actors::parse_cancel(world.node[0]->frames()[1].text) == one);
  world.say_token(0, one, 9);
  world.say_end(0, one);
  world.say_end(0, one);
  BOOST_REQUIRE(eventually([&] { return world.asks->outstanding() == 0; }));
  BOOST_TEST((first.ids() == std::vector<std::int32_t>{9}));
  BOOST_TEST(first.n_ends() == 1);
  BOOST_TEST(world.node[1]->n_frames() == 1u);
}

void one_that_goes_away_ends_its_own_by_name_and_comes_back(net::connections_maker carried_by) {
  two_nodes world(std::move(carried_by));
  world.connect();
  heard of_first[2], of_second;
  for (auto& each : of_first) world.ask(0, each);
  const auto other = world.ask(1, of_second);
  world.await_frames(0, 2);
  world.await_frames(1, 1);
  world.node[0]->stop();
  for (auto& each : of_first) {
    BOOST_TEST(each.has_ended());
    BOOST_TEST(says(each.problem(), "s0 went away: "), each.problem());
  }
  BOOST_TEST(!world.asks->is_up(0));
  BOOST_TEST(world.asks->is_up(1));
  BOOST_TEST(world.asks->problem(0) != "");
  BOOST_TEST(world.asks->problem(1) == "");
  heard later, elsewhere;
  world.ask(0, later);
  BOOST_TEST(later.has_ended());
  BOOST_TEST(later.problem() == "s0 is not connected");
  world.asks->submit_to_any({0, {}, request_of(1)}, elsewhere.sink());
  world.await_frames(1, 2);
  world.start(0);
  world.await_up(2);
  BOOST_TEST(world.asks->problem(0) == "");
  heard again;
  const auto ref = world.ask(0, again);
  world.await_frames(0, 1);
  world.say_end(0, ref);
  world.say_end(1, other);
  for (auto* each : {&again, &of_second}) {
    BOOST_TEST(each->has_ended());
    BOOST_TEST(each->problem() == "");
  }
  for (const auto& each : of_first) BOOST_TEST(each.n_ends() == 1);
}

/// Until nobody is reached for whom waiting helps; what is said of it.
std::string refusal(cluster_clients& asks) {
  const auto reached = asks.await_one(patience);
  BOOST_REQUIRE(!reached.has_value());
  BOOST_TEST((reached.error().code == errc::mismatch));
  return reached.error().message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(clients)

BOOST_AUTO_TEST_CASE(each_node_is_asked_and_answers_for_itself_alone) {
  each_is_asked_and_answers_for_itself_alone({});
}

BOOST_AUTO_TEST_CASE(over_caf_each_node_is_asked_and_answers_for_itself_alone) {
  each_is_asked_and_answers_for_itself_alone(actors::caf_connections);
}

BOOST_AUTO_TEST_CASE(a_node_that_goes_away_ends_its_own_requests_by_name_and_comes_back) {
  one_that_goes_away_ends_its_own_by_name_and_comes_back({});
}

BOOST_AUTO_TEST_CASE(over_caf_a_node_that_goes_away_ends_its_own_requests_and_comes_back) {
  one_that_goes_away_ends_its_own_by_name_and_comes_back(actors::caf_connections);
}

BOOST_AUTO_TEST_CASE(what_a_broken_connection_carried_ends_once_and_another_is_made) {
  two_nodes world;
  test::forwarder between;
  between.lead_to(world.at(0));
  world.asks = world.dial({{"s0", between.at()}, {"s1", world.at(1)}});
  world.await_up(2);
  heard lost, kept, order;
  const auto before = world.ask(0, lost);
  const auto other = world.ask(1, kept);
  int n_orders = 0;
  std::string told;
  world.asks->give(0, {"drain", "{}", "secret", false}, [&](const result<std::string>& reply) {
    ++n_orders;
    told = reply ? "" : reply.error().message;
  });
  world.await_frames(0, 2);
  world.await_frames(1, 1);
  const auto first_client = world.node[0]->latest_client();
  between.lead_nowhere();
  between.cut();
  BOOST_TEST(lost.has_ended());
  BOOST_TEST(says(lost.problem(), "s0 went away: "), lost.problem());
  BOOST_TEST(n_orders == 1);
  BOOST_TEST(says(told, "s0 went away: "), told);
  // Its session could still come back, but nothing that it carried would.
  heard meanwhile;
  world.ask(0, meanwhile);
  BOOST_TEST(meanwhile.has_ended());
  BOOST_TEST(meanwhile.problem() == "s0 is not connected");
  between.lead_to(world.at(0));
  BOOST_REQUIRE(eventually([&] { return world.node[0]->latest_client() != first_client; }));
  world.await_up(2);
  // What was asked before is nobody's any more.
  world.say_token(0, before, 1);
  world.say_end(0, before);
  heard again;
  const auto ref = world.ask(0, again);
  BOOST_TEST(ref > other);
  world.say_end(0, ref);
  world.say_end(1, other);
  BOOST_TEST(again.has_ended());
  BOOST_TEST(kept.has_ended());
  BOOST_TEST(kept.problem() == "");
  BOOST_TEST(lost.n_ends() == 1);
  BOOST_TEST(lost.ids().empty());
}

BOOST_AUTO_TEST_CASE(a_node_that_makes_no_sense_ends_its_own_requests_alone) {
  two_nodes world;
  world.connect();
  heard of_first, of_second;
  world.ask(0, of_first);
  const auto other = world.ask(1, of_second);
  world.await_frames(0, 1);
  world.say(0, control_kind::token, "{}");
  BOOST_TEST(of_first.has_ended());
  BOOST_TEST(says(of_first.problem(), "s0 went away: it says what makes no sense"),
             of_first.problem());
  world.await_frames(1, 1);
  world.say_end(1, other);
  BOOST_TEST(of_second.has_ended());
  BOOST_TEST(of_second.problem() == "");
}

BOOST_AUTO_TEST_CASE(who_is_another_node_or_revoked_is_refused_and_why_is_known) {
  two_nodes world;
  auto asks = world.dial({{"s1", world.at(0)}});
  const auto another = refusal(*asks);
  BOOST_TEST(says(another, "/node/s0, expected node s1"), another);
  BOOST_TEST(says(asks->problem(0), "expected node s1"), asks->problem(0));
  world.authority.revoke("s0");
  asks = world.dial({{"s0", world.at(0)}, {"s1", world.at(1)}});
  BOOST_TEST(asks->await_one(patience).has_value());
  BOOST_REQUIRE(eventually([&] { return asks->problem(0) != ""; }));
  BOOST_TEST(says(asks->problem(0), "which is revoked"), asks->problem(0));
  BOOST_TEST(asks->n_up() == 1u);
  heard told;
  asks->submit(0, {0, {}, request_of(0)}, told.sink());
  BOOST_TEST(told.has_ended());
  BOOST_TEST(told.problem() == "s0 is not connected");
}

BOOST_AUTO_TEST_CASE(a_node_that_is_revoked_later_is_cut_off_and_asked_nothing_more) {
  two_nodes world;
  world.connect();
  heard before, after[2];
  world.ask(0, before);
  world.await_frames(0, 1);
  world.authority.revoke("s0");
  world.await_up(1);
  BOOST_TEST(!world.asks->is_up(0));
  BOOST_TEST(before.has_ended());
  BOOST_TEST(says(before.problem(), "s0 went away: "), before.problem());
  BOOST_TEST(says(world.asks->problem(0), "revoked"), world.asks->problem(0));
  for (auto& each : after) world.asks->submit_to_any({0, {}, request_of(0)}, each.sink());
  world.await_frames(1, 2);
  BOOST_TEST(world.node[0]->n_frames() == 1u);
}

BOOST_AUTO_TEST_CASE(who_asks_takes_up_a_certificate_that_was_renewed) {
  two_nodes world;
  world.connect();
  const auto folder = world.authority.identity("s0")->files().certificate.parent_path();
  BOOST_REQUIRE(net::renew(folder, "ann", {}).has_value());
  BOOST_REQUIRE(net::revoke(folder, "ann", net::revoke_which::all_but_latest).has_value());
  // They let in none any more with the one before.
  for (const std::size_t i : {0u, 1u}) world.start(i);
  world.await_up(2);
  heard told;
  const auto ref = world.ask(0, told);
  world.await_frames(0, 1);
  world.say_end(0, ref);
  BOOST_TEST(told.has_ended());
  BOOST_TEST(told.problem() == "");
}

BOOST_AUTO_TEST_CASE(a_node_that_does_not_answer_keeps_no_other_waiting) {
  two_nodes world;
  test::forwarder silent;
  silent.swallow(true);
  const auto asks = world.dial({{"s0", silent.at()}, {"s1", world.at(1)}});
  BOOST_TEST(asks->await_one(patience).has_value());
  BOOST_TEST(asks->is_up(1));
  // Its time is not over.
  BOOST_TEST(asks->problem(0) == "");
  const auto nobody = world.dial({{"s0", silent.at()}});
  const auto reached = nobody->await_one(std::chrono::milliseconds(20));
  BOOST_REQUIRE(!reached.has_value());
  BOOST_TEST((reached.error().code == errc::timed_out));
  BOOST_TEST(says(reached.error().message, net::to_string(silent.at()) + ": no answer"));
}

BOOST_AUTO_TEST_CASE(where_none_can_be_reached_it_says_of_the_last_why) {
  two_nodes world;
  for (auto& each : world.node) each->stop();
  const auto asks = world.dial({{"s0", world.at(0)}, {"s1", world.at(1)}});
  for (const std::size_t i : {0u, 1u})
    BOOST_REQUIRE(eventually([&] { return asks->problem(i) != ""; }));
  const auto reached = asks->await_one(std::chrono::milliseconds(20));
  BOOST_REQUIRE(!reached.has_value());
  BOOST_TEST((reached.error().code == errc::io));
  BOOST_TEST(reached.error().message ==
             "cannot reach a node at " + net::to_string(world.at(1)) + ": Connection refused");
  heard told;
  asks->submit_to_any({0, {}, request_of(0)}, told.sink());
  BOOST_TEST(told.has_ended());
  BOOST_TEST(told.problem() == "no node of the cluster is connected");
}

BOOST_AUTO_TEST_CASE(any_is_the_one_with_the_fewest_unanswered) {
  two_nodes world;
  world.connect();
  heard told[5];
  std::vector<std::uint64_t> refs;
  for (auto i : {0, 1, 2, 3})
    refs.push_back(world.asks->submit_to_any({0, {}, request_of(0)}, told[i].sink()));
  for (const std::size_t i : {0u, 1u}) world.await_frames(i, 2);
  world.say_end(1, refs[1]);
  BOOST_REQUIRE(eventually([&] { return world.asks->outstanding() == 3; }));
  world.asks->submit_to_any({0, {}, request_of(0)}, told[4].sink());
  world.await_frames(1, 3);
}

BOOST_AUTO_TEST_CASE(a_node_that_refuses_is_passed_over_and_another_is_asked) {
  two_nodes world;
  world.connect();
  heard first, second, third, begun;
  const auto ref = world.asks->submit_to_any({0, {}, request_of(0)}, first.sink());
  world.await_frames(0, 1);
  world.say_refusal(0, ref);
  world.await_frames(1, 1);
  BOOST_TEST(actors::parse_submit(world.node[1]->frames()[0].text)->ref == ref);
  BOOST_TEST(first.n_ends() == 0);
  // Although it has the fewest.
  const auto next = world.asks->submit_to_any({0, {}, request_of(0)}, second.sink());
  world.await_frames(1, 2);
  world.say_end(1, ref);
  world.say_end(1, next);
  BOOST_TEST(first.has_ended());
  BOOST_TEST(second.has_ended());
  BOOST_TEST(first.problem() == "");
  // Nobody takes it: later somebody may.
  const auto nobody = world.asks->submit_to_any({0, {}, request_of(0)}, third.sink());
  world.await_frames(1, 3);
  world.say_refusal(1, nobody);
  world.await_frames(0, 2);
  world.say_refusal(0, nobody);
  BOOST_TEST(third.has_ended());
  BOOST_TEST(third.problem() == "it is drained");
  BOOST_TEST((third.code() == errc::io));
  // What has begun is not begun elsewhere, and who asks one node asks that one.
  const auto some = world.asks->submit_to_any({0, {}, request_of(0)}, begun.sink());
  BOOST_REQUIRE(
      eventually([&] { return world.node[0]->n_frames() + world.node[1]->n_frames() == 6; }));
  const std::size_t at = world.node[0]->n_frames() == 3 ? 0 : 1;
  world.say_token(at, some, 7);
  world.say_refusal(at, some);
  BOOST_TEST(begun.has_ended());
  BOOST_TEST((begun.code() == errc::failed));
  // Nor what was cancelled.
  heard cancelled;
  const auto gone = world.asks->submit_to_any({0, {}, request_of(0)}, cancelled.sink());
  BOOST_REQUIRE(
      eventually([&] { return world.node[0]->n_frames() + world.node[1]->n_frames() == 7; }));
  const std::size_t last = world.node[at]->n_frames() == 3 ? 1 - at : at;
  world.asks->cancel(gone);
  world.say_refusal(last, gone);
  BOOST_TEST(cancelled.has_ended());
  BOOST_TEST((cancelled.code() == errc::failed));
  heard alone;
  const auto there = world.ask(0, alone);
  world.say_refusal(0, there);
  BOOST_TEST(alone.has_ended());
  BOOST_TEST((alone.code() == errc::failed));
}

BOOST_AUTO_TEST_CASE(what_makes_no_sense_is_not_sent_and_ends_nothing_else) {
  two_nodes world;
  world.connect();
  heard good;
  const auto ref = world.ask(0, good);
  world.await_frames(0, 1);
  const auto refused = [&](const std::function<void(actors::remote_request&)>& change) {
    actors::remote_request wanted{0, {}, request_of(0)};
    change(wanted);
    heard told;
    world.asks->submit(0, std::move(wanted), told.sink());
    BOOST_TEST(told.has_ended());
    return told.problem();
  };
  BOOST_TEST(says(refused([](auto& wanted) { wanted.spec.temperature = -1; }), "temperature"));
  BOOST_TEST(
      says(refused([](auto& wanted) { wanted.spec.temperature = std::nan(""); }), "temperature"));
  BOOST_TEST(says(refused([](auto& wanted) { wanted.spec.max_new_tokens = 0; }), "max_new_tokens"));
  BOOST_TEST(says(refused([](auto& wanted) { wanted.spec.deadline_ns = -3; }), "deadline_ns"));
  BOOST_TEST(says(refused([](auto& wanted) { wanted.spec.prompt = {-1}; }), "prompt"));
  BOOST_TEST(says(refused([](auto& wanted) {
                    wanted.spec.prompt.clear();
                    wanted.text.assign(2u << 20, 'x');
                  }),
                  "bytes, expected at most 1048576"));
  BOOST_TEST(world.asks->is_up(0));
  BOOST_TEST(world.node[0]->n_frames() == 1u);
  world.say_end(0, ref);
  BOOST_TEST(good.has_ended());
  BOOST_TEST(good.problem() == "");
}

BOOST_AUTO_TEST_CASE(never_are_two_told_at_a_time) {
  two_nodes world;
  world.connect();
  std::atomic<int> inside = 0, most = 0, n_ends = 0;
  const auto visit = [&] {
    most = std::max(most.load(), ++inside);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    --inside;
  };
  const actors::answer_sink sink{[&](const actors::answer_token&) { visit(); },
                                 [&](const actors::request_outcome&) {
                                   visit();
                                   ++n_ends;
                                 }};
  const auto ref = world.asks->submit(0, {0, {}, request_of(0)}, sink);
  world.await_frames(0, 1);
  constexpr int n_refused = 30;
  for (int i = 0; i < n_refused; ++i) {
    world.say_token(0, ref, 1);
    actors::remote_request senseless{0, {}, request_of(0)};
    senseless.spec.max_new_tokens = 0;
    world.asks->submit(0, std::move(senseless), sink);
  }
  world.say_end(0, ref);
  BOOST_TEST(eventually([&] { return n_ends == n_refused + 1; }));
  BOOST_TEST(most == 1);
}

BOOST_AUTO_TEST_CASE(who_waits_for_a_reply_can_be_interrupted) {
  two_nodes world;
  world.connect();
  const auto begin = std::chrono::steady_clock::now();
  const auto order = [&] {
    const auto told = world.asks->order(0, "plan.propose", "{}", false, std::chrono::minutes(10));
    return told ? errc::usage : told.error().code;
  };
  auto waits = std::async(std::launch::async, order);
  world.await_frames(0, 1);
  world.asks->interrupt();
  BOOST_TEST((waits.get() == errc::interrupted));
  BOOST_TEST((order() == errc::interrupted));
  const auto status = world.asks->status(1, std::chrono::minutes(10));
  BOOST_TEST((!status && status.error().code == errc::interrupted));
  BOOST_TEST((std::chrono::steady_clock::now() - begin < std::chrono::minutes(5)));
}

BOOST_AUTO_TEST_CASE(whoever_is_told_may_ask_on) {
  two_nodes world;
  world.connect();
  heard last;
  std::uint64_t second = 0;
  auto& asks = *world.asks;
  world.asks->submit(0, {0, {}, request_of(0)},
                     {[&](const actors::answer_token& token) { asks.cancel(token.request); },
                      [&](const actors::request_outcome&) {
                        second = asks.submit_to_any({0, {}, request_of(1)}, last.sink());
                        BOOST_TEST(asks.n_up() == 1u);
                        asks.give(1, {"drain", "{}", "secret", false}, [](const auto&) {});
                      }});
  world.await_frames(0, 1);
  world.say_token(0, 0, 1);
  world.await_frames(0, 2);
  world.node[0]->stop();
  world.await_frames(1, 2);
  world.say_end(1, second);
  BOOST_TEST(last.has_ended());
  BOOST_TEST(last.problem() == "");
}

BOOST_AUTO_TEST_CASE(how_all_are_is_asked_at_once_and_of_who_is_away_it_says_why) {
  two_nodes world;
  world.connect();
  std::thread answers([&] {
    // The second answers before the first.
    for (const std::size_t i : {1u, 0u})
      if (eventually([&] { return world.node[i]->n_frames() == 1; }))
        world.say(i, control_kind::status, fmt::format(R"({{"this_is":{}}})", i));
  });
  const auto all = world.asks->statuses(patience);
  answers.join();
  BOOST_REQUIRE(all.size() == 2u);
  BOOST_TEST((all[0].has_value() && *all[0] == R"({"this_is":0})"));
  BOOST_TEST((all[1].has_value() && *all[1] == R"({"this_is":1})"));
  world.node[0]->stop();
  world.await_up(1);
  BOOST_REQUIRE(eventually([&] { return says(world.asks->problem(0), "Connection refused"); }));
  const auto some = world.asks->statuses(std::chrono::milliseconds(20));
  BOOST_REQUIRE((!some[0].has_value() && !some[1].has_value()));
  BOOST_TEST(some[0].error().message == "s0 is not connected: Connection refused");
  BOOST_TEST((some[1].error().code == errc::timed_out));
}

BOOST_AUTO_TEST_CASE(what_comes_together_is_told_within_one_turn) {
  two_nodes world;
  world.connect();
  int depth = 0, n_turns = 0, n_told = 0, n_outside = 0;
  world.asks->tell_in({[&] {
                         ++depth;
                         ++n_turns;
                       },
                       [&] { --depth; }});
  const auto note = [&] {
    ++n_told;
    n_outside += depth != 1;
  };
  const auto ref = world.asks->submit(0, {0, {}, request_of(0)},
                                      {[&](const auto&) { note(); }, [&](const auto&) { note(); }});
  world.await_frames(0, 1);
  for (const auto i : {0, 1, 2}) world.say_token(0, ref, i);
  world.say_end(0, ref);
  BOOST_REQUIRE(eventually([&] { return world.asks->outstanding() == 0; }));
  world.asks->stop();
  BOOST_TEST(n_told == 4);
  BOOST_TEST(n_outside == 0);
  BOOST_TEST(depth == 0);
  BOOST_TEST(n_turns >= 1);
}

BOOST_AUTO_TEST_CASE(once_it_has_stopped_nobody_is_told_anything) {
  two_nodes world;
  world.connect();
  heard told[2];
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> seen = held;
  for (const std::size_t i : {0u, 1u}) {
    auto sink = told[i].sink();
    sink.on_end = [end = std::move(sink.on_end), held](const auto& outcome) { end(outcome); };
    world.asks->submit(i, {0, {}, request_of(0)}, std::move(sink));
  }
  held.reset();
  for (const std::size_t i : {0u, 1u}) world.await_frames(i, 1);
  world.asks->stop();
  // What they were told by is gone with them.
  BOOST_TEST(seen.expired());
  BOOST_TEST(world.asks->n_up() == 0u);
  for (const std::size_t i : {0u, 1u}) {
    BOOST_TEST(told[i].n_ends() == 0);
    BOOST_TEST(
        eventually([&] { return !world.node[i]->events(session_event::what::down).empty(); }));
  }
  heard later;
  world.ask(0, later);
  BOOST_TEST(later.has_ended());
  BOOST_TEST(later.problem() == "s0 is not connected");
  world.asks->stop();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
