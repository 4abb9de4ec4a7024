#include "bench/experiments/testbed/claim.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

namespace {

const claim& claim_that(std::string_view experiment, std::string_view says) {
  const auto found = std::ranges::find_if(
      claims(), [&](const claim& one) { return one.experiment == experiment && one.says == says; });
  BOOST_REQUIRE((found != claims().end()));
  return *found;
}

/// Latencies of two strategies on as many clusters.
std::vector<row> two(const char* a, double percent_a, const std::vector<double>& of_a,
                     const char* b, double percent_b, const std::vector<double>& of_b) {
  std::vector<row> rows;
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    rows.push_back(made_row(at_main_budget(a, 11 + i, percent_a), {{metric::latency_ms, of_a[i]}}));
    rows.push_back(made_row(at_main_budget(b, 11 + i, percent_b), {{metric::latency_ms, of_b[i]}}));
  }
  return rows;
}

constexpr auto half_of_edgeshard = "Latency is below EdgeShard's (published: about half).";

}  // namespace

BOOST_AUTO_TEST_SUITE(claim)

BOOST_AUTO_TEST_CASE(an_order_on_every_cluster_agrees_and_the_number_is_held_against_the_papers) {
  const auto& about = claim_that("overall", half_of_edgeshard);
  const auto half =
      judge(about, "paper", two("paper", 7, {50, 51, 49}, "layer-shards", 0, {100, 100, 100}));
  BOOST_TEST((half.ordering == verdict::agrees));
  BOOST_TEST(half.number_agrees.value());
  BOOST_TEST(half.value->median == 0.5);
  const auto little =
      judge(about, "paper", two("paper", 7, {90, 91, 92}, "layer-shards", 0, {100, 100, 100}));
  BOOST_TEST((little.ordering == verdict::agrees));
  BOOST_TEST(!little.number_agrees.value());
}

BOOST_AUTO_TEST_CASE(the_other_order_disagrees_and_both_orders_leave_it_open) {
  const auto& about = claim_that("overall", half_of_edgeshard);
  const auto slower =
      judge(about, "paper", two("paper", 7, {150, 160, 140}, "layer-shards", 0, {100, 100, 100}));
  BOOST_TEST((slower.ordering == verdict::disagrees));
  BOOST_TEST(slower.why == about.why_not);
  const auto both =
      judge(about, "paper", two("paper", 7, {50, 99, 150}, "layer-shards", 0, {100, 100, 100}));
  BOOST_TEST((both.ordering == verdict::undecided));
  const auto level = judge(about, "paper",
                           two("paper", 7, {99.5, 99.6, 99.5}, "layer-shards", 0, {100, 100, 100}));
  BOOST_TEST((level.ordering == verdict::undecided));
}

BOOST_AUTO_TEST_CASE(values_are_compared_on_the_same_cluster_alone) {
  const auto& about = claim_that("overall", half_of_edgeshard);
  auto rows = two("paper", 7, {50, 500}, "layer-shards", 0, {100, 1000});
  rows[2].is_infeasible = true;
  rows[2][metric::latency_ms].reset();
  const auto found = judge(about, "paper", rows);
  BOOST_TEST(found.value->n == 1u);
  BOOST_TEST(found.value->median == 0.5);
}

BOOST_AUTO_TEST_CASE(other_budgets_and_variants_are_not_what_is_judged) {
  const auto& about = claim_that("overall", half_of_edgeshard);
  auto rows = two("paper", 1, {50}, "layer-shards", 0, {100});
  BOOST_TEST((judge(about, "paper", rows).ordering == verdict::unmeasured));
  rows = two("paper", 7, {50}, "layer-shards", 0, {100});
  rows[0].what.without = "redundancy";
  BOOST_TEST((judge(about, "paper", rows).ordering == verdict::unmeasured));
  rows[0].what.without.clear();
  rows[0].what.horizon = 1;
  BOOST_TEST((judge(about, "paper", rows).ordering == verdict::unmeasured));
}

