#include "actors/cluster/expert_relay.hpp"

#include <boost/test/unit_test.hpp>
#include <set>

namespace ordermoe {

namespace {

using actors::expert_answer;
using actors::expert_ask;
using net::peer_id;

/// A relay of a node beside a, b and c, and what it said to whom.
struct world {
  std::set<peer_id> up{0, 1, 2};
  std::vector<std::pair<peer_id, expert_ask>> asked;
  std::vector<std::pair<peer_id, expert_answer>> answered;
  bool takes = true;
  actors::expert_relay relay{ways()};

  actors::expert_relay::ways ways() {
    return {{"a", "b", "c"},
            "self",
            [this](peer_id node) { return up.contains(node); },
            [this](peer_id node, const expert_ask& ask) {
              if (takes) asked.emplace_back(node, ask);
              return takes;
            },
            [this](peer_id client, const expert_answer& answer) {
              answered.emplace_back(client, answer);
            }};
  }
  void ask(peer_id client, std::uint64_t ref, std::set<peer_id> hosts = {0, 1, 2}) {
    expert_ask made;
    made.ref = ref;
    made.layer = 3;
    made.expert = 5;
    relay.pass_on(client, made, [&](peer_id node) { return hosts.contains(node); });
  }
  /// From a node, for the ask that it got as the n-th of all.
  void answer(peer_id from, std::size_t n) {
    expert_answer made;
    made.ref = asked[n].second.ref;
    made.rows = {1, 2};
    relay.take(from, made);
  }
  const expert_answer& last() const { return answered.back().second; }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(expert_relay)

BOOST_AUTO_TEST_CASE(an_answer_goes_to_the_client_that_asked_under_its_own_number) {
  world of;
  of.ask(10, 7, {1});
  of.ask(11, 7, {1});
  BOOST_TEST_REQUIRE(of.asked.size() == 2u);
  BOOST_TEST(of.asked[0].first == 1u);
  BOOST_TEST(of.asked[0].second.ref != of.asked[1].second.ref);
  of.answer(1, 1);
  BOOST_TEST_REQUIRE(of.answered.size() == 1u);
  BOOST_TEST(of.answered[0].first == 11u);
  BOOST_TEST(of.last().ref == 7u);
  BOOST_TEST(of.last().rows.size() == 2u);
  // Another's answer to it, or the same once more, is none.
  of.answer(0, 0);
  of.answer(1, 1);
  BOOST_TEST(of.answered.size() == 1u);
  of.answer(1, 0);
  BOOST_TEST(of.answered.back().first == 10u);
  BOOST_TEST(of.relay.n_waiting() == 0u);
}

BOOST_AUTO_TEST_CASE(the_node_with_the_fewest_asks_is_asked_among_those_that_are_up_and_have_it) {
  world of;
  of.up = {1, 2};
  for (std::uint64_t ref = 0; ref < 4; ++ref) of.ask(10, ref, {0, 1, 2});
  of.ask(10, 4, {2});
  of.ask(10, 5, {1, 2});
  std::vector<peer_id> to;
  for (const auto& each : of.asked) to.push_back(each.first);
  BOOST_TEST(to == (std::vector<peer_id>{1, 2, 1, 2, 2, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_nobody_can_run_is_refused_by_name) {
  world of;
  of.ask(10, 7, {});
  BOOST_TEST((of.last().code == errc::unsupported));
  BOOST_TEST(of.last().problem.find("expert 5 of layer 3") != std::string::npos);
  of.up = {1};
  of.ask(10, 8, {0, 2});
  BOOST_TEST(of.last().ref == 8u);
  BOOST_TEST((of.last().code == errc::io));
  BOOST_TEST(of.last().problem == "expert 5 of layer 3 is on a, c, not connected with self");
  // Whose connection ends while it is asked is not waited for.
  of.takes = false;
  of.ask(10, 9, {1});
  BOOST_TEST(of.last().problem == "expert 5 of layer 3 is on b, not connected with self");
  BOOST_TEST(of.relay.n_waiting() == 0u);
}

BOOST_AUTO_TEST_CASE(asks_at_a_node_that_is_lost_are_refused_and_no_others) {
  world of;
  of.ask(10, 7, {0});
  of.ask(11, 8, {1});
  of.ask(12, 9, {0});
  of.relay.lose(0);
  BOOST_TEST_REQUIRE(of.answered.size() == 2u);
  BOOST_TEST(of.answered[0].first == 10u);
  BOOST_TEST(of.answered[0].second.ref == 7u);
  BOOST_TEST(of.answered[1].first == 12u);
  BOOST_TEST(of.last().problem == "a is not connected any more");
  BOOST_TEST(of.relay.n_waiting() == 1u);
}

BOOST_AUTO_TEST_CASE(an_answer_for_a_client_that_is_gone_goes_nowhere) {
  world of;
  of.ask(10, 7, {0});
  of.ask(11, 8, {0});
  of.relay.forget(10);
  of.answer(0, 0);
  BOOST_TEST(of.answered.empty());
  of.answer(0, 1);
  BOOST_TEST(of.last().ref == 8u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
