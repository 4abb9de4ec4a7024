#include "planning/serving/plan_change.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <optional>
#include <set>

#include "config/random.hpp"
#include "test/planning/serving/changing_servers.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

using namespace changing_servers;

BOOST_AUTO_TEST_SUITE(plan_change)

BOOST_AUTO_TEST_CASE(who_is_no_member_is_not_waited_for_and_a_member_has_to_be_there) {
  plan_changes rules(0, 3);
  rules.lost(1);
  rules.lost(2);
  rules.set_member(2, false);
  const auto refused = rules.begin(1, "plan", false);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("server 1 is not connected") != std::string::npos);
  rules.found(1);
  // Late word of a session that is over.
  BOOST_TEST(rules.found(2).empty());
  const auto todo = rules.begin(1, "plan", false);
  BOOST_REQUIRE(todo.has_value());
  std::set<std::uint32_t> told;
  for (const auto& each : *todo)
    if (each.kind == change_action::what::tell) told.insert(each.server);
  BOOST_TEST(told == std::set<std::uint32_t>{1}, boost::test_tools::per_element());
  plan_changes later(0, 3);
  later.lost(2);
  later.set_member(2, false);
  later.set_member(2, true);
  BOOST_TEST(!later.begin(1, "plan", false).has_value());
}

BOOST_AUTO_TEST_CASE(a_change_is_given_up_where_members_join_or_leave_meanwhile) {
  const auto outcome = [](const std::vector<change_action>& todo) {
    const auto said = std::ranges::find(todo, change_action::what::finished, &change_action::kind);
    return said == todo.end() ? std::string("none") : said->text;
  };
  for (const bool joins : {true, false}) {
    plan_changes rules(0, 3);
    if (joins) rules.set_member(2, false);
    BOOST_REQUIRE(rules.begin(1, "plan", false).has_value());
    BOOST_TEST(outcome(rules.set_member(2, joins)) ==
               (joins ? "server 2 became a member meanwhile" : "server 2 was removed meanwhile"));
    // And it is over.
    BOOST_TEST(outcome(rules.set_member(2, !joins)) == "none");
  }
}

BOOST_AUTO_TEST_CASE(who_is_not_connected_to_a_member_does_not_prepare) {
  plan_changes rules(1, 3);
  rules.lost(2);
  const auto refused = rules.hear(0, {1, change_message::what::prepare, "plan"});
  BOOST_REQUIRE_EQUAL(refused.size(), 1u);
  BOOST_TEST((refused[0].message.kind == change_message::what::failed));
  BOOST_TEST(refused[0].message.text == "server 2 is not connected to it");
  rules.set_member(2, false);
  const auto todo = rules.hear(0, {2, change_message::what::prepare, "plan"});
  BOOST_REQUIRE_EQUAL(todo.size(), 1u);
  BOOST_TEST((todo[0].step == change_step::prepare));
}

BOOST_AUTO_TEST_CASE(what_a_server_that_was_removed_had_sent_begins_nothing) {
  plan_changes rules(0, 3);
  rules.set_member(2, false);
  BOOST_TEST(rules.hear(2, {1, change_message::what::prepare, "plan"}).empty());
  BOOST_TEST((rules.phase() == change_phase::none));
  BOOST_TEST(!rules.is_under_way());
  BOOST_TEST(rules.begin(2, "plan", false).has_value());
  // Nor does it end what the others do.
  BOOST_TEST(rules.hear(2, {2, change_message::what::failed, "no"}).empty());
  BOOST_TEST(rules.leads());
}

BOOST_AUTO_TEST_CASE(who_loses_a_member_that_the_leader_still_sees_ends_the_change) {
  plan_changes rules(1, 3);
  rules.hear(0, {1, change_message::what::prepare, "plan"});
  BOOST_TEST(rules.step_done(1, {}).size() == 1u);
  const auto todo = rules.lost(2);
  BOOST_REQUIRE_EQUAL(todo.size(), 1u);
  BOOST_TEST(todo[0].server == 0u);
  BOOST_TEST((todo[0].message.kind == change_message::what::failed));
  BOOST_TEST(todo[0].message.text == "server 2 was lost to it");
  // By then nothing was committed.
  rules.found(2);
  const auto over = rules.hear(0, {1, change_message::what::abort, "server 1: lost"});
  BOOST_TEST(std::ranges::any_of(over, [](const change_action& each) {
    return each.kind == change_action::what::step && each.step == change_step::abort;
  }));
}

