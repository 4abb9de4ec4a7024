#include "setup/cutting.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

namespace ordermoe::setup {

BOOST_AUTO_TEST_SUITE(cutting)

BOOST_AUTO_TEST_CASE(the_farthest_cut_within_is_found_in_few_trials) {
  for (std::size_t most = 0; most <= 40; ++most)
    for (std::size_t farthest = 0; farthest <= most; ++farthest)
      for (std::size_t first = 0; first <= most; ++first) {
        std::size_t n = 0;
        const auto found = farthest_cut(most, [&](std::size_t cut) -> result<cut_trial> {
          ++n;
          BOOST_REQUIRE((cut >= 1 && cut <= most));
          if (cut > farthest) return cut_trial::beyond;
          return cut < first ? cut_trial::does_not_fit : cut_trial::within;
        });
        BOOST_REQUIRE(found.has_value());
        BOOST_REQUIRE(*found == farthest);
        BOOST_REQUIRE(n <= most_cut_trials(most));
      }
}

BOOST_AUTO_TEST_CASE(what_keeps_a_budget_again_behind_a_cut_that_does_not_is_left_alone) {
  const auto found = farthest_cut(192, [](std::size_t cut) -> result<cut_trial> {
    return cut <= 65 || (cut >= 88 && cut <= 102) ? cut_trial::within : cut_trial::beyond;
  });
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(*found == 65u);
}

BOOST_AUTO_TEST_CASE(what_fails_in_a_trial_ends_the_search) {
  const auto found = farthest_cut(8, [](std::size_t) -> result<cut_trial> {
    return error{errc::interrupted, "interrupted"};
  });
  BOOST_REQUIRE(!found.has_value());
  BOOST_TEST((found.error().code == errc::interrupted));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::setup
