#include "config/exact_exp.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "config/random.hpp"

BOOST_AUTO_TEST_SUITE(exact_exp)

BOOST_AUTO_TEST_CASE(it_is_within_one_unit_in_the_last_place) {
  ordermoe::random_stream draws(1);
  double worst = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const double x = i % 2 == 0 ? draws.uniform(-708.3, 709.7) : draws.uniform(-40, 0);
    const long double expected = std::exp(static_cast<long double>(x));
    const auto nearest = static_cast<double>(expected);
    const double unit = nearest - std::nextafter(nearest, 0.0);
    worst = std::max(
        worst,
        static_cast<double>(std::fabs(static_cast<long double>(ordermoe::exact_exp(x)) - expected) /
                            static_cast<long double>(unit)));
  }
  // Below a power of two a unit is half of that above it.
  BOOST_TEST(worst <= 2.0);
  BOOST_TEST(worst > 0.4);
}

BOOST_AUTO_TEST_CASE(its_ends_are_those_of_the_exponential) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  BOOST_TEST(ordermoe::exact_exp(0.0) == 1.0);
  BOOST_TEST(ordermoe::exact_exp(-0.0) == 1.0);
  BOOST_TEST(ordermoe::exact_exp(-infinity) == 0.0);
  BOOST_TEST(ordermoe::exact_exp(infinity) == infinity);
  BOOST_TEST(ordermoe::exact_exp(709.79) == infinity);
  BOOST_TEST(std::isfinite(ordermoe::exact_exp(709.782)));
  BOOST_TEST(ordermoe::exact_exp(-708.4) == 0.0);
  BOOST_TEST(ordermoe::exact_exp(-708.39) > 0.0);
  BOOST_TEST(std::isnan(ordermoe::exact_exp(std::numeric_limits<double>::quiet_NaN())));
}

/// Found on a processor with fused multiply-add, and the same on every other.
BOOST_AUTO_TEST_CASE(its_bits_are_these_everywhere) {
  ordermoe::random_stream draws(7);
  std::uint64_t mixed = 0;
  for (int i = 0; i < 100'000; ++i)
    mixed = ordermoe::mix64(
        mixed ^ std::bit_cast<std::uint64_t>(ordermoe::exact_exp(draws.uniform(-50, 50))));
  BOOST_TEST(mixed == 8046467091423332398u);
}

BOOST_AUTO_TEST_SUITE_END()
