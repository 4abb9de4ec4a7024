#include "bench/experiments/testbed/experiment_table.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>

#include "planning/strategies/strategies.hpp"

namespace ordermoe::experiments::testbed::test {

BOOST_AUTO_TEST_SUITE(experiment_table)

BOOST_AUTO_TEST_CASE(no_experiment_has_a_point_twice_and_every_strategy_is_known) {
  for (const auto& of : experiments())
    for (const auto how_much : {scale::whole, scale::quick}) {
      std::set<std::string> keys;
      for (const auto& what : of.points(how_much, 11)) {
        BOOST_TEST(keys.insert(key_of(what)).second, of.name << ": " << key_of(what));
        BOOST_TEST((planning::find_strategy(what.strategy) != nullptr));
      }
      BOOST_TEST(!keys.empty());
    }
}

BOOST_AUTO_TEST_CASE(overall_has_every_strategy_whole_and_quick) {
  for (const auto how_much : {scale::whole, scale::quick}) {
    const auto all = find_experiment("overall")->points(how_much, 11);
    for (const auto& record : planning::strategy_records())
      BOOST_TEST((std::ranges::find(all, record.name, &point::strategy) != all.end()), record.name);
  }
}

BOOST_AUTO_TEST_CASE(quick_points_are_fewer) {
  for (const auto& of : experiments())
    BOOST_TEST(of.points(scale::quick, 11).size() <= of.points(scale::whole, 11).size(), of.name);
}

BOOST_AUTO_TEST_CASE(what_is_swept_has_a_place_and_no_part_in_the_series) {
  const auto& of = *find_experiment("horizon");
  const auto all = of.points(scale::whole, 11);
  BOOST_TEST(series_of(of, all[0]) == series_of(of, all[2]));
  BOOST_TEST(place_name(of.swept, all[0]) == "1");
  BOOST_TEST(*place_on(of.swept, all[2]) == 3);
  point whole = all[0];
  whole.horizon = 0;
  BOOST_TEST(place_name(of.swept, whole) == "all");
  BOOST_TEST(*place_on(of.swept, whole) > 5);
  BOOST_TEST(!place_on(axis::threshold, all[0]).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
