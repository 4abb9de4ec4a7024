#include "planning/hindsight/layered_path.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <optional>

#include "config/random.hpp"
#include "test/support/seeds.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

layered_problem drawn_problem(random_stream& random) {
  layered_problem problem;
  const auto n_nodes = 1 + random.below(3), n_steps = 1 + random.below(6);
  problem.start = random.below(n_nodes);
  for (std::size_t i = 0; i < n_steps; ++i) {
    std::vector<step_way> ways;
    for (std::size_t w = 0; w < n_nodes * 3; ++w)
      ways.push_back({static_cast<std::uint8_t>(random.below(n_nodes)),
                      static_cast<std::uint8_t>(random.below(n_nodes)),
                      static_cast<double>(random.below(20)),
                      static_cast<loss_units>(random.below(3) == 0 ? 0 : random.below(15))});
    problem.steps.push_back(std::move(ways));
  }
  problem.budget = static_cast<loss_units>(random.below(40));
  return problem;
}

/// Every way, one after the other.
std::optional<double> enumerated(const layered_problem& problem) {
  std::optional<double> best;
  const auto follow = [&](const auto& self, std::size_t step, std::size_t node, double ns,
                          loss_units loss) -> void {
    if (loss > problem.budget) return;
    if (step == problem.steps.size()) {
      if (!best || ns < *best) best = ns;
      return;
    }
    for (const auto& way : problem.steps[step])
      if (way.from == node) self(self, step + 1, way.to, ns + way.ns, loss + way.loss);
  };
  follow(follow, 0, problem.start, 0, 0);
  return best;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layered_path)

BOOST_AUTO_TEST_CASE(the_fastest_way_within_the_budget_is_that_of_all_ways) {
  const auto range = test::seeds(400);
  std::size_t feasible = 0, limited = 0;
  for (auto seed = range.first; seed <= range.last; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 1);
      auto problem = drawn_problem(random);
      const auto expected = enumerated(problem);
      const auto found = best_layered_path(problem);
      BOOST_REQUIRE(found.has_value() == expected.has_value());
      if (!expected) {
        BOOST_TEST((found.error().code == errc::infeasible));
        continue;
      }
      ++feasible;
      BOOST_TEST(found->is_exact);
      BOOST_TEST(found->ns == *expected);
      BOOST_TEST(found->bound_ns == *expected);
      BOOST_TEST(found->loss <= problem.budget);
      auto more = problem;
      more.budget = unbounded_budget;
      const auto freest = best_layered_path(more);
      BOOST_REQUIRE(freest.has_value());
      limited += freest->ns < found->ns;
    }
  }
  if (range.last - range.first + 1 >= 100) {
    BOOST_TEST(feasible > 50u);
    BOOST_TEST(limited > 20u);
  }
}

BOOST_AUTO_TEST_CASE(with_room_for_few_labels_the_optimum_is_between_bound_and_what_was_found) {
  // With one label the bound is as low as 0.74 of the optimum.
  for (const std::size_t labels : {1, 2}) {
    std::size_t inexact = 0;
    for (std::uint64_t seed = 1; seed <= 400; ++seed) {
      BOOST_TEST_CONTEXT(labels << " labels, seed " << seed) {
        random_stream random(seed, 1);
        auto problem = drawn_problem(random);
        problem.max_labels = labels;
        const auto expected = enumerated(problem);
        const auto found = best_layered_path(problem);
        BOOST_REQUIRE(found.has_value() == expected.has_value());
        if (!expected) continue;
        BOOST_TEST(found->bound_ns <= *expected * (1 + 1e-12));
        if (labels > 1) BOOST_TEST(found->bound_ns >= 0.9 * *expected);
        BOOST_TEST(found->ns >= *expected);
        BOOST_TEST(found->loss <= problem.budget);
        if (found->is_exact) BOOST_TEST(found->ns == *expected);
        inexact += !found->is_exact;
      }
    }
    BOOST_TEST(inexact > 0u);
  }
}

BOOST_AUTO_TEST_CASE(more_budget_never_makes_it_worse) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    random_stream random(seed, 1);
    auto problem = drawn_problem(random);
    double before = std::numeric_limits<double>::infinity();
    for (problem.budget = 0; problem.budget < 60; problem.budget += 3) {
      const auto found = best_layered_path(problem);
      if (!found) {
        BOOST_TEST(std::isinf(before));
        continue;
      }
      BOOST_TEST(found->ns <= before);
      before = found->ns;
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
