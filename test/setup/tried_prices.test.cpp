#include "setup/tried_prices.hpp"

#include <boost/test/unit_test.hpp>

/// Which of the prices that a search tried is taken.
namespace ordermoe::setup {

namespace {

constexpr double nats = 0.01;

/// Measured without doubt.
tried_price tried(double price, double increase) {
  return {price, {.price_ns_per_nat = price}, {.increase = increase}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tried_prices)

BOOST_AUTO_TEST_CASE(the_lowest_that_kept_the_budget_is_taken) {
  BOOST_TEST(!lowest_kept({}, nats));
  BOOST_TEST(lowest_kept({tried(1, 0.01)}, nats)->price == 1);
  BOOST_TEST(!lowest_kept({tried(1, 0.011)}, nats));
  // In whichever order they were tried.
  BOOST_TEST(lowest_kept({tried(2, 0.006), tried(3, 0.002), tried(1, 0.009)}, nats)->price == 1);
}

BOOST_AUTO_TEST_CASE(what_a_price_loses_is_borne_out_by_the_next_cheaper_one) {
  // By itself 2 keeps it, and in the mean with 1 it does not.
  BOOST_TEST(lowest_kept({tried(1, 0.019), tried(2, 0.002), tried(3, 0.001)}, nats)->price == 3);
  BOOST_TEST(lowest_kept({tried(1, 0.017), tried(2, 0.002), tried(3, 0.001)}, nats)->price == 2);
  // One that loses less than a dearer one makes it no better.
  BOOST_TEST(!lowest_kept({tried(1, 0), tried(2, 0.011)}, nats));
}

BOOST_AUTO_TEST_CASE(nothing_is_taken_behind_a_dearer_one_that_lost_too_much) {
  BOOST_TEST(lowest_kept({tried(1, 0), tried(2, 0.03), tried(3, 0), tried(4, 0)}, nats)->price ==
             4);
  BOOST_TEST(!lowest_kept({tried(1, 0), tried(2, 0.03)}, nats));
}

BOOST_AUTO_TEST_CASE(more_texts_are_surer) {
  const tried_price doubtful{1, {}, {.increase = 0.005, .standard_error = 0.006}};
  BOOST_TEST(!lowest_kept({doubtful}, nats));
  BOOST_TEST(lowest_kept({doubtful}, nats, 4).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::setup
