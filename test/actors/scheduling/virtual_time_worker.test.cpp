#include "actors/scheduling/virtual_time_worker.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "test/actors/probe.hpp"

namespace ordermoe {

namespace {

/// Numbers of the requests that a probe was told to cancel.
std::vector<std::uint64_t> numbers(const test::probe& probe) {
  std::vector<std::uint64_t> found;
  for (const auto& message : probe.all<actors::cancel_request>()) found.push_back(message.request);
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(virtual_time_worker)

BOOST_AUTO_TEST_CASE(messages_come_by_time_and_then_in_the_order_of_sending) {
  test::probe_world world;
  test::probe probe(world);
  auto* worker = &world.worker();
  for (const auto& [delay, number] : {std::pair(300, 1), {100, 2}, {100, 3}, {0, 4}})
    actors::send_later(worker, probe.as(), delay,
                       actors::cancel_request{static_cast<std::uint64_t>(number)});
  world.run_ready();
  BOOST_TEST(numbers(probe).empty());
  const auto start = world.now_ns();
  world.run_all();
  const std::vector<std::uint64_t> expected{4, 2, 3, 1};
  BOOST_TEST(numbers(probe) == expected, boost::test_tools::per_element());
  BOOST_TEST(world.now_ns() == start + 300);
  BOOST_TEST(!worker->deliver_next());
}

BOOST_AUTO_TEST_CASE(timers_alone_are_no_work) {
  test::probe_world world;
  test::probe probe(world);
  auto* worker = &world.worker();
  actors::send_later(worker, probe.as(), 5, actors::timer_tick{}, actors::later::timer);
  BOOST_TEST(!worker->has_work());
  actors::send_later(worker, probe.as(), 9, actors::load_tick{});
  BOOST_TEST(worker->has_work());
  BOOST_TEST(worker->deliver_next());
  BOOST_TEST(worker->has_work());
  BOOST_TEST(worker->deliver_next());
  BOOST_TEST(!worker->has_work());
}

BOOST_AUTO_TEST_CASE(time_never_goes_back) {
  test::probe_world world;
  test::probe probe(world);
  actors::send_later(&world.worker(), probe.as(), 500, actors::cancel_request{1});
  world.advance_ns(1000);
  const auto now = world.now_ns();
  world.run_all();
  BOOST_TEST(world.now_ns() == now);
  BOOST_TEST(numbers(probe).size() == 1u);
}

BOOST_AUTO_TEST_CASE(with_a_seed_ready_actors_run_in_any_order_and_a_seed_repeats_its_order) {
  const auto order = [](std::uint64_t seed) {
    test::probe_world world(seed);
    auto log = world.new_log();
    std::vector<test::probe> probes;
    for (int i = 0; i < 6; ++i) probes.emplace_back(world, log);
    for (std::uint64_t i = 0; i < 12; ++i)
      caf::anon_send(probes[i % 6].as(), actors::cancel_request{i});
    world.run_ready();
    return numbers(probes[0]);
  };
  std::vector<std::uint64_t> in_turn{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11};
  BOOST_TEST(order(0) == in_turn, boost::test_tools::per_element());
  BOOST_TEST((order(3) != in_turn));
  BOOST_TEST((order(3) == order(3)));
  BOOST_TEST((order(3) != order(4)));
  // Those of one sender to one receiver keep their order.
  const auto drawn = order(3);
  BOOST_TEST(drawn.size() == 12u);
  for (std::uint64_t i = 0; i < 6; ++i)
    BOOST_TEST((std::ranges::find(drawn, i) < std::ranges::find(drawn, i + 6)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
