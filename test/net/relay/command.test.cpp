#include "net/relay/command.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using what = net::relay_command::what;

net::relay_command read(const char* line) {
  const auto command = net::parse_relay_command(line);
  BOOST_REQUIRE_MESSAGE(command.has_value(), line);
  return *command;
}

std::string problem(const char* line) {
  const auto refused = net::parse_relay_command(line);
  BOOST_REQUIRE_MESSAGE(!refused.has_value(), line);
  BOOST_TEST(exit_code(refused.error().code) == 2);
  return refused.error().message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(command)

BOOST_AUTO_TEST_CASE(each_command_changes_what_it_names) {
  net::link_conditions now;
  for (const char* line : {"delay back 12.5", "rate back 8", "stall back", "flip back 0.25"}) {
    BOOST_TEST((read(line).of == net::direction::back));
    now = net::changed(now, read(line));
  }
  const net::link_conditions expected{12'500'000, 1'000'000, true, 0.25};
  BOOST_TEST((now == expected));
  now = net::changed(now, read("release to"));
  BOOST_TEST(!now.stalled);
  BOOST_TEST((read("release to").of == net::direction::to));
  BOOST_TEST((read(" status\t\r").kind == what::status));
  BOOST_TEST((read("quit").kind == what::quit));
  BOOST_TEST((read("flip to").kind == what::flip_next));
}

BOOST_AUTO_TEST_CASE(a_cut_says_where_and_for_how_long) {
  BOOST_TEST(read("cut").how.after_bytes == 0u);
  BOOST_TEST(read("cut").how.refuse_ns == 0);
  const auto cut = read("cut after back 17 refuse 250");
  BOOST_TEST((cut.how.of == net::direction::back));
  BOOST_TEST(cut.how.after_bytes == 17u);
  BOOST_TEST(cut.how.refuse_ns == 250'000'000);
  BOOST_TEST(read("cut refuse 1").how.after_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(what_is_not_understood_is_named) {
  BOOST_TEST(problem("").find("found the line's end, expected delay to|back MS") == 0u);
  BOOST_TEST(problem("dlay to 3").find("found 'dlay', expected delay") == 0u);
  BOOST_TEST(problem("delay both 3").find("found 'both', expected to") == 0u);
  BOOST_TEST(problem("delay to").find("found the line's end, expected 0 to 600000 ms") == 0u);
  BOOST_TEST(problem("delay to -1").find("found '-1'") == 0u);
  BOOST_TEST(problem("delay to 5ms").find("found '5ms'") == 0u);
  BOOST_TEST(problem("rate to nan").find("found 'nan'") == 0u);
  BOOST_TEST(problem("rate to 1e30").find("found '1e30'") == 0u);
  BOOST_TEST(problem("flip to 2").find("found '2', expected 0 to 1") == 0u);
  BOOST_TEST(problem("cut now").find("found 'now', expected the line's end") == 0u);
  BOOST_TEST(problem("cut after to 0").find("found '0', expected a whole number") == 0u);
  BOOST_TEST(problem("cut refuse").find("found the line's end") == 0u);
  BOOST_TEST(problem("stall to 3").find("found '3'") == 0u);
  BOOST_TEST(problem("quit now").find("found 'now'") == 0u);
}

BOOST_AUTO_TEST_CASE(a_small_rate_is_not_taken_for_none) {
  BOOST_TEST(net::bytes_per_s(0) == 0u);
  BOOST_TEST(net::bytes_per_s(1e-9) == 1u);
  BOOST_TEST(net::bytes_per_s(8) == 1'000'000u);
  BOOST_TEST(net::bytes_per_s(net::most_rate_mbit) == net::most_rate_bytes_per_s);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
