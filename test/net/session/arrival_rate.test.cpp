#include "net/session/arrival_rate.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

namespace ordermoe {

namespace {

constexpr std::int64_t us = 1'000, ms = 1'000'000;
constexpr std::uint64_t kib = 1024;

/// A reader of one burst.
struct reading {
  net::arrival_rate meter;
  std::int64_t now_ns = 7 * ms;
  std::int64_t round_trip_ns = 0;
  std::optional<double> found;

  explicit reading(std::uint64_t burst_bytes) { meter.expect(burst_bytes); }
  void take(std::uint64_t bytes, std::int64_t after_ns, bool drained = true) {
    now_ns += after_ns;
    if (const auto rate = meter.arrived(bytes, now_ns, drained, round_trip_ns)) found = rate;
  }
  /// Packet after packet, at 10 MB/s.
  void stream(std::uint64_t packets) {
    for (std::uint64_t i = 0; i < packets; ++i) take(kib, 102'400);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(arrival_rate)

BOOST_AUTO_TEST_CASE(packets_that_come_one_after_the_other_tell_the_rate) {
  reading burst(256 * kib);
  burst.stream(255);
  BOOST_TEST(!burst.found.has_value());
  burst.stream(1);
  BOOST_REQUIRE(burst.found.has_value());
  BOOST_TEST(*burst.found == 10e6, boost::test_tools::tolerance(0.001));
}

BOOST_AUTO_TEST_CASE(what_a_shaper_lets_through_at_once_does_not_count) {
  reading burst(256 * kib);
  burst.take(32 * kib, 0);
  burst.take(32 * kib, 10 * us);
  burst.stream(192);
  BOOST_REQUIRE(burst.found.has_value());
  BOOST_TEST(*burst.found == 10e6, boost::test_tools::tolerance(0.001));
}

BOOST_AUTO_TEST_CASE(nor_does_what_a_shaper_with_a_large_bucket_lets_through) {
  for (const std::uint64_t bucket : {64, 128, 192}) {
    reading burst(512 * kib);
    for (std::uint64_t passed = 0; passed < bucket; passed += 32) burst.take(32 * kib, 10 * us);
    burst.stream(512 - bucket);
    BOOST_REQUIRE(burst.found.has_value());
    BOOST_TEST(*burst.found == 10e6, boost::test_tools::tolerance(0.001));
  }
}

BOOST_AUTO_TEST_CASE(a_system_that_hands_on_late_once_makes_no_link_faster) {
  reading burst(512 * kib);
  burst.stream(250);
  // Where half of it has come, 30 packets more are there than the reader is told of.
  burst.take(7 * kib, 37 * 102'400);
  burst.take(31 * kib, 102'400);
  burst.stream(224);
  BOOST_REQUIRE(burst.found.has_value());
  BOOST_TEST(*burst.found == 10e6, boost::test_tools::tolerance(0.001));
}

BOOST_AUTO_TEST_CASE(pauses_of_a_window_that_grows_do_not_count) {
  reading burst(420 * kib);
  burst.round_trip_ns = 60 * ms;
  for (const std::uint64_t packets : {14, 28, 56, 112, 210}) {
    burst.take(0, 50 * ms);
    burst.stream(packets);
  }
  BOOST_REQUIRE(burst.found.has_value());
  BOOST_TEST(*burst.found == 10e6, boost::test_tools::tolerance(0.001));
}

BOOST_AUTO_TEST_CASE(a_reader_who_was_busy_never_takes_a_link_for_faster) {
  reading burst(256 * kib);
  burst.stream(100);
  // It all waits in the kernel, and is read in three goes.
  burst.take(64 * kib, 7 * ms, false);
  burst.take(64 * kib, 10 * us, false);
  burst.take(12 * kib, 10 * us);
  burst.stream(16);
  if (burst.found) BOOST_TEST(*burst.found < 10.01e6 + 140 * 1024 / 0.007);
  reading late(256 * kib);
  late.take(kib, 0);
  late.take(64 * kib, 4 * ms, false);
  late.take(64 * kib, 10 * us, false);
  late.take(64 * kib, 10 * us, false);
  late.take(63 * kib, 10 * us);
  BOOST_REQUIRE(late.found.has_value());
  // 255 KiB in what is known to be 4.03 ms at most.
  BOOST_TEST(*late.found <= 255 * 1024 / 4.03e-3 * 1.001);
}

BOOST_AUTO_TEST_CASE(a_slow_link_with_pauses_throughout_is_told_by_the_whole_burst) {
  reading burst(128 * kib);
  for (int i = 0; i < 129; ++i) burst.take(kib, 10'240 * us);
  BOOST_REQUIRE(burst.found.has_value());
  BOOST_TEST(*burst.found == 100e3, boost::test_tools::tolerance(0.001));
}

BOOST_AUTO_TEST_CASE(what_is_no_burst_tells_nothing) {
  reading quiet(0);
  quiet.stream(1000);
  BOOST_TEST(!quiet.found.has_value());
  reading small(60 * kib);
  small.stream(60);
  BOOST_TEST(!small.found.has_value());
  // All of it came at once: how long it took is not known.
  reading at_once(256 * kib);
  at_once.take(256 * kib, ms);
  BOOST_TEST(!at_once.found.has_value());
}

BOOST_AUTO_TEST_CASE(the_least_of_a_while_is_kept_and_the_last_where_none_follows) {
  net::recent_least least(100);
  BOOST_TEST(least.value() == -1);
  least.add(7, 0);
  least.add(9, 50);
  BOOST_TEST(least.value() == 7);
  least.add(8, 101);
  BOOST_TEST(least.value() == 8);
  least.add(60, 1000);
  BOOST_TEST(least.value() == 60);
  for (int i = 0; i < 200; ++i) least.add(100 + i, 1001);
  BOOST_TEST(least.value() >= 100);
  least.clear();
  BOOST_TEST(least.value() == -1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
