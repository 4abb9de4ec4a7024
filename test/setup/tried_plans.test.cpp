#include "setup/tried_plans.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>

/// Which of a strategy's plans are tuned to a budget, and which of these are judged on other texts.
namespace ordermoe::setup {

namespace {

using enum plan_kind;
using places = std::vector<std::size_t>;

}  // namespace

BOOST_AUTO_TEST_SUITE(tried_plans)

BOOST_AUTO_TEST_CASE(of_each_kind_the_fastest_and_the_one_that_loses_least_for_its_time) {
  // Of each kind: fast and lossy, slow without loss, in between, and worse than all of these.
  std::vector<tried_plan> tried;
  for (const auto of : {whole, core, pruned_core})
    for (const auto& [ms, lost] : {std::pair{10., 9.}, {14., 0.}, {12., 4.}, {20., 9.}})
      tried.push_back({of, ms, lost});
  BOOST_TEST(worth_tuning(tried) == (places{0, 1, 4, 5, 8, 9}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(where_one_is_both_the_next_by_what_it_loses_for_its_time_comes_along) {
  const std::vector<tried_plan> tried = {
      {whole, 12, 3}, {whole, 10, 0},      {whole, 11, 9},       {core, 20, 0},       {core, 21, 9},
      {core, 25, 1},  {pruned_core, 9, 0}, {pruned_core, 30, 0}, {pruned_core, 29, 9}};
  BOOST_TEST(worth_tuning(tried) == (places{0, 1, 3, 5, 6, 7}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(kinds_that_there_are_not_leave_their_places_to_the_fastest) {
  std::vector<tried_plan> tried;
  for (int i = 0; i < 10; ++i) tried.push_back({whole, 20. - i, 2. * i});
  // 9 is the fastest, 0 loses least for its time, and the others are the fastest behind the former.
  BOOST_TEST(worth_tuning(tried) == (places{0, 5, 6, 7, 8, 9}), boost::test_tools::per_element());
  tried.resize(3);
  BOOST_TEST(worth_tuning(tried) == (places{0, 1, 2}), boost::test_tools::per_element());
  BOOST_TEST(worth_tuning({}).empty());
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_tuned_only_where_nothing_else_is_left) {
  std::vector<tried_plan> tried(8, {whole, INFINITY, 0});
  for (const auto i : {1u, 2u, 4u, 6u, 7u}) tried[i].ms = 5. + i;
  BOOST_TEST(worth_tuning(tried) == (places{0, 1, 2, 4, 6, 7}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_fastest_and_the_fastest_of_another_kind_are_judged) {
  const std::vector<tried_plan> sought = {
      {core, 12}, {pruned_core, 10}, {pruned_core, 11}, {whole, 13}};
  BOOST_TEST(worth_judging(sought) == (places{1, 0}), boost::test_tools::per_element());
  const std::vector<tried_plan> alike = {{core, 12}, {core, 10}, {core, 11}};
  BOOST_TEST(worth_judging(alike) == (places{1, 2}), boost::test_tools::per_element());
  BOOST_TEST(worth_judging(std::span(sought).first(1)) == (places{0}),
             boost::test_tools::per_element());
  BOOST_TEST(worth_judging({}).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::setup
