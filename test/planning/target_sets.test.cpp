#include "planning/target_sets.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>
#include <set>

#include "config/random.hpp"

namespace ordermoe::planning {
namespace {

BOOST_AUTO_TEST_SUITE(target_sets)

BOOST_AUTO_TEST_CASE(a_few_sets_are_all_kept) {
  const std::vector<std::vector<std::uint32_t>> sets{{0, 1}, {1, 2}, {0, 2}};
  const auto made = choose_representatives(sets, std::vector<double>{3, 2, 1}, 3);
  BOOST_TEST(made.kept == (std::vector<std::size_t>{0, 1, 2}), boost::test_tools::per_element());
  BOOST_TEST(made.counts == made.kept, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(frequent_sets_are_kept_and_rare_experts_stay_represented) {
  // One set has half the weight; the others are seen once each.
  random_stream random(3);
  std::set<std::vector<std::uint32_t>> drawn;
  while (drawn.size() < 2000) {
    std::set<std::uint32_t> members;
    while (members.size() < 4) members.insert(static_cast<std::uint32_t>(random.below(60)));
    drawn.insert({members.begin(), members.end()});
  }
  const std::vector<std::vector<std::uint32_t>> sets(drawn.begin(), drawn.end());
  std::vector<double> weights(sets.size(), 1);
  weights[1234] = 2000;
  const auto made = choose_representatives(sets, weights, 64);
  BOOST_TEST(made.kept.size() <= 64u);
  BOOST_TEST(made.kept.size() > 48u);
  BOOST_TEST(std::count(made.kept.begin(), made.kept.end(), 1234) == 1);
  std::vector<double> share(60, 0);
  double total = 0;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    BOOST_TEST_REQUIRE(made.counts[s] < made.kept.size());
    if (s == 1234) continue;
    for (const auto e : sets[made.kept[made.counts[s]]]) share[e] += weights[s];
    total += 4 * weights[s];
  }
  // The sample alone: 63 sets of 4 are 252 experts, about four of each.
  std::size_t n_present = 0;
  for (const double x : share) n_present += x > 0;
  BOOST_TEST(n_present >= 55u);
  for (const double x : share) BOOST_TEST(x / total < 5.0 / 60);
}

BOOST_AUTO_TEST_CASE(a_set_left_out_counts_for_one_that_shares_most_with_it) {
  const std::vector<std::vector<std::uint32_t>> sets{{0, 1, 2}, {3, 4, 5}, {0, 1, 5}, {2, 3, 4}};
  const auto made = choose_representatives(sets, std::vector<double>{10, 10, 1, 1}, 2);
  BOOST_TEST(made.kept == (std::vector<std::size_t>{0, 1}), boost::test_tools::per_element());
  BOOST_TEST(made.counts == (std::vector<std::size_t>{0, 1, 0, 1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace ordermoe::planning
