#include "planning/selection/budget.hpp"

#include <boost/test/unit_test.hpp>

#include "config/random.hpp"

namespace ordermoe::planning {

BOOST_AUTO_TEST_SUITE(budget)

BOOST_AUTO_TEST_CASE(tokens_that_share_a_pool_never_spend_more_than_it_held) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream random(seed, 13);
    const auto total = static_cast<loss_units>(random.below(5'000'000));
    const auto n_tokens = static_cast<std::uint32_t>(1 + random.below(40));
    const double factor = 0.25 * static_cast<double>(1 + random.below(16));
    auto pool = total;
    loss_units spent = 0;
    for (auto left = n_tokens; left > 0; --left) {
      const auto allowance = fair_allowance(pool, left, factor);
      BOOST_TEST_REQUIRE(allowance >= 0, "seed " << seed);
      BOOST_TEST_REQUIRE(allowance <= pool, "seed " << seed);
      BOOST_TEST_REQUIRE((allowance == pool || static_cast<double>(allowance) <=
                                                   factor * static_cast<double>(pool) / left),
                         "seed " << seed);
      const auto loss =
          static_cast<loss_units>(random.below(static_cast<std::uint64_t>(allowance) + 1));
      pool -= loss;
      spent += loss;
    }
    BOOST_TEST_REQUIRE(pool >= 0, "seed " << seed);
    BOOST_TEST_REQUIRE(spent + pool == total, "seed " << seed);
  }
}

BOOST_AUTO_TEST_CASE(tokens_that_spend_all_they_are_allowed_leave_nothing_of_an_even_share) {
  for (const loss_units total : {0, 1, 39, 40, 41, 1'000'003}) {
    auto pool = total;
    for (std::uint32_t left = 40; left > 0; --left) pool -= fair_allowance(pool, left, 1);
    BOOST_TEST(pool == 0);
  }
}

BOOST_AUTO_TEST_CASE(what_a_token_leaves_is_shared_by_those_after_it) {
  BOOST_TEST(fair_allowance(1000, 4, 1) == 250);
  BOOST_TEST(fair_allowance(1000 - 100, 3, 1) == 300);
  BOOST_TEST(fair_allowance(900, 3, 2) == 600);
  BOOST_TEST(fair_allowance(900, 3, 4) == 900);
  BOOST_TEST(fair_allowance(10, 4, 1) == 2);
  BOOST_TEST(fair_allowance(900, 0, 1) == 0);
  BOOST_TEST(fair_allowance(unbounded_budget, 10, 1) == unbounded_budget);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