BOOST_AUTO_TEST_CASE(all_go_by_the_new_plan_where_nothing_happens) {
  for (const bool holds : {false, true}) {
    world four(4, 1);
    four.allow_requests(40);
    BOOST_REQUIRE(four.begin(2, 7, holds));
    BOOST_TEST(!four.begin(2, 8));
    run(four);
    check_agreement(four, 1);
    for (const auto& each : four.servers()) BOOST_TEST(each.plan == 7u);
    BOOST_TEST(four.servers()[2].outcomes.at(7).empty());
    // And again, led by another.
    BOOST_REQUIRE(four.begin(0, 9, holds));
    run(four);
    for (const auto& each : four.servers()) BOOST_TEST(each.plan == 9u);
  }
}

BOOST_AUTO_TEST_CASE(one_that_cannot_ends_it_for_all_and_is_named) {
  world three(3, 1);
  BOOST_REQUIRE(three.begin(0, 5));
  run(three, 1);
  check_agreement(three, 1);
  BOOST_TEST(three.servers()[1].plan == 0u);
  BOOST_TEST(three.servers()[0].outcomes.at(5).find("no memory") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(nothing_begins_while_a_server_is_lost_or_a_change_is_under_way) {
  world three(3, 1);
  three.kill(1);
  run(three);
  const auto refused = three.servers()[0].rules.begin(1, "plan", false);
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message.find("server 1") != std::string::npos);
  three.servers()[0].rules.found(1);
  BOOST_TEST(bool(three.servers()[0].rules.begin(1, "plan", false)));
}

BOOST_AUTO_TEST_CASE(it_can_be_given_up_until_it_is_committed) {
  world two(2, 1);
  std::vector<change_action> todo;
  BOOST_TEST(!two.servers()[0].rules.give_up("no", todo));
  auto begun = two.servers()[0].rules.begin(3, "plan", false);
  BOOST_REQUIRE(begun);
  BOOST_TEST(two.servers()[0].rules.give_up("the operator's wish", todo));
  const auto said = std::ranges::find(todo, change_action::what::finished, &change_action::kind);
  BOOST_REQUIRE(said != todo.end());
  BOOST_TEST(said->text == "the operator's wish");
  // A lone server, to the end.
  plan_changes lone(0, 1);
  BOOST_REQUIRE(lone.begin(1, "plan", false));
  lone.step_done(1);
  lone.step_done(1);
  BOOST_TEST(lone.is_committed());
  BOOST_TEST(!lone.give_up("too late", todo));
  // Requests under the plan before end before or after it has begun to go by the new one.
  BOOST_TEST(lone.ended(1).empty());
  const auto over = lone.step_done(1);
  BOOST_REQUIRE(!over.empty());
  BOOST_TEST((over.back().step == change_step::retire));
  lone.step_done(1);
  BOOST_TEST((lone.phase() == change_phase::none));
}

BOOST_AUTO_TEST_CASE(requests_under_the_plan_before_keep_it_everywhere_and_the_next_change_waits) {
  std::vector<plan_changes> two{{0, 2}, {1, 2}};
  const auto order = [&](change_message::what kind, change_id change = 1) {
    return two[1].hear(0, {change, kind, "plan"});
  };
  order(change_message::what::prepare);
  two[1].step_done(1);
  order(change_message::what::install);
  two[1].step_done(1);
  order(change_message::what::commit);
  two[1].step_done(1);
  BOOST_TEST((two[1].phase() == change_phase::ending));
  // Its own are over: it says so, and waits for the other's.
  const auto said = two[1].ended(1);
  BOOST_REQUIRE_EQUAL(said.size(), 1u);
  BOOST_TEST((said[0].message.kind == change_message::what::ended));
  BOOST_TEST(two[1].ended(1).empty());
  // The next plan does not come before that, and is not forgotten.
  BOOST_TEST(order(change_message::what::prepare, 2).empty());
  const auto retires = order(change_message::what::ended);
  BOOST_REQUIRE_EQUAL(retires.size(), 1u);
  BOOST_TEST((retires[0].step == change_step::retire));
  const auto next = two[1].step_done(1);
  BOOST_REQUIRE_EQUAL(next.size(), 1u);
  BOOST_TEST((next[0].step == change_step::prepare));
  BOOST_TEST(next[0].change == 2u);
}

BOOST_AUTO_TEST_CASE(a_change_that_waits_is_taken_back_with_its_leader_or_by_it) {
  for (const bool dies : {false, true}) {
    plan_changes rules(2, 4);
    for (const auto kind : {change_message::what::prepare, change_message::what::install,
                            change_message::what::commit}) {
      rules.hear(0, {1, kind, "plan"});
      rules.step_done(1);
    }
    rules.hear(1, {2, change_message::what::prepare, "plan"});
    // Of a higher number.
    const auto refused = rules.hear(3, {3, change_message::what::prepare, "plan"});
    BOOST_REQUIRE_EQUAL(refused.size(), 1u);
    BOOST_TEST((refused[0].message.kind == change_message::what::failed));
    BOOST_TEST(!rules.begin(4, "plan", false));
    if (dies)
      rules.lost(1);
    else
      BOOST_TEST(rules.hear(1, {2, change_message::what::abort, {}}).empty());
    rules.ended(1);
    rules.hear(0, {1, change_message::what::ended, {}});
    if (!dies) rules.hear(1, {1, change_message::what::ended, {}});
    rules.hear(3, {1, change_message::what::ended, {}});
    BOOST_TEST((rules.phase() == change_phase::retiring));
    BOOST_TEST(rules.step_done(1).empty());
    BOOST_TEST((rules.phase() == change_phase::none));
  }
}

BOOST_AUTO_TEST_CASE(who_was_lost_when_a_change_was_given_up_hears_so_when_it_is_back) {
  std::vector<plan_changes> two{{0, 2}, {1, 2}};
  BOOST_REQUIRE(two[0].begin(1, "plan", false).has_value());
  // What it says goes by the session that there is now, and the end of the one before is told later.
  BOOST_REQUIRE_EQUAL(two[1].hear(0, {1, change_message::what::prepare, "plan"}).size(), 1u);
  two[1].step_done(1);
  two[0].lost(1);
  BOOST_TEST((two[0].phase() == change_phase::none));
  const auto said = two[0].found(1);
  BOOST_REQUIRE_EQUAL(said.size(), 1u);
  const auto todo = two[1].hear(0, said[0].message);
  BOOST_REQUIRE_EQUAL(todo.size(), 1u);
  BOOST_TEST((todo[0].step == change_step::abort));
  BOOST_TEST((two[1].phase() == change_phase::none));
  // Once.
  two[0].lost(1);
  BOOST_TEST(two[0].found(1).empty());
}

BOOST_AUTO_TEST_CASE(of_two_that_lead_at_once_the_one_with_the_lower_number_goes_on) {
  std::size_t behind_another = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    world four(4, seed);
    four.allow_requests(20);
    // In half of them while requests may still end under the plan before.
    const auto by_first = [](const auto& each) { return each.plan == 1; };
    if (seed % 2 == 0) {
      BOOST_REQUIRE(four.begin(0, 1));
      while (!std::ranges::all_of(four.servers(), by_first)) BOOST_REQUIRE(four.step());
      if (!std::ranges::all_of(four.servers(), [](const auto& each) {
            return each.rules.phase() >= change_phase::ending;
          }))
        continue;
      behind_another += four.servers()[1].rules.change() != 0;
    }
    BOOST_TEST_CONTEXT("seed " << seed) {
      BOOST_REQUIRE((four.begin(3, 3) && four.begin(1, 2)));
      run(four);
      check_agreement(four, seed);
      check_outcomes(four, seed);
      BOOST_TEST(four.servers()[0].plan == 2u);
      BOOST_TEST(four.servers()[1].outcomes.at(2).empty());
      BOOST_TEST(says_who_goes_before(four.servers()[3].outcomes.at(3)));
    }
  }
  BOOST_TEST(behind_another > 0u);
}

