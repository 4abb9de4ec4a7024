#include "net/relay/token_bucket.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>

namespace ordermoe {

namespace {

constexpr std::int64_t ms = 1'000'000;

}  // namespace

BOOST_AUTO_TEST_SUITE(token_bucket)

BOOST_AUTO_TEST_CASE(without_a_rate_everything_passes_at_once) {
  net::token_bucket bucket;
  BOOST_TEST(bucket.available(0) == std::numeric_limits<std::uint64_t>::max());
  bucket.take(1u << 30, 0);
  BOOST_TEST(bucket.when(1u << 30, 7) == 7);
}

BOOST_AUTO_TEST_CASE(a_burst_is_five_milliseconds_and_at_least_1500_bytes) {
  net::token_bucket bucket;
  bucket.set_rate(1'000'000, 0);
  BOOST_TEST(bucket.burst_bytes() == 5'000u);
  BOOST_TEST(bucket.available(0) == 5'000u);
  BOOST_TEST(bucket.available(3'600'000 * ms) == 5'000u);
  bucket.set_rate(1, 0);
  BOOST_TEST(bucket.burst_bytes() == 1'500u);
  bucket.set_rate(net::most_rate_bytes_per_s, 0);
  BOOST_TEST(bucket.available(1'000'000'000 * ms) == net::most_rate_bytes_per_s / 200);
}

BOOST_AUTO_TEST_CASE(bytes_are_there_at_the_time_that_it_names_and_not_before) {
  for (const std::uint64_t rate : {1ull, 3ull, 7'777ull, 1'000'003ull, 999'999'999'989ull}) {
    net::token_bucket bucket;
    bucket.set_rate(rate, 0);
    bucket.take(bucket.burst_bytes(), 0);
    for (const std::uint64_t n : {1ull, 2ull, 1'499ull}) {
      const auto then = bucket.when(n, 0);
      BOOST_TEST(bucket.available(then) >= n);
      BOOST_TEST(bucket.available(then - 1) < n);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_passes_in_a_second_is_the_rate_and_one_burst) {
  net::token_bucket bucket;
  bucket.set_rate(1'000'003, 0);
  std::uint64_t passed = 0;
  for (std::int64_t now = 0; now < 1'000 * ms; now += 13'577) {
    const auto n = bucket.available(now) / 2;
    bucket.take(n, now);
    passed += n;
  }
  BOOST_TEST(passed <= 1'000'003u + bucket.burst_bytes());
  BOOST_TEST(passed >= 1'000'003u - bucket.burst_bytes());
}

BOOST_AUTO_TEST_CASE(another_rate_keeps_what_is_there) {
  net::token_bucket bucket;
  bucket.set_rate(1'000'000, 0);
  bucket.take(5'000, 0);
  bucket.set_rate(10'000'000, 1 * ms);
  BOOST_TEST(bucket.available(1 * ms) == 1'000u);
  BOOST_TEST(bucket.available(2 * ms) == 11'000u);
  bucket.set_rate(1'000'000, 2 * ms);
  BOOST_TEST(bucket.available(2 * ms) == 5'000u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
