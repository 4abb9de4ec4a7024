#include <boost/test/unit_test.hpp>
#include <cmath>
#include <set>

#include "config/random.hpp"
#include "planning/placement.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

/// Three experts near each other, one alone.
matrix four_experts() {
  matrix similarity(4, 4, 0.1);
  for (std::size_t i = 0; i < 4; ++i) similarity(i, i) = 1;
  const auto set = [&](std::size_t i, std::size_t j, double value) {
    similarity(i, j) = similarity(j, i) = value;
  };
  set(0, 1, 0.8);
  set(0, 2, 0.7);
  set(1, 2, 0.9);
  return similarity;
}

layer_profile with_activation(std::vector<double> activation) {
  layer_profile layer;
  layer.activation = std::move(activation);
  return layer;
}

matrix random_similarity(std::size_t n, random_stream& random) {
  matrix similarity(n, n);
  for (std::size_t i = 0; i < n; ++i) {
    similarity(i, i) = 1;
    for (std::size_t j = 0; j < i; ++j)
      // Coarse values, so that ties occur.
      similarity(i, j) = similarity(j, i) = std::round(random.uniform(-2, 10)) / 10;
  }
  return similarity;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(grouping)

BOOST_AUTO_TEST_CASE(thresholds_fall_from_the_first_layer_to_the_last) {
  const placement_options options;
  BOOST_TEST(layer_threshold(0, 5, options) == 0.9);
  BOOST_TEST(std::abs(layer_threshold(2, 5, options) - 0.7) < 1e-12);
  BOOST_TEST(layer_threshold(4, 5, options) == 0.5);
  BOOST_TEST(layer_threshold(0, 1, options) == 0.9);
}

BOOST_AUTO_TEST_CASE(the_most_activated_expert_leads_and_the_rest_follow_by_similarity) {
  const auto grouping =
      group_layer(with_activation({0.2, 0.4, 0.3, 0.1}), four_experts(), 0.65, {});
  BOOST_REQUIRE(grouping.groups.size() == 2u);
  BOOST_TEST(grouping.groups[0].dominant == 1u);
  BOOST_TEST(grouping.groups[0].members == (std::vector<std::uint32_t>{0, 1, 2}),
             boost::test_tools::per_element());
  BOOST_TEST(grouping.groups[1].dominant == 3u);
  // Means over the group of three: (1 + 0.8 + 0.7) / 3 for expert 0.
  BOOST_TEST(std::abs(grouping.representativeness[0] - 2.5 / 3) < 1e-12);
  BOOST_TEST(std::abs(grouping.representativeness[1] - 2.7 / 3) < 1e-12);
  BOOST_TEST(grouping.representativeness[3] == 1.0);
  BOOST_TEST(std::abs(grouping.importance[1] - (0.5 * 0.4 + 0.5 * 0.9)) < 1e-12);
}

BOOST_AUTO_TEST_CASE(an_expert_joins_the_most_similar_leader_even_if_it_was_found_later) {
  // 0 leads, 1 is similar enough to 0; 2 becomes a leader afterwards and is nearer to 1.
  matrix similarity(3, 3, 0.2);
  for (std::size_t i = 0; i < 3; ++i) similarity(i, i) = 1;
  similarity(0, 1) = similarity(1, 0) = 0.6;
  similarity(1, 2) = similarity(2, 1) = 0.9;
  const auto grouping = group_layer(with_activation({0.5, 0.3, 0.2}), similarity, 0.5, {});
  BOOST_TEST(grouping.group_of == (std::vector<std::uint32_t>{0, 1, 1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(feasible_experts_are_group_members_above_the_threshold) {
  // 0 and 2 are both near to 1 and not to each other.
  matrix similarity(3, 3, 0.1);
  for (std::size_t i = 0; i < 3; ++i) similarity(i, i) = 1;
  similarity(0, 1) = similarity(1, 0) = 0.8;
  similarity(1, 2) = similarity(2, 1) = 0.8;
  const auto grouping = group_layer(with_activation({0.2, 0.6, 0.2}), similarity, 0.7, {});
  BOOST_REQUIRE(grouping.groups.size() == 1u);
  BOOST_TEST(feasible_experts(grouping, similarity, 0) == (std::vector<std::uint32_t>{0, 1}),
             boost::test_tools::per_element());
  BOOST_TEST(feasible_experts(grouping, similarity, 1) == (std::vector<std::uint32_t>{0, 1, 2}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(groups_cover_each_layer_as_the_equations_say) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed);
      const auto n = 1 + random.below(12);
      const auto similarity = random_similarity(n, random);
      std::vector<double> activation;
      for (std::size_t j = 0; j < n; ++j)
        activation.push_back(static_cast<double>(random.below(5)) / 5);
      const double threshold = std::round(random.uniform(2, 9.5)) / 10;
      const auto grouping = group_layer(with_activation(activation), similarity, threshold, {});

      std::vector<int> seen(n, 0);
      std::vector<bool> leads(n, false);
      for (std::size_t g = 0; g < grouping.groups.size(); ++g) {
        leads[grouping.groups[g].dominant] = true;
        for (const auto j : grouping.groups[g].members) {
          ++seen[j];
          BOOST_TEST(grouping.group_of[j] == g);
        }
      }
      for (std::size_t j = 0; j < n; ++j) {
        BOOST_TEST(seen[j] == 1);
        double nearest = -2;
        for (const auto& group : grouping.groups)
          if (group.dominant != j) nearest = std::max(nearest, similarity(j, group.dominant));
        const auto own = grouping.groups[grouping.group_of[j]].dominant;
        if (leads[j]) {
          BOOST_TEST(own == j);
          BOOST_TEST(nearest < threshold);
        } else {
          BOOST_TEST(similarity(j, own) >= threshold);
          BOOST_TEST(similarity(j, own) == nearest);
        }
        // Nobody more activated was left without a leader: eq. (24) in the order of (5).
        if (!leads[j]) {
          bool earlier = false;
          for (const auto& group : grouping.groups) {
            const auto c = group.dominant;
            const bool before =
                activation[c] > activation[j] || (activation[c] == activation[j] && c < j);
            earlier = earlier || (before && similarity(j, c) >= threshold);
          }
          BOOST_TEST(earlier);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_threshold_above_all_similarities_leaves_every_expert_alone) {
  random_stream random(3);
  const auto similarity = random_similarity(6, random);
  matrix below = similarity;
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 6; ++j)
      if (i != j) below(i, j) = std::min(below(i, j), 0.89);
  const auto grouping =
      group_layer(with_activation(std::vector<double>(6, 1.0 / 6)), below, 0.9, {});
  BOOST_TEST(grouping.groups.size() == 6u);
}

BOOST_AUTO_TEST_SUITE_END()
