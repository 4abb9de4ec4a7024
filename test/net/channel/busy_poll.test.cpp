#include "net/channel/busy_poll.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>

namespace {

constexpr std::int64_t us = 1'000;
constexpr std::int64_t most_ns = 400 * us;

/// A thread that looks every microsecond, and what it did.
struct thread {
  explicit thread(std::int64_t looks_ns) : waits(looks_ns) {}

  /// Something comes after `wait_ns`. How often it looked.
  int wait(std::int64_t wait_ns, bool others_ran = false) {
    int looks = 0;
    const auto comes = now_ns + wait_ns;
    waits.begin(now_ns);
    while (now_ns < comes && waits.goes_on(now_ns)) {
      ++looks;
      now_ns += us;
    }
    BOOST_TEST(waits.looks() == (looks > 0));
    now_ns = comes;
    waits.end(now_ns, others_ran);
    return looks;
  }

  int wait_often(int n, std::int64_t wait_ns) {
    int looks = 0;
    for (int i = 0; i < n; ++i) looks = wait(wait_ns);
    return looks;
  }

  ordermoe::net::busy_poll waits;
  std::int64_t now_ns = 1'000'000 * us;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(busy_poll)

BOOST_AUTO_TEST_CASE(a_thread_looks_until_something_comes_where_waits_were_short_of_late) {
  thread one(most_ns);
  BOOST_TEST(one.wait(100 * us) == 0);  // Nothing is known yet.
  BOOST_TEST(one.wait_often(30, 100 * us) == 100);
}

BOOST_AUTO_TEST_CASE(waits_that_it_slept_through_teach_it_as_well) {
  thread one(most_ns);
  int slept = 0;
  while (one.wait(300 * us) == 0) BOOST_REQUIRE(++slept < 30);
  BOOST_TEST(slept > 5);
}

BOOST_AUTO_TEST_CASE(a_thread_whose_waits_became_long_sleeps) {
  thread one(most_ns);
  one.wait_often(30, 100 * us);
  BOOST_TEST(one.wait(10'000 * us) == most_ns / us);  // As long as it may, and no longer.
  BOOST_TEST(one.wait_often(30, 10'000 * us) == 0);
  BOOST_TEST(one.wait_often(30, most_ns) == 0);
}

BOOST_AUTO_TEST_CASE(
    a_thread_looks_where_two_thirds_of_its_waits_are_short_and_not_where_a_quarter_is) {
  thread most(most_ns), few(most_ns);
  most.wait_often(60, 50 * us);
  few.wait_often(60, 50 * us);
  int by_most = 0, by_few = 0;
  for (int i = 0; i < 400; ++i) {
    by_most += most.wait(i % 3 == 0 ? 10'000 * us : 50 * us) > 0 ? 1 : 0;
    const bool looked = few.wait(i % 4 != 0 ? 10'000 * us : 50 * us) > 0;
    if (i >= 100) by_few += looked ? 1 : 0;
  }
  BOOST_TEST(by_most == 400);
  BOOST_TEST(by_few == 0);
}

BOOST_AUTO_TEST_CASE(
    where_others_take_the_processor_a_thread_sleeps_and_tries_again_once_in_a_while) {
  thread one(most_ns);
  one.wait_often(60, 100 * us);
  int looked = 0;
  for (int i = 0; i < 640; ++i) looked += one.wait(100 * us, true) > 0 ? 1 : 0;
  BOOST_TEST(looked >= 640 / 32);
  BOOST_TEST(looked <= 640 / 32 + 16);
}

BOOST_AUTO_TEST_CASE(others_that_take_the_processor_now_and_then_do_not_stop_it) {
  thread one(most_ns);
  one.wait_often(60, 100 * us);
  for (int i = 0; i < 400; ++i) BOOST_TEST(one.wait(100 * us, i % 5 == 0) == 100);
}

BOOST_AUTO_TEST_CASE(a_thread_that_others_leave_the_processor_to_looks_again) {
  thread one(most_ns);
  one.wait_often(60, 100 * us);
  for (int i = 0; i < 100; ++i) one.wait(100 * us, true);
  one.wait_often(32 * 16, 100 * us);
  for (int i = 0; i < 64; ++i) BOOST_TEST(one.wait(100 * us) == 100);
}

BOOST_AUTO_TEST_CASE(a_thread_that_may_not_look_never_does) {
  thread one(0);
  BOOST_TEST(one.wait_often(100, us) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