BOOST_AUTO_TEST_CASE(the_best_rival_is_the_largest_where_more_is_better) {
  const auto& about = claim_that("overall", "Throughput is the highest.");
  std::vector<row> rows{
      made_row(at_main_budget("paper", 11), {{metric::throughput_tokens_per_s, 150}}),
      made_row(at_main_budget("random", 11, 0), {{metric::throughput_tokens_per_s, 50}}),
      made_row(at_main_budget("layer-shards", 11, 0), {{metric::throughput_tokens_per_s, 100}}),
      // Nothing that the paper compares with.
      made_row(at_main_budget("shard-chains", 11, 0), {{metric::throughput_tokens_per_s, 900}})};
  const auto found = judge(about, "paper", rows);
  BOOST_TEST(found.value->median == 1.5);
  BOOST_TEST((found.ordering == verdict::agrees));
  // Of ours every other counts.
  rows.push_back(
      made_row(at_main_budget("ordermoe", 11), {{metric::throughput_tokens_per_s, 800}}));
  // But for what lost more than the budget.
  rows.push_back(
      made_row(at_main_budget("local-skip", 11, 0),
               {{metric::throughput_tokens_per_s, 2000}, {metric::increase_percent, 21}}));
  const auto ours = judge(about, "ordermoe", rows);
  BOOST_TEST(ours.value->median == 800.0 / 900);
  BOOST_TEST((ours.ordering == verdict::disagrees));
  // What lost more itself is not compared.
  auto beyond = rows;
  beyond[4][metric::increase_percent] = 7.5;
  BOOST_TEST((judge(about, "ordermoe", beyond).ordering == verdict::unmeasured));
  // Whatever it lost with a smaller budget.
  rows.push_back(made_row(at_main_budget("drop", 11, 1), {{metric::throughput_tokens_per_s, 400},
                                                          {metric::increase_percent, 0.8}}));
  rows.push_back(made_row(at_main_budget("drop", 11), {{metric::throughput_tokens_per_s, 3000},
                                                       {metric::increase_percent, 9}}));
  BOOST_TEST(judge(about, "ordermoe", rows).value->median == 800.0 / 900);
}

BOOST_AUTO_TEST_CASE(local_shares_are_added_up) {
  const auto& about =
      claim_that("execution", "More than three quarters of expert calls run where the token is.");
  const std::vector<row> rows{made_row(
      at_main_budget("paper", 11), {{metric::local_exact, 0.5}, {metric::local_substitute, 0.3}})};
  const auto found = judge(about, "paper", rows);
  BOOST_TEST(found.value->median == 0.8);
  BOOST_TEST((found.ordering == verdict::agrees));
  BOOST_TEST(found.number_agrees.value());
}

BOOST_AUTO_TEST_CASE(the_costliest_part_is_found_among_all) {
  const auto& about =
      claim_that("ablation", "No other part costs as much latency when it is missing.");
  auto of = [](const char* without, std::optional<std::size_t> horizon, double percent,
               double latency) {
    auto what = at_main_budget("paper", 11, percent);
    what.without = without;
    what.horizon = horizon;
    return made_row(what, {{metric::latency_ms, latency}});
  };
  std::vector<row> rows{of("", {}, 7, 100), of("", 1, 7, 120), of("redundancy", {}, 7, 150),
                        of("", {}, 0, 180)};
  // One of them was not measured: it may be the worst.
  BOOST_TEST((judge(about, "paper", rows).ordering == verdict::unmeasured));
  rows.push_back(of("dispersion", {}, 7, 110));
  BOOST_TEST(judge(about, "paper", rows).value->median == 1.2);
  rows[2][metric::latency_ms] = 360;
  const auto found = judge(about, "paper", rows);
  BOOST_TEST(found.value->median == 0.5);
  BOOST_TEST((found.ordering == verdict::disagrees));
}

