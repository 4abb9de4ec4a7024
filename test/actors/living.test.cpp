#include <boost/test/unit_test.hpp>

#include "test/actors/living_run.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

/// The campaign (`scripts/campaign living`) runs 200 seeds in both clocks.
test::living_counts live(actors::run_mode mode, std::uint64_t n_seeds) {
  test::living_counts counts;
  const auto [first, last] = test::seeds(n_seeds);
  for (auto seed = first; seed <= last; ++seed) {
    const auto wrong = test::living_run(mode, seed).run(counts);
    BOOST_TEST(wrong.empty(), to_string(mode) << ", seed " << seed << ": " << wrong);
  }
  return counts;
}

void check_that_it_lived(const test::living_counts& counts) {
  BOOST_TEST(counts.answered > 0u);
  BOOST_TEST(counts.cancelled > 0u);
  BOOST_TEST(counts.overdue > 0u);
  BOOST_TEST(counts.plans_changed > 0u);
  BOOST_TEST(counts.policies_changed > 0u);
  BOOST_TEST(counts.held > 0u);
  BOOST_TEST(counts.two_plans > 0u);
  BOOST_TEST(counts.statuses > 0u);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(living)

BOOST_AUTO_TEST_CASE(a_service_lives_through_clients_and_changes_in_virtual_time) {
  check_that_it_lived(live(actors::run_mode::emulated, 20));
}

BOOST_AUTO_TEST_CASE(a_service_lives_through_clients_and_changes_on_the_wall_clock) {
  check_that_it_lived(live(actors::run_mode::local, 6));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
