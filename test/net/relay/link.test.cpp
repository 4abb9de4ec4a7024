#include "net/relay/link.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <limits>

namespace ordermoe {

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::uint64_t mib = 1u << 20;

net::link_conditions with_flips(double chance) {
  net::link_conditions conditions;
  conditions.flip_chance = chance;
  return conditions;
}

/// Zeros that went through, so that each bit that is set was flipped.
std::string flipped(net::link& by, std::size_t n, std::uint64_t stream, std::uint64_t position) {
  std::string bytes(n, '\0');
  by.flip(bytes, 0, stream, position);
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(link)

BOOST_AUTO_TEST_CASE(conditions_that_make_no_sense_are_refused_by_name) {
  const auto problem = [](const net::link_conditions& bad) {
    const auto refused = net::check(bad);
    BOOST_REQUIRE(!refused.has_value());
    return refused.error().message;
  };
  net::link_conditions bad;
  BOOST_TEST(net::check(bad).has_value());
  bad.delay_ns = -1;
  BOOST_TEST(problem(bad).find("delay: found -1") == 0u);
  bad.delay_ns = net::most_delay_ns + 1;
  BOOST_TEST(problem(bad).find("delay") == 0u);
  bad = {};
  bad.rate_bytes_per_s = net::most_rate_bytes_per_s + 1;
  BOOST_TEST(problem(bad).find("rate") == 0u);
  for (const double chance : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()})
    BOOST_TEST(problem(with_flips(chance)).find("flip") == 0u);
}

BOOST_AUTO_TEST_CASE(the_buffer_holds_twice_what_is_on_its_way_and_no_less_than_asked) {
  net::link link(1, 4 * mib);
  BOOST_TEST(link.buffer_bytes() == 4 * mib);
  net::link_conditions conditions;
  conditions.delay_ns = 100 * ms;
  link.set(conditions, 0);
  BOOST_TEST(link.buffer_bytes() == 4 * mib);
  conditions.rate_bytes_per_s = 1'000'000'000;
  link.set(conditions, 0);
  BOOST_TEST(link.buffer_bytes() == 200'000'000u);
}

BOOST_AUTO_TEST_CASE(flips_depend_on_the_seed_and_not_on_the_pieces) {
  constexpr std::size_t n = 10'000;
  net::link whole(7, mib), pieces(7, mib), other(8, mib);
  for (auto* each : {&whole, &pieces, &other}) each->set(with_flips(0.01), 0);
  const auto expected = flipped(whole, n, 3, 0);
  std::string found;
  for (std::size_t begin = 0; begin < n; begin += 7)
    found += flipped(pieces, std::min<std::size_t>(7, n - begin), 3, begin);
  BOOST_TEST((found == expected));
  BOOST_TEST((flipped(other, n, 3, 0) != expected));
  BOOST_TEST((flipped(whole, n, 4, 0) != expected));
  std::uint64_t n_bits = 0;
  for (const char each : expected) n_bits += std::popcount(static_cast<unsigned char>(each));
  BOOST_TEST(n_bits == pieces.counted.flipped_bits);
  BOOST_TEST(n_bits > 50u);
  BOOST_TEST(n_bits < 200u);
}

BOOST_AUTO_TEST_CASE(the_next_byte_has_one_bit_flipped_and_those_behind_it_none) {
  net::link link(1, mib);
  link.flip_next();
  link.flip_next();
  std::string bytes = "kept";
  bytes += std::string(100, '\0');
  link.flip(bytes, 4, 0, 0);
  BOOST_TEST(bytes.substr(0, 4) == "kept");
  BOOST_TEST(std::popcount(static_cast<unsigned char>(bytes[4])) == 1);
  BOOST_TEST(std::popcount(static_cast<unsigned char>(bytes[5])) == 1);
  BOOST_TEST((bytes.substr(6) == std::string(98, '\0')));
  BOOST_TEST(link.counted.flipped_bits == 2u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
