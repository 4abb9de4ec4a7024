#include "planning/serving/link_board.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using serving::measured;
using serving::worth_telling;
using wire::link_measure;

constexpr std::int64_t ms = 1'000'000;

cluster two_servers() {
  cluster made;
  made.servers.resize(2);
  made.links = {{}, {1e9, 2 * ms}, {5e8, 3 * ms}, {}};
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(link_board)

BOOST_AUTO_TEST_CASE(what_was_measured_stands_and_the_rest_is_as_stated) {
  const link_spec stated{1e9, 2 * ms};
  BOOST_TEST(measured(stated, {}).latency_ns == 2 * ms);
  BOOST_TEST(measured(stated, {}).bandwidth_bytes_per_s == 1e9);
  BOOST_TEST(measured(stated, {0, 0}).latency_ns == 0);
  BOOST_TEST(measured(stated, {0, 0}).bandwidth_bytes_per_s == 1e9);
  BOOST_TEST(measured(stated, {-1, 5e6}).latency_ns == 2 * ms);
  BOOST_TEST(measured(stated, {-1, 5e6}).bandwidth_bytes_per_s == 5e6);
}

BOOST_AUTO_TEST_CASE(a_tenth_and_more_than_noise_is_worth_telling) {
  constexpr std::int64_t bytes = 1'000'000;
  const link_spec told{1e9, 20 * ms};
  BOOST_TEST(!worth_telling(told, told, bytes));
  BOOST_TEST(!worth_telling(told, {1e9, 21 * ms}, bytes));
  BOOST_TEST(worth_telling(told, {1e9, 23 * ms}, bytes));
  BOOST_TEST(worth_telling(told, {1e9, 17 * ms}, bytes));
  BOOST_TEST(worth_telling(told, {2e8, 20 * ms}, bytes));
  BOOST_TEST(!worth_telling(told, {2e9, 20 * ms}, bytes));
  // Within a machine everything is noise.
  BOOST_TEST(!worth_telling({1e10, 20'000}, {2e10, 90'000}, bytes));
  // A small message goes by the latency.
  BOOST_TEST(worth_telling({1e6, ms}, {1e6, 3 * ms}, 100 * bytes));
}

BOOST_AUTO_TEST_CASE(the_latest_report_of_each_server_holds) {
  serving::link_board board(two_servers());
  BOOST_TEST(board.take({0, 5, {{}, {7 * ms, 0}}}));
  BOOST_TEST(board.links()[1].latency_ns == 7 * ms);
  BOOST_TEST(board.links()[1].bandwidth_bytes_per_s == 1e9);
  BOOST_TEST(board.links()[2].latency_ns == 3 * ms);
  BOOST_TEST(!board.take({0, 5, {{}, {9 * ms, 0}}}));
  BOOST_TEST(!board.take({0, 4, {{}, {9 * ms, 0}}}));
  BOOST_TEST(board.links()[1].latency_ns == 7 * ms);
  // Newer and the same.
  BOOST_TEST(!board.take({0, 6, {{}, {7 * ms, 0}}}));
  BOOST_TEST(board.take({1, 1, {{-1, 1e6}, {}}}));
  BOOST_TEST(board.links()[2].bandwidth_bytes_per_s == 1e6);
  // It forgot what it had measured, since it began again.
  BOOST_TEST(board.take({0, 7, {{}, {}}}));
  BOOST_TEST(board.links()[1].latency_ns == 2 * ms);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
