#include "planning/serving/load_board.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(load_board)

BOOST_AUTO_TEST_CASE(only_waits_that_change_decisions_are_told) {
  std::int64_t told = 0;
  BOOST_TEST(!serving::tell_wait(told, 99, 100));
  BOOST_TEST(told == 0);
  BOOST_TEST(serving::tell_wait(told, 100, 100));
  BOOST_TEST(told == 100);
  BOOST_TEST(!serving::tell_wait(told, 199, 100));
  BOOST_TEST(!serving::tell_wait(told, 100, 100));
  // What falls below the tolerance is told as none, so that nobody believes in a wait for ever.
  BOOST_TEST(serving::tell_wait(told, 99, 100));
  BOOST_TEST(told == 0);
  // Of long waits, what is a quarter off.
  BOOST_TEST(serving::tell_wait(told, 4000, 100));
  BOOST_TEST(!serving::tell_wait(told, 4999, 100));
  BOOST_TEST(!serving::tell_wait(told, 3001, 100));
  BOOST_TEST(serving::tell_wait(told, 3000, 100));
  BOOST_TEST(told == 3000);
}

BOOST_AUTO_TEST_CASE(nobody_waits_before_anybody_said_so) {
  const serving::load_board board(3);
  BOOST_TEST(board.wait_ns().size() == 3u);
  BOOST_TEST(board.link_wait_ns().size() == 9u);
  for (const auto wait : board.wait_ns()) BOOST_TEST(wait == 0);
}

BOOST_AUTO_TEST_CASE(what_a_server_said_last_holds_whatever_comes_late_or_twice) {
  serving::load_board board(2);
  BOOST_TEST(board.take({1, 4, 40, {400, 0}}));
  BOOST_TEST(!board.take({1, 4, 99, {999, 0}}));
  BOOST_TEST(!board.take({1, 3, 30, {300, 0}}));
  BOOST_TEST(board.wait_ns()[1] == 40);
  BOOST_TEST(board.link_wait_ns()[2] == 400);
  BOOST_TEST(board.take({1, 9, 0, {5, 0}}));
  BOOST_TEST(board.wait_ns()[1] == 0);
  BOOST_TEST(board.link_wait_ns()[2] == 5);
}

BOOST_AUTO_TEST_CASE(each_server_counts_its_own_reports) {
  serving::load_board board(2);
  BOOST_TEST(board.take({1, 4, 40, {0, 0}}));
  BOOST_TEST(board.take({0, 1, 10, {0, 7}}));
  BOOST_TEST(board.wait_ns()[0] == 10);
  BOOST_TEST(board.wait_ns()[1] == 40);
  BOOST_TEST(board.link_wait_ns()[1] == 7);
  // Reports count from 1.
  serving::load_board fresh(2);
  BOOST_TEST(!fresh.take({0, 0, 10, {0, 0}}));
}

BOOST_AUTO_TEST_CASE(a_link_costs_its_own_time_and_what_waits_there) {
  serving::load_board board(2);
  BOOST_TEST(board.take({1, 4, 0, {400, 0}}));
  const std::vector<double> free_ns{0, 10, 20, 0};  // [to, from]
  board.price_by(free_ns);
  const std::vector<double> behind{0, 410, 20, 0};
  BOOST_TEST(board.link_ns() == behind, boost::test_tools::per_element());
  BOOST_TEST(board.take({0, 1, 0, {0, 7}}));
  BOOST_TEST(board.take({1, 5, 0, {5, 0}}));
  const std::vector<double> later{0, 15, 27, 0};
  BOOST_TEST(board.link_ns() == later, boost::test_tools::per_element());
  // Other tables: what waits stays.
  const std::vector<double> other{0, 100, 200, 0};
  board.price_by(other);
  const std::vector<double> repriced{0, 105, 207, 0};
  BOOST_TEST(board.link_ns() == repriced, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
