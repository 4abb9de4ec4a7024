#include "actors/token_meter.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const actors::token_meter::clock::time_point start{seconds(1000)};

}  // namespace

BOOST_AUTO_TEST_SUITE(token_meter)

BOOST_AUTO_TEST_CASE(nothing_was_counted_at_the_start) {
  const actors::token_meter meter(start);
  BOOST_TEST(meter.total() == 0u);
  BOOST_TEST(meter.per_s(start) == 0.0);
  BOOST_TEST(meter.per_s(start + seconds(100)) == 0.0);
}

BOOST_AUTO_TEST_CASE(before_ten_seconds_it_is_the_rate_since_the_start) {
  actors::token_meter meter(start);
  for (int i = 0; i < 30; ++i) meter.count(start + milliseconds(100 * i));
  BOOST_TEST(meter.total() == 30u);
  BOOST_TEST(meter.per_s(start + seconds(3)) == 10.0);
  BOOST_TEST(meter.per_s(start + seconds(6)) == 5.0);
}

BOOST_AUTO_TEST_CASE(what_is_older_than_ten_seconds_does_not_count_and_the_total_stays) {
  actors::token_meter meter(start);
  // 100 a second for 40 seconds, and nothing afterwards.
  for (int i = 0; i < 4000; ++i) meter.count(start + milliseconds(10 * i));
  const auto end = start + seconds(40);
  BOOST_TEST(meter.per_s(end - milliseconds(1)) == 100.0, boost::test_tools::tolerance(0.001));
  // Half of the window, which then begins with the 36th second, has none.
  BOOST_TEST(meter.per_s(end + milliseconds(5999)) == 4 * 100 / 9.999,
             boost::test_tools::tolerance(0.001));
  BOOST_TEST(meter.per_s(end + seconds(10)) == 0.0);
  BOOST_TEST(meter.per_s(end + seconds(100)) == 0.0);
  BOOST_TEST(meter.total() == 4000u);
  // And again, in slots that were used.
  meter.count(end + seconds(100));
  BOOST_TEST(meter.per_s(end + seconds(100) + milliseconds(999)) == 1 / 9.999,
             boost::test_tools::tolerance(0.001));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
