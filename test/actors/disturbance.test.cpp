#include "test/actors/disturbance.hpp"

#include <boost/test/unit_test.hpp>

#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

/// Of a slice; `scripts/campaign disturbance` runs a thousand.
constexpr std::uint64_t n_seeds = 40;

void check(test::mischief kind) {
  const auto [first, last] = test::seeds(n_seeds);
  std::size_t later_attempts = 0;
  for (const auto& strategy : test::exact_strategies()) {
    const test::disturbed_world world(strategy);
    for (auto seed = first; seed <= last; ++seed) {
      const auto wrong = world.run(kind, seed);
      BOOST_TEST(wrong.empty(), strategy << ", seed " << seed << ": " << wrong);
      later_attempts += world.later_attempts();
    }
  }
  BOOST_TEST((later_attempts > 0) == (kind == test::mischief::restarts));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(disturbance)

BOOST_AUTO_TEST_CASE(frames_that_come_again_change_no_answer_and_leave_nothing) {
  check(test::mischief::duplicates);
}

BOOST_AUTO_TEST_CASE(late_frames_change_no_answer_and_leave_nothing) {
  check(test::mischief::delays);
}

BOOST_AUTO_TEST_CASE(storms_change_no_answer_and_leave_nothing) {
  check(test::mischief::storm);
}

BOOST_AUTO_TEST_CASE(requests_that_begin_again_give_the_same_answer_and_leave_nothing) {
  check(test::mischief::restarts);
}

BOOST_AUTO_TEST_CASE(scored_texts_that_begin_again_have_the_same_losses) {
  const auto [first, last] = test::seeds(n_seeds);
  std::size_t later_attempts = 0;
  for (const auto* strategy : {"exact", "ordermoe"}) {
    test::disturbed_world world(strategy);
    world.score_texts();
    for (auto seed = first; seed <= last; ++seed) {
      const auto wrong = world.run(test::mischief::restarts, seed);
      BOOST_TEST(wrong.empty(), strategy << ", seed " << seed << ": " << wrong);
      later_attempts += world.later_attempts();
    }
  }
  BOOST_TEST(later_attempts > 0u);
}

BOOST_AUTO_TEST_CASE(requests_that_begin_again_are_not_charged_twice) {
  const auto [first, last] = test::seeds(n_seeds);
  std::size_t later_attempts = 0;
  loss_units spent = 0;
  for (const auto* strategy : {"paper", "ordermoe"}) {
    const test::disturbed_world world(strategy, 20);
    for (auto seed = first; seed <= last; ++seed) {
      const auto wrong = world.run(test::mischief::restarts, seed);
      BOOST_TEST(wrong.empty(), strategy << ", seed " << seed << ": " << wrong);
      later_attempts += world.later_attempts();
      spent += world.spent();
    }
  }
  BOOST_TEST(later_attempts > 0u);
  BOOST_TEST(spent > 0);
}

BOOST_AUTO_TEST_CASE(requests_to_a_pruned_model_that_begin_again_end) {
  const auto [first, last] = test::seeds(n_seeds);
  std::size_t later_attempts = 0;
  test::disturbed_world world("static-pruning");
  world.prune(8);
  for (auto seed = first; seed <= last; ++seed) {
    const auto wrong = world.run(test::mischief::restarts, seed);
    BOOST_TEST(wrong.empty(), "seed " << seed << ": " << wrong);
    later_attempts += world.later_attempts();
  }
  BOOST_TEST(later_attempts > 0u);
}

BOOST_AUTO_TEST_CASE(where_frames_are_lost_each_request_ends_rightly_or_with_its_own_error) {
  const auto [first, last] = test::seeds(n_seeds);
  std::size_t failed = 0;
  for (const auto& strategy : test::exact_strategies()) {
    const test::disturbed_world world(strategy);
    for (auto seed = first; seed <= last; ++seed) {
      const auto wrong = world.run(test::mischief::drops, seed);
      BOOST_TEST(wrong.empty(), strategy << ", seed " << seed << ": " << wrong);
      failed += world.failed();
    }
  }
  BOOST_TEST(failed > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
