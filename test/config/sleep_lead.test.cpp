#include "config/sleep_lead.hpp"

#include <boost/test/unit_test.hpp>

BOOST_AUTO_TEST_SUITE(sleep_lead)

BOOST_AUTO_TEST_CASE(it_becomes_what_sleeps_end_late_by) {
  ordermoe::sleep_lead lead;
  BOOST_TEST(lead.ns() == 0);
  for (int i = 0; i < 100; ++i) lead.woke(1'000'000, 1'060'000);
  BOOST_TEST(lead.ns() > 59'000);
  BOOST_TEST(lead.ns() <= 60'000);
  for (int i = 0; i < 100; ++i) lead.woke(1'000'000, 1'010'000);
  BOOST_TEST(lead.ns() < 11'000);
}

BOOST_AUTO_TEST_CASE(one_sleep_that_ended_much_too_late_or_too_soon_changes_little) {
  ordermoe::sleep_lead lead;
  lead.woke(1'000'000, 900'000'000);
  BOOST_TEST(lead.ns() <= ordermoe::sleep_lead::most_ns / 8);
  for (int i = 0; i < 1000; ++i) lead.woke(1'000'000, 900'000'000);
  BOOST_TEST(lead.ns() <= ordermoe::sleep_lead::most_ns);
  for (int i = 0; i < 1000; ++i) lead.woke(1'000'000, 10);
  BOOST_TEST(lead.ns() >= 0);
}

BOOST_AUTO_TEST_SUITE_END()