BOOST_AUTO_TEST_CASE(the_lowest_of_those_that_lead_at_once_is_prepared_next) {
  plan_changes rules(3, 4);
  const auto told = [](const std::vector<change_action>& todo) {
    return todo.size() == 1 && todo[0].kind == change_action::what::tell ? todo[0].server : 99u;
  };
  BOOST_REQUIRE_EQUAL(rules.hear(2, {1, change_message::what::prepare, "plan"}).size(), 1u);
  BOOST_TEST(rules.hear(1, {2, change_message::what::prepare, "plan"}).empty());
  // Another lower one: who waited hears that it fails.
  BOOST_TEST(told(rules.hear(0, {3, change_message::what::prepare, "plan"})) == 1u);
  BOOST_TEST(rules.hear(1, {2, change_message::what::abort, {}}).empty());
  BOOST_TEST((rules.phase() == change_phase::preparing));
  const auto todo = rules.hear(2, {1, change_message::what::abort, {}});
  BOOST_REQUIRE_EQUAL(todo.size(), 2u);
  BOOST_TEST((todo[0].step == change_step::abort));
  BOOST_TEST(todo[0].change == 1u);
  BOOST_TEST((todo[1].step == change_step::prepare));
  BOOST_TEST(todo[1].change == 3u);
}

