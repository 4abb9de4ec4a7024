#include <boost/test/unit_test.hpp>

#include "actors/server_actors.hpp"
#include "test/actors/probe.hpp"

namespace ordermoe {

namespace {

struct told_recorder : test::probe_world {
  actors::recorder_actor recorder = keep(actors::spawn_recorder(system()));
  actors::history history() { return ask<actors::history>(recorder, actors::history_query{}); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(recorder)

BOOST_AUTO_TEST_CASE(what_is_told_is_kept_in_order_for_whoever_asks) {
  told_recorder world;
  for (std::uint64_t i = 0; i < 3; ++i) {
    actors::problem found;
    found.request = i;
    world.tell(world.recorder, found);
    actors::plan_change plan;
    plan.epoch = 10 + i;
    world.tell(world.recorder, plan);
    actors::policy_change policy;
    policy.version = 20 + i;
    world.tell(world.recorder, policy);
  }
  for (int time = 0; time < 2; ++time) {
    const auto known = world.history();
    BOOST_REQUIRE_EQUAL(known.problems.size(), 3u);
    BOOST_REQUIRE_EQUAL(known.plan_changes.size(), 3u);
    BOOST_REQUIRE_EQUAL(known.policy_changes.size(), 3u);
    for (std::uint64_t i = 0; i < 3; ++i) {
      BOOST_TEST(known.problems[i].request == i);
      BOOST_TEST(known.plan_changes[i].epoch == 10 + i);
      BOOST_TEST(known.policy_changes[i].version == 20 + i);
    }
  }
}

BOOST_AUTO_TEST_CASE(of_many_problems_the_latest_are_kept) {
  told_recorder world;
  for (std::uint64_t i = 0; i < 300; ++i) {
    actors::problem found;
    found.request = i;
    world.tell(world.recorder, found);
  }
  const auto known = world.history();
  BOOST_REQUIRE_EQUAL(known.problems.size(), 256u);
  BOOST_TEST(known.problems.front().request == 44u);
  BOOST_TEST(known.problems.back().request == 299u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
