#include "config/random.hpp"

#include <array>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <set>

using namespace ordermoe;

// The suite is a namespace, and the C library has a function of its name.
namespace tests {

BOOST_AUTO_TEST_SUITE(random)

/// The first outputs of SplitMix64 from the state 1234567, as its authors' reference prints them.
BOOST_AUTO_TEST_CASE(mixing_gives_the_published_sequence) {
  const std::array<std::uint64_t, 3> expected{6457827717110365317ull, 3203168211198807973ull,
                                              9817491932198370423ull};
  std::uint64_t state = 1234567;
  for (const auto value : expected) {
    BOOST_TEST(mix64(state) == value);
    state += 0x9e3779b97f4a7c15ull;
  }
}

BOOST_AUTO_TEST_CASE(a_draw_depends_on_seed_stream_and_counter_and_on_nothing_else) {
  BOOST_TEST(random_bits(1, 2, 3) == random_bits(1, 2, 3));
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t stream = 0; stream < 20; ++stream)
      for (std::uint64_t counter = 0; counter < 20; ++counter)
        seen.insert(random_bits(seed, stream, counter));
  BOOST_TEST(seen.size() == 8000u);
}

BOOST_AUTO_TEST_CASE(a_stream_is_the_counter_based_generator_in_order) {
  random_stream stream(9, 4);
  for (std::uint64_t counter = 0; counter < 10; ++counter)
    BOOST_TEST(stream.bits() == random_bits(9, 4, counter));
}

BOOST_AUTO_TEST_CASE(units_are_spread_evenly_over_zero_to_one) {
  constexpr std::size_t n = 100'000;
  std::array<std::size_t, 10> tenths{};
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto value = random_unit(11, 0, i);
    BOOST_REQUIRE(value >= 0);
    BOOST_REQUIRE(value < 1);
    sum += value;
    ++tenths[static_cast<std::size_t>(value * 10)];
  }
  // Five standard deviations of the mean, and of a tenth's count.
  BOOST_TEST(std::abs(sum / n - 0.5) < 5 * std::sqrt(1.0 / 12 / n));
  for (const auto count : tenths)
    BOOST_TEST(std::abs(static_cast<double>(count) - n / 10.0) < 5 * std::sqrt(n * 0.09));
}

BOOST_AUTO_TEST_CASE(bounded_draws_reach_every_value_and_no_other) {
  random_stream stream(3);
  std::array<std::size_t, 7> counts{};
  for (int i = 0; i < 7000; ++i) {
    const auto value = stream.below(7);
    BOOST_REQUIRE(value < 7);
    ++counts[value];
  }
  for (const auto count : counts) BOOST_TEST(count > 800u);
  BOOST_TEST(stream.below(1) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tests
