#include <boost/test/unit_test.hpp>

#include "actors/server_actors.hpp"
#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

actors::expert_work call_of(std::vector<std::uint32_t> experts) {
  actors::expert_work work;
  work.call.token = {7, 2, 0, 5};
  work.call.rows = {0};
  work.call.whole = {1};
  work.call.layer = 1;
  work.call.reply_to = 2;
  for (const auto expert : experts) work.call.items.push_back({0, 0, expert, 1.0f});
  return work;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shard)

BOOST_AUTO_TEST_CASE(calls_for_its_experts_go_to_compute_as_they_are) {
  test::probe_server world;
  const auto shard = world.keep(actors::spawn_shard(world.system(), world.view, 1));
  auto work = call_of({1, 4});
  work.token = world.token.as<actors::token_actor>();
  world.tell(shard, work);
  const auto passed = world.compute.only<actors::expert_work>();
  BOOST_TEST((passed.call == work.call));
  BOOST_TEST((passed.token == work.token));
  BOOST_TEST(world.server.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(a_call_for_an_expert_that_is_elsewhere_fails_at_the_one_who_waits_for_it) {
  test::probe_server world;
  const auto shard = world.keep(actors::spawn_shard(world.system(), world.view, 1));
  const auto is_refusal = [](const wire::expert_output& output) {
    return output.token == wire::token_key{7, 2, 0, 5} && output.layer == 1 && output.y.empty() &&
           static_cast<errc>(output.code) == errc::mismatch &&
           output.problem.find("expert 5 of layer 1") != std::string::npos;
  };
  auto work = call_of({1, 5});
  world.tell(shard, work);
  const auto frames = world.sent(2, wire::frame_kind::output);
  BOOST_REQUIRE_EQUAL(frames.size(), 1u);
  BOOST_TEST(is_refusal(*wire::decode_output(frames[0], world.context->wire)));
  work.call.reply_to = world.id;
  world.tell(shard, work);
  BOOST_TEST(is_refusal(world.server.only<actors::arrived_output>().content));
  work.token = world.token.as<actors::token_actor>();
  world.tell(shard, work);
  BOOST_TEST(is_refusal(world.token.only<actors::arrived_output>().content));
  BOOST_TEST(world.token.only<actors::arrived_output>().from == world.id);
  BOOST_TEST(world.compute.heard() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