BOOST_AUTO_TEST_CASE(an_end_that_is_told_before_the_own_commit_counts_and_commits_nothing) {
  plan_changes rules(1, 3);
  rules.hear(0, {1, change_message::what::prepare, "plan"});
  rules.step_done(1);
  rules.hear(0, {1, change_message::what::install, {}});
  rules.step_done(1);
  BOOST_TEST(rules.hear(2, {1, change_message::what::ended, {}}).empty());
  BOOST_TEST((rules.phase() == change_phase::installed));
  rules.hear(0, {1, change_message::what::commit, {}});
  rules.step_done(1);
  rules.ended(1);
  BOOST_TEST((rules.phase() == change_phase::ending));
  BOOST_TEST(!rules.hear(0, {1, change_message::what::ended, {}}).empty());
  BOOST_TEST((rules.phase() == change_phase::retiring));
}

BOOST_AUTO_TEST_CASE(frames_of_nobody_and_of_changes_that_are_over_do_nothing) {
  plan_changes rules(1, 3);
  BOOST_TEST(rules.hear(9, {1, change_message::what::prepare, "plan"}).empty());
  BOOST_TEST(rules.hear(1, {1, change_message::what::prepare, "plan"}).empty());
  for (const auto kind :
       {change_message::what::hold, change_message::what::install, change_message::what::commit,
        change_message::what::abort, change_message::what::done, change_message::what::failed,
        change_message::what::ended, change_message::what::committed,
        change_message::what::not_committed})
    BOOST_TEST(rules.hear(0, {1, kind, {}}).empty());
  BOOST_TEST(rules.step_done(1).empty());
  BOOST_TEST(rules.ended(1).empty());
  BOOST_TEST(rules.hear(0, {1, change_message::what::prepare, "plan"}).size() == 1u);
  // Not of its leader, not of its change, not yet.
  BOOST_TEST(rules.hear(2, {1, change_message::what::abort, {}}).empty());
  BOOST_TEST(rules.hear(0, {2, change_message::what::abort, {}}).empty());
  BOOST_TEST(rules.hear(0, {1, change_message::what::install, {}}).empty());
  BOOST_TEST(rules.hear(0, {1, change_message::what::commit, {}}).empty());
  BOOST_TEST(rules.hear(0, {1, change_message::what::ended, {}}).empty());
  BOOST_TEST((rules.phase() == change_phase::preparing));
}

