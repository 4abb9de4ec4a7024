#include "actors/service/client_bridge.hpp"

#include <boost/test/unit_test.hpp>
#include <stdexcept>

#include "test/actors/probe.hpp"

namespace ordermoe {

namespace {

/// Two callers behind one bridge: what each heard.
struct bridged : test::probe_world {
  std::shared_ptr<actors::answer_book> book = std::make_shared<actors::answer_book>();
  actors::client_bridge_actor bridge = keep(actors::spawn_client_bridge(system(), book));
  std::vector<std::int32_t> ids[2];
  std::vector<std::string> ends[2];

  std::uint64_t expect(std::size_t caller) {
    const auto number = book->expect();
    tell(bridge, actors::expected_answer{number,
                                         {[this, caller](const actors::answer_token& token) {
                                            ids[caller].push_back(token.id);
                                          },
                                          [this, caller](const actors::request_outcome& outcome) {
                                            ends[caller].push_back(outcome.finish);
                                          }}});
    return number;
  }
  void token(std::uint64_t request, std::int32_t id) {
    actors::answer_token made;
    made.request = request;
    made.id = id;
    tell(bridge, made);
  }
  void end(std::uint64_t request, std::string finish) {
    auto outcome = std::make_shared<actors::request_outcome>();
    outcome->request = request;
    outcome->finish = std::move(finish);
    tell(bridge, actors::answer_end{outcome});
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(client_bridge)

BOOST_AUTO_TEST_CASE(each_answer_goes_to_its_own_sink) {
  bridged world;
  const auto first = world.expect(0), second = world.expect(1);
  BOOST_TEST(first != second);
  BOOST_TEST(world.book->outstanding() == 2u);
  world.token(second, 5);
  world.token(first, 6);
  world.token(second, 7);
  world.end(second, "length");
  BOOST_TEST(world.book->outstanding() == 1u);
  world.end(first, "cancelled");
  BOOST_TEST(world.book->outstanding() == 0u);
  const std::vector<std::int32_t> of_first{6}, of_second{5, 7};
  BOOST_TEST(world.ids[0] == of_first, boost::test_tools::per_element());
  BOOST_TEST(world.ids[1] == of_second, boost::test_tools::per_element());
  BOOST_TEST(world.ends[0].at(0) == "cancelled");
  BOOST_TEST(world.ends[1].at(0) == "length");
}

BOOST_AUTO_TEST_CASE(an_answer_ends_once_and_nothing_follows_its_end) {
  bridged world;
  const auto number = world.expect(0);
  world.end(number, "length");
  world.end(number, "length");
  world.token(number, 5);
  BOOST_TEST(world.ends[0].size() == 1u);
  BOOST_TEST(world.ids[0].empty());
  BOOST_TEST(world.book->outstanding() == 0u);
}

BOOST_AUTO_TEST_CASE(answers_that_nobody_expects_are_left_alone) {
  bridged world;
  world.token(99, 5);
  world.end(99, "length");
  BOOST_TEST(world.book->outstanding() == 0u);
  BOOST_TEST(world.expect(0) == 0u);
}

BOOST_AUTO_TEST_CASE(a_sink_that_throws_or_is_empty_harms_nobody) {
  bridged world;
  int tokens = 0;
  const auto number = world.book->expect();
  world.tell(world.bridge, actors::expected_answer{number,
                                                   {[&](const actors::answer_token&) {
                                                      ++tokens;
                                                      throw std::runtime_error("a sink");
                                                    },
                                                    [](const actors::request_outcome&) {
                                                      throw std::runtime_error("a sink");
                                                    }}});
  const auto empty = world.book->expect();
  world.tell(world.bridge, actors::expected_answer{empty, {}});
  for (const auto each : {number, empty}) {
    world.token(each, 1);
    world.token(each, 2);
    world.end(each, "length");
  }
  BOOST_TEST(tokens == 2);
  BOOST_TEST(world.book->outstanding() == 0u);
  const auto other = world.expect(0);
  world.token(other, 3);
  BOOST_TEST(world.ids[0].size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
