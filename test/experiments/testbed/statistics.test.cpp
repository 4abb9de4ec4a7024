#include "bench/experiments/testbed/statistics.hpp"

#include <boost/test/unit_test.hpp>

#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

BOOST_AUTO_TEST_SUITE(statistics)

BOOST_AUTO_TEST_CASE(medians_of_odd_and_even_counts) {
  BOOST_TEST(median({3, 1, 2}) == 2);
  BOOST_TEST(median({4, 1, 2, 3}) == 2.5);
}

BOOST_AUTO_TEST_CASE(intervals_hold_the_median_and_are_the_same_each_time) {
  const std::vector<double> values{1, 2, 3, 4, 5, 6, 7, 8, 9, 100};
  const auto found = over_clusters(values);
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(found->median == 5.5);
  BOOST_TEST(found->low < found->median);
  BOOST_TEST(found->high > found->median);
  // Of ten values the 95 % interval of the median is about the third and the eighth.
  BOOST_TEST(found->low >= 2);
  BOOST_TEST(found->high <= 9.5);
  const auto again = over_clusters(values);
  BOOST_TEST(again->low == found->low);
  BOOST_TEST(again->high == found->high);
}

BOOST_AUTO_TEST_CASE(one_cluster_has_no_interval_and_none_nothing) {
  const auto one = over_clusters({4});
  BOOST_TEST(one->low == 4);
  BOOST_TEST(one->high == 4);
  BOOST_TEST(shown(one) == "4");
  BOOST_TEST(!over_clusters({}).has_value());
  BOOST_TEST(shown(std::nullopt) == "-");
}

BOOST_AUTO_TEST_CASE(rows_of_several_clusters_share_a_cell_and_infeasible_ones_are_counted) {
  const auto& of = *find_experiment("overall");
  std::vector<row> rows;
  for (const std::uint64_t seed : {11, 12, 13})
    rows.push_back(made_row(at_main_budget("paper", seed),
                            {{metric::latency_ms, 100 * static_cast<double>(seed)}}));
  rows.push_back(made_row(at_main_budget("paper", 14), {}));
  rows.back().is_infeasible = true;
  rows.push_back(made_row(at_main_budget("exact", 11, 0), {{metric::latency_ms, 1}}));
  const auto cells = cells_of(of, rows);
  BOOST_REQUIRE(cells.size() == 2u);
  BOOST_TEST(cells[0][metric::latency_ms]->median == 1200);
  BOOST_TEST(cells[0][metric::latency_ms]->n == 3u);
  BOOST_TEST(cells[0].n_infeasible() == 1u);
  BOOST_TEST(cells[1].series == "exact");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