BOOST_AUTO_TEST_CASE(every_rule_says_from_where_on_it_agrees) {
  const auto rule = [](const char* experiment, const char* says) {
    return rule_of(claim_that(experiment, says));
  };
  BOOST_TEST(rule("overall", half_of_edgeshard) == "0.99 or less");
  BOOST_TEST(rule("overall", "Throughput is the highest.") == "1.01 or more");
  BOOST_TEST(rule("horizon", "Beyond three layers latency stays.") == "0.97 to 1.03");
  // Those that it is compared with get slower from where it gets faster.
  BOOST_TEST(rule("servers", "So does MoE^2.") == "1.01 or more");
  BOOST_TEST(rule("servers", "OrderMoE gets faster.") == "0.99 or less");
}

BOOST_AUTO_TEST_CASE(fixed_thresholds_are_a_curve) {
  const auto& about =
      claim_that("thresholds",
                 "A threshold that falls with depth is faster at the same loss than fixed ones.");
  auto of = [](std::optional<double> threshold, double increase, double latency) {
    auto what = at_main_budget("paper", 11);
    what.threshold = threshold;
    return made_row(what, {{metric::increase_percent, increase}, {metric::latency_ms, latency}});
  };
  const std::vector<row> rows{of({}, 3, 75), of(0.5, 4, 100), of(0.9, 2, 200)};
  BOOST_TEST(judge(about, "paper", rows).value->median == 0.5);
}

BOOST_AUTO_TEST_CASE(growth_is_held_against_a_rivals) {
  const auto& about = claim_that("load", "It grows less than EdgeShard's.");
  auto of = [](const char* strategy, double percent, double rate, double latency) {
    auto what = at_main_budget(strategy, 11, percent);
    what.rate = rate;
    return made_row(what, {{metric::latency_ms, latency}});
  };
  const std::vector<row> rows{of("paper", 7, 1, 100), of("paper", 7, 8, 120),
                              of("layer-shards", 0, 1, 50), of("layer-shards", 0, 8, 100)};
  const auto found = judge(about, "paper", rows);
  BOOST_TEST(found.value->median == 0.6);
  BOOST_TEST((found.ordering == verdict::agrees));
}

BOOST_AUTO_TEST_CASE(where_few_servers_are_infeasible_growth_begins_at_the_first_that_are_not) {
  const auto& about = claim_that("servers", "EdgeShard gets slower from few servers to sixteen.");
  auto of = [](std::size_t servers, double latency) {
    auto what = at_main_budget("layer-shards", 11, 0);
    what.n_servers = servers;
    return made_row(what, {{metric::latency_ms, latency}});
  };
  std::vector<row> rows{of(4, 50), of(8, 100), of(16, 110)};
  rows[0].is_infeasible = true;
  rows[0][metric::latency_ms].reset();
  BOOST_TEST(judge(about, "paper", rows).value->median == 1.1);
}

BOOST_AUTO_TEST_CASE(every_claim_names_an_experiment_and_columns_that_it_shows) {
  for (const auto& one : claims()) {
    const auto* of = find_experiment(one.experiment);
    BOOST_REQUIRE((of != nullptr));
    BOOST_TEST((std::ranges::find(of->columns, one.of) != of->columns.end()), one.says);
    BOOST_TEST(!one.why_so.empty());
    BOOST_TEST(!one.why_not.empty());
  }
}

BOOST_AUTO_TEST_CASE(every_claim_can_be_judged_by_the_points_of_its_experiment_whole_and_quick) {
  for (const auto how_much : {scale::whole, scale::quick})
    for (const auto& one : claims()) {
      std::vector<row> rows;
      for (const auto& what : find_experiment(one.experiment)->points(how_much, 11)) {
        rows.push_back(made_row(what, {}));
        for (auto& value : rows.back().values) value = 1.0;
      }
      BOOST_TEST(judge(one, "paper", rows).value.has_value(), one.says);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
