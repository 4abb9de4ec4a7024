#include "model/damage_samples.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <vector>

#include "config/position_buckets.hpp"

namespace {

namespace om = ordermoe::model;
using sample = om::damage_sample;

/// Of one bucket: what was predicted, and so many times as much that it did.
sample one(std::vector<double> predicted, const std::vector<double>& times) {
  sample made(predicted.size());
  for (std::size_t b = 0; b < predicted.size(); ++b) made.divergence[b] = predicted[b] * times[b];
  made.predicted = std::move(predicted);
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(damage_samples)

BOOST_AUTO_TEST_CASE(buckets_double_and_the_last_one_goes_on) {
  using ordermoe::n_position_buckets;
  using ordermoe::position_bucket;
  for (const auto& [position, bucket] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 0}, {1, 1}, {2, 1}, {3, 2}, {6, 2}, {7, 3}, {30, 4}, {31, 5}, {126, 6}, {127, 7}})
    BOOST_TEST(position_bucket(position) == bucket);
  // The last bucket is a whole one.
  BOOST_TEST(n_position_buckets(1) == 1u);
  BOOST_TEST(n_position_buckets(2) == 1u);
  BOOST_TEST(n_position_buckets(3) == 2u);
  BOOST_TEST(n_position_buckets(7) == 3u);
  BOOST_TEST(n_position_buckets(256) == 8u);
  const double known[] = {4, 2};
  BOOST_TEST(ordermoe::at_position(known, 0) == 4);
  BOOST_TEST(ordermoe::at_position(known, 2) == 2);
  BOOST_TEST(ordermoe::at_position(known, 1000) == 2);
  BOOST_TEST(ordermoe::at_position({}, 7) == 1);
}

BOOST_AUTO_TEST_CASE(what_is_known_where_buckets_begin_goes_over_in_proportion) {
  const double known[] = {8, 4, 2, 1};
  for (const auto& [position, expected] : std::vector<std::pair<std::size_t, double>>{
           {0, 8}, {1, 4}, {2, 3}, {3, 2}, {5, 1.5}, {6, 1.25}, {7, 1}, {8, 1}, {1000, 1}})
    BOOST_TEST(ordermoe::between_buckets(known, position) == expected);
  BOOST_TEST(ordermoe::between_buckets({}, 7) == 1);
}

// Layers of 0.01, 0.3 and nothing, positions of 8, 3 and 1 times as much.
BOOST_AUTO_TEST_CASE(factors_and_damage_are_found_where_they_are_so) {
  const std::vector<double> factors{8, 3, 1};
  std::vector<std::vector<sample>> layers;
  for (const double damage : {0.01, 0.3, 0.0}) {
    auto& layer = layers.emplace_back();
    for (const double n : {1.0, 2.0}) {
      auto times = factors;
      for (auto& each : times) each *= damage;
      // Each layer loses something else where.
      layer.push_back(one({10 * n, 20 * n, (damage > 0.1 ? 40 : 7) * n}, times));
    }
  }
  const auto found = om::position_factors(layers);
  BOOST_TEST_REQUIRE(found.size() == 3u);
  for (std::size_t b = 0; b < 3; ++b) BOOST_TEST(std::abs(found[b] / factors[b] - 1) < 0.05);
  const auto first = om::conclude(layers[0], factors, 10);
  BOOST_TEST(std::abs(first.coefficient - 0.01) < 1e-12);
  BOOST_TEST(first.standard_error < 1e-12);
  BOOST_TEST(std::abs(first.mean_divergence - first.coefficient * first.mean_predicted) < 1e-12);
  BOOST_TEST(om::conclude(layers[2], factors, 10).coefficient == 0);
  // Without them its damage would be that of its texts' length.
  BOOST_TEST(om::conclude(layers[0], std::vector<double>(3, 1), 10).coefficient > 0.02);
}

BOOST_AUTO_TEST_CASE(a_bucket_of_which_little_is_known_is_as_the_others_are) {
  const std::vector<std::vector<sample>> layers{{one({1e-6, 100, 100}, {1000, 1, 1})}};
  const auto found = om::position_factors(layers);
  BOOST_TEST(found[0] < 2.0);
  BOOST_TEST(found[0] > 0.5);
}

BOOST_AUTO_TEST_CASE(what_does_nothing_says_nothing_of_positions) {
  const std::vector<std::vector<sample>> layers{{one({1, 1}, {0, 0})}};
  BOOST_TEST(om::position_factors(layers) == (std::vector<double>{1, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(om::position_factors({}) == (std::vector<double>{1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
