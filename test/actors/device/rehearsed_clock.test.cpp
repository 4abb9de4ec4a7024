#include "actors/device/rehearsed_clock.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>

#include "config/random.hpp"

namespace {

using ordermoe::actors::rehearsed_clock;

constexpr std::int64_t us = 1'000, ms = 1'000'000;

/// A device whose batches take no time to compute, and whose thread wakes late.
struct device {
  /// Asked for at asked_ns; its sleep ends so much late. When the result is told.
  std::int64_t run(std::int64_t asked_ns, std::int64_t charge_ns, std::int64_t late_ns) {
    clock.begin(asked_ns, charge_ns);
    const auto computed = std::max(asked_ns, now_ns);
    now_ns = computed;
    if (computed < clock.sleep_until_ns()) {
      now_ns = clock.sleep_until_ns() + late_ns;
      clock.woke(now_ns);
    }
    now_ns = std::max(now_ns, clock.due_ns());
    end_ns = clock.end(now_ns, 0);
    return now_ns;
  }

  rehearsed_clock clock;
  std::int64_t now_ns = 0, end_ns = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(rehearsed_clock)

BOOST_AUTO_TEST_CASE(a_batch_takes_its_charge_from_when_it_was_asked_for) {
  device one;
  BOOST_TEST(one.run(10 * ms, 800 * us, 0) == 10 * ms + 800 * us);
  BOOST_TEST(one.clock.start_ns() == 10 * ms);
  BOOST_TEST(one.end_ns == 10 * ms + 800 * us);
  BOOST_TEST(one.clock.figures().batches == 1u);
  BOOST_TEST(one.clock.figures().charged_ns == 800 * us);
  BOOST_TEST(one.clock.figures().late_ns == 0);
}

BOOST_AUTO_TEST_CASE(a_batch_that_waited_begins_when_the_one_before_was_charged_to_end) {
  device one;
  one.run(10 * ms, 800 * us, 300 * us);
  one.run(10 * ms + 500 * us, 800 * us, 0);
  BOOST_TEST(one.clock.start_ns() == 10 * ms + 800 * us);
  BOOST_TEST(one.end_ns == 10 * ms + 1'600 * us);
}

BOOST_AUTO_TEST_CASE(what_follows_from_a_late_result_is_so_much_shorter) {
  device one;
  const auto told = one.run(10 * ms, 800 * us, 250 * us);
  BOOST_TEST(told == 10 * ms + 1'050 * us);
  BOOST_TEST(one.clock.figures().late_ns == 250 * us);
  BOOST_TEST(one.run(told, 800 * us, 0) == 10 * ms + 1'600 * us);
  BOOST_TEST(one.clock.figures().late_ns == 0);
}

BOOST_AUTO_TEST_CASE(what_one_batch_is_too_short_for_the_next_makes_up) {
  device one;
  auto told = one.run(10 * ms, 800 * us, 2 * ms);
  told = one.run(told, 500 * us, 0);
  BOOST_TEST(told == 12 * ms + 800 * us);  // It was due before it was asked for.
  told = one.run(told, 5 * ms, 0);
  BOOST_TEST(told == 10 * ms + 800 * us + 500 * us + 5 * ms);
  BOOST_TEST(one.clock.figures().late_ns == 0);
}

BOOST_AUTO_TEST_CASE(what_a_late_result_owes_is_made_up_for_whatever_is_asked_for_next) {
  device one;
  const auto told = one.run(10 * ms, 800 * us, 250 * us);
  BOOST_TEST(one.run(told + 30 * ms, 800 * us, 0) == told + 30 * ms + 550 * us);
  BOOST_TEST(one.clock.figures().late_ns == 0);
}

BOOST_AUTO_TEST_CASE(no_batch_begins_before_the_device_was_free) {
  device one;
  const auto late = one.run(10 * ms, 800 * us, 3 * ms);
  // It waited while the first result was late, and is told late itself.
  one.run(late - 2 * ms, 1500 * us, 1 * ms);
  BOOST_TEST(one.end_ns == 10 * ms + 2'300 * us);
  one.run(one.end_ns + 100 * us, 800 * us, 0);
  BOOST_TEST(one.clock.start_ns() == 10 * ms + 2'300 * us);
}

BOOST_AUTO_TEST_CASE(computing_beyond_the_charge_is_told_and_not_made_up_for) {
  ordermoe::actors::rehearsed_clock clock;
  clock.begin(10 * ms, 100 * us);
  BOOST_TEST(clock.end(10 * ms + 300 * us, 300 * us) == 10 * ms + 300 * us);
  BOOST_TEST(clock.figures().exceeded == 1u);
  BOOST_TEST(clock.figures().exceeded_ns == 200 * us);
  BOOST_TEST(clock.figures().most_exceeded_ns == 200 * us);
  BOOST_TEST(clock.figures().late_ns == 0);
  clock.begin(11 * ms, 100 * us);
  BOOST_TEST(clock.due_ns() == 11 * ms + 100 * us);
}

BOOST_AUTO_TEST_CASE(what_others_take_of_the_processor_while_it_computes_is_made_up_for) {
  ordermoe::actors::rehearsed_clock clock;
  clock.begin(10 * ms, 100 * us);
  BOOST_TEST(clock.end(10 * ms + 300 * us, 50 * us) == 10 * ms + 100 * us);
  BOOST_TEST(clock.figures().exceeded == 0u);
  BOOST_TEST(clock.figures().late_ns == 200 * us);
  clock.begin(11 * ms, 400 * us);
  BOOST_TEST(clock.due_ns() == 11 * ms + 200 * us);
}

BOOST_AUTO_TEST_CASE(a_machine_that_stood_still_for_long_is_not_made_up_for) {
  device one;
  auto told = one.run(10 * ms, 800 * us, 500 * ms);
  const auto stood_still = told;
  for (int i = 0; i < 100; ++i) told = one.run(told, 800 * us, 0);
  BOOST_TEST(told >= stood_still + 100 * 800 * us - 10 * ms);
}

BOOST_AUTO_TEST_CASE(a_chain_of_batches_takes_what_is_charged_however_late_sleeps_end) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      ordermoe::random_stream random(seed);
      device one;
      std::int64_t told = 1'000 * ms, charged = 0;
      const auto begin = told;
      for (int i = 0; i < 400; ++i) {
        const auto charge = static_cast<std::int64_t>(random.uniform(100e3, 2e6));
        const auto late = static_cast<std::int64_t>(
            random.uniform(0, 1) < 0.05 ? random.uniform(0, 3e6) : random.uniform(40e3, 200e3));
        charged += charge;
        told = one.run(told, charge, late);
      }
      BOOST_TEST(told - begin >= charged);
      BOOST_TEST(told - begin <= charged + 10 * ms);
      BOOST_TEST(told - begin - charged == one.clock.figures().late_ns);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