BOOST_AUTO_TEST_CASE(names_of_messages_are_read_back) {
  for (int kind = 0; kind < 11; ++kind) {
    const auto one = static_cast<change_message::what>(kind);
    BOOST_TEST((serving::parse_change_message(to_string(one)) == one));
  }
  BOOST_TEST(!serving::parse_change_message("prepared").has_value());
}

BOOST_AUTO_TEST_CASE(the_living_agree_whoever_dies_whenever) {
  std::size_t committed = 0, given_up = 0, deaths = 0, restarts = 0, served_two = 0, early = 0,
              waited = 0, joined = 0, left = 0, took_part = 0;
  const auto range = test::seeds(2000);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    random_stream draws(seed, 1);
    const auto n = static_cast<std::uint32_t>(2 + draws.below(4));
    const auto spares = draws.below(3) == 0 ? static_cast<std::uint32_t>(draws.below(n - 1)) : 0;
    world cluster(n, seed, spares);
    const double failures = draws.below(3) == 0 ? 0.1 : 0;
    change_id next = 0;
    for (int round = 0; round < 3; ++round) {
      cluster.allow_requests(draws.below(20));
      // Two leaders at once, now and then, and a second change behind the first.
      for (int leaders = draws.below(4) == 0 ? 2 : 1; leaders > 0; --leaders) {
        const auto leader = static_cast<std::uint32_t>(draws.below(n));
        if (cluster.servers()[leader].alive) cluster.begin(leader, ++next, draws.below(4) == 0);
      }
      const auto dies_at = draws.below(120), follows_at = draws.below(120),
                 turns_at = draws.below(60);
      for (std::uint64_t i = 0; cluster.step(failures); ++i) {
        if (i == follows_at) {
          const auto leader = static_cast<std::uint32_t>(draws.below(n));
          const auto& self = cluster.servers()[leader];
          if (self.alive && cluster.begin(leader, ++next, draws.below(4) == 0))
            waited += self.rules.waits();
        }
        if (i >= turns_at && i < turns_at + 4 && seed % 2 == 0) {
          const auto asked = static_cast<std::uint32_t>(draws.below(n)),
                     whom = static_cast<std::uint32_t>(draws.below(n));
          const bool joins = draws.below(3) > 0;
          if (cluster.set_member(asked, whom, joins)) ++(joins ? joined : left);
        }
        if (i != dies_at && i != dies_at + 5) continue;
        std::size_t alive = 0;
        for (const auto& each : cluster.servers()) alive += each.alive ? 1 : 0;
        const auto victim = static_cast<std::uint32_t>(draws.below(n));
        if (alive < 2 || draws.below(2) == 0 || !cluster.servers()[victim].alive) continue;
        cluster.kill(victim);
        ++deaths;
      }
      check_agreement(cluster, seed);
      check_outcomes(cluster, seed);
      for (std::uint32_t id = 0; id < n; ++id)
        if (!cluster.servers()[id].alive && draws.below(2) == 0)
          restarts += cluster.start_again(id);
    }
    for (const auto& each : cluster.servers()) {
      for (const auto& [change, why] : each.outcomes) ++(why.empty() ? committed : given_up);
      took_part += each.words.contains(&each - cluster.servers().data()) && each.plan != 0;
      served_two += each.served_two;
      early += each.begun_early;
    }
  }
  BOOST_TEST(committed > 0u);
  BOOST_TEST(given_up > 0u);
  BOOST_TEST(deaths > 0u);
  BOOST_TEST(restarts > 0u);
  BOOST_TEST(waited > 0u);
  BOOST_TEST(joined > 0u);
  BOOST_TEST(left > 0u);
  // Of those that joined.
  BOOST_TEST(took_part > 0u);
  // Requests began while there were two plans, and some under a plan that others had not been told to go by.
  BOOST_TEST(served_two > 0u);
  BOOST_TEST(early > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
