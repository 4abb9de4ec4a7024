#include "planning/strategies/measured_activation.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "planning/placement.hpp"
#include "planning/strategies/adaptation.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

using experts = std::vector<std::uint32_t>;
constexpr std::int64_t second_ns = 1'000'000'000;

/// Each of a layer's sets as often as it says, of 1,000,000 rows.
measured_activation measured_as(const std::vector<std::vector<measured_set>>& sets,
                                std::size_t n_experts) {
  measured_activation made;
  for (const auto& layer : sets) {
    std::vector<double> shares(layer.empty() ? 0 : n_experts);
    for (const auto& set : layer)
      for (const auto expert : set.experts)
        shares[expert] += set.share() / static_cast<double>(set.experts.size());
    made.rows.push_back(layer.empty() ? 0 : 1e6);
    made.shares.push_back(std::move(shares));
    made.sets.push_back(layer);
  }
  return made;
}

/// The profile's own sets under other frequencies, by layer.
std::vector<std::vector<measured_set>> other_frequencies(const profile& from, std::uint64_t seed) {
  random_stream draws(seed);
  std::vector<std::vector<measured_set>> made;
  for (const auto& layer : from.layers) {
    std::vector<double> shares;
    for (const auto& set : layer.sets) shares.push_back(set.probability * (0.05 + draws.unit()));
    const auto total = std::accumulate(shares.begin(), shares.end(), 0.0);
    auto& sets = made.emplace_back();
    std::uint32_t left = whole_share;
    for (std::size_t s = 0; s < shares.size(); ++s) {
      const auto share = static_cast<std::uint32_t>(shares[s] / total * whole_share);
      if (share == 0) continue;
      sets.push_back({layer.sets[s].experts, share});
      left -= share;
    }
    sets.front().millionths += left;
  }
  return made;
}

double frequency_of(const layer_profile& layer, const experts& set) {
  for (const auto& each : layer.sets)
    if (each.experts == set) return each.probability;
  return 0;
}

/// How often a position has each set of a layer, if it begins as layer 0 says and follows the transitions.
std::vector<std::vector<double>> visits_of(const profile& content) {
  std::vector<std::vector<double>> visits(content.n_layers);
  for (const auto& set : content.layers[0].sets) visits[0].push_back(set.probability);
  for (std::size_t l = 0; l + 1 < content.n_layers; ++l) {
    const auto& steps = content.layers[l].set_transition;
    visits[l + 1].assign(steps.columns, 0);
    for (std::size_t r = 0; r < steps.rows; ++r)
      for (std::size_t c = 0; c < steps.columns; ++c)
        visits[l + 1][c] += visits[l][r] * steps(r, c);
  }
  return visits;
}

void check_valid(const profile& content) {
  const auto valid = validate(content);
  BOOST_REQUIRE_MESSAGE(valid.has_value(), (valid ? "" : valid.error().message));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(measured_activations)

BOOST_AUTO_TEST_CASE(a_row_counts_half_after_every_half_life_however_many_come_after_it) {
  activation_statistics seen(1, 2, 1, 10);
  BOOST_TEST(seen.shares(0).empty());
  BOOST_TEST(seen.now().sets[0].empty());
  seen.add(0, experts(10, 0));
  BOOST_TEST(seen.shares(0) == (std::vector<double>{1, 0}), boost::test_tools::per_element());
  seen.fade_to(10 * second_ns);
  seen.add(0, experts(10, 1));
  // Of a time that is over, and of the same.
  seen.fade_to(5 * second_ns);
  seen.fade_to(10 * second_ns);
  BOOST_TEST(seen.shares(0)[0] == 1.0 / 3, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(seen.rows(0) == 15);
  BOOST_TEST(seen.rows_seen() == 20u);
  const auto told = seen.now();
  BOOST_REQUIRE_EQUAL(told.sets[0].size(), 2u);
  BOOST_TEST((told.sets[0][0] == measured_set{{1}, 666'667}));
  BOOST_TEST((told.sets[0][1] == measured_set{{0}, 333'333}));
  // A row that comes alone is one, and those before it none the less old.
  seen.fade_to(40 * second_ns);
  seen.add(0, experts{0});
  BOOST_TEST(seen.rows(0) == 15.0 / 8 + 1);
  BOOST_TEST(seen.shares(0)[1] == 10.0 / 8 / (15.0 / 8 + 1), boost::test_tools::tolerance(1e-12));
}

BOOST_AUTO_TEST_CASE(what_nobody_chooses_for_long_is_forgotten) {
  activation_statistics seen(2, 3, 1, 60);
  seen.add(0, experts{0, 0, 0, 1});
  seen.add(1, experts{2, 2, 2, 1});
  seen.add_steps(1, experts{0, 2, 0, 2, 0, 2, 1, 1});
  const auto before = seen.now();
  seen.fade_to(20 * 60 * second_ns);
  auto told = seen.now();
  BOOST_TEST(told.rows[0] == std::exp2(-18), boost::test_tools::tolerance(1e-12));
  BOOST_TEST(told.step_rows[0] == std::exp2(-18), boost::test_tools::tolerance(1e-12));
  BOOST_TEST((told.shares == before.shares));
  BOOST_TEST((told.sets == before.sets));
  BOOST_TEST((told.steps == before.steps));
  BOOST_TEST(seen.least_rows() == told.least_rows());
  // 2^-20 of four rows is less than counts as anything; a hundred years are more than numbers can tell.
  for (const auto later : {std::int64_t{23 * 60}, std::int64_t{100 * 366} * 86'400}) {
    seen.fade_to(later * second_ns);
    told = seen.now();
    BOOST_TEST(told.rows == (std::vector<double>{0, 0}), boost::test_tools::per_element());
    for (std::size_t l = 0; l < 2; ++l) {
      BOOST_TEST(told.shares[l].empty());
      BOOST_TEST(told.sets[l].empty());
    }
    const auto text = activation_json(told);
    BOOST_TEST(parse_activation(text, "here", 2, 3, 1).has_value());
  }
  // It counts on from there.
  seen.add(0, experts{1});
  BOOST_TEST(seen.rows(0) == 1, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(a_weight_at_an_age_is_a_power_of_one_half) {
  BOOST_TEST(weight_at_age(0, 10) == 1);
  BOOST_TEST(weight_at_age(-second_ns, 10) == 1);
  BOOST_TEST(weight_at_age(10 * second_ns, 10) == 0.5);
  BOOST_TEST(weight_at_age(30 * second_ns, 10) == 0.125);
  BOOST_TEST(weight_at_age(second_ns, std::numeric_limits<double>::infinity()) == 1);
  BOOST_TEST(weight_at_age(std::numeric_limits<std::int64_t>::max(), 10) == 0);
  random_stream draws(5);
  for (int i = 0; i < 100; ++i) {
    const auto a = static_cast<std::int64_t>(draws.below(100'000'000'000)),
               b = static_cast<std::int64_t>(draws.below(100'000'000'000));
    BOOST_TEST(weight_at_age(a, 7) * weight_at_age(b, 7) == weight_at_age(a + b, 7),
               boost::test_tools::tolerance(1e-12));
  }
}

BOOST_AUTO_TEST_CASE(counts_are_the_sums_of_weights_whenever_rows_came) {
  // Half-lives from some rows to so short that the numbers are scaled many times.
  for (const double half_life_s : {1e6, 50.0, 0.4}) {
    BOOST_TEST_CONTEXT("half-life " << half_life_s) {
      random_stream draws(11);
      activation_statistics seen(2, 4, 2, half_life_s);
      struct one {
        std::int64_t at_ns = 0;
        experts here, next;
      };
      std::vector<one> rows;
      std::int64_t now_ns = 0;
      for (int i = 0; i < 400; ++i) {
        now_ns += static_cast<std::int64_t>(draws.below(2 * second_ns));
        const auto a = static_cast<std::uint32_t>(draws.below(3)),
                   b = static_cast<std::uint32_t>(draws.below(3));
        rows.push_back({now_ns, {a, a + 1}, {b, b + 1}});
        seen.fade_to(now_ns);
        seen.add(0, rows.back().here);
        seen.add(1, rows.back().next);
        seen.add_steps(1, experts{a, a + 1, b, b + 1});
      }
      now_ns += second_ns / 3;
      seen.fade_to(now_ns);
      const auto told = seen.now();
      double all = 0, of_expert = 0, of_set = 0, of_step = 0;
      for (const auto& row : rows) {
        const auto weight =
            std::exp2(-static_cast<double>(now_ns - row.at_ns) * 1e-9 / half_life_s);
        all += weight;
        of_expert += std::ranges::count(row.here, 1u) > 0 ? weight : 0;
        of_set += row.here == experts{0, 1} ? weight : 0;
        of_step += row.here == experts{0, 1} && row.next == experts{1, 2} ? weight : 0;
      }
      const auto near = boost::test_tools::tolerance(1e-9);
      BOOST_TEST(told.rows[0] == all, near);
      BOOST_TEST(told.step_rows[0] == all, near);
      BOOST_TEST(seen.least_rows() == all, near);
      BOOST_TEST(told.shares[0][1] == of_expert / (2 * all), near);
      const auto set = std::ranges::find(told.sets[0], experts{0, 1}, &measured_set::experts);
      BOOST_TEST(std::abs((set == told.sets[0].end() ? 0 : set->share()) - of_set / all) < 3e-6);
      double step_share = 0;
      for (const auto& step : told.steps[0])
        if (step.from == experts{0, 1} && step.to == experts{1, 2})
          step_share = static_cast<double>(step.millionths) / whole_share;
      BOOST_TEST(std::abs(step_share - of_step / all) < 3e-6);
    }
  }
}

namespace {

/// Counts of rows at random times, up to one.
activation_statistics random_counts(std::uint64_t seed, std::int64_t until_ns, double half_life_s) {
  random_stream draws(seed);
  activation_statistics seen(2, 4, 2, half_life_s);
  for (std::int64_t now_ns = 0;; now_ns += static_cast<std::int64_t>(draws.below(second_ns))) {
    if (now_ns > until_ns) break;
    const auto a = static_cast<std::uint32_t>(draws.below(3)),
               b = static_cast<std::uint32_t>(draws.below(3));
    seen.fade_to(now_ns);
    seen.add(0, experts{a, a + 1});
    seen.add(1, experts{b, b + 1});
    seen.add_steps(1, experts{a, a + 1, b, b + 1});
  }
  seen.fade_to(until_ns);
  return seen;
}

/// But for rounding, where shares are told in millionths `n` times.
void check_same(const measured_activation& a, const measured_activation& b, std::uint32_t n = 1) {
  BOOST_REQUIRE_EQUAL(a.rows.size(), b.rows.size());
  for (std::size_t l = 0; l < a.rows.size(); ++l) {
    BOOST_TEST_CONTEXT("layer " << l) {
      BOOST_TEST(a.rows[l] == b.rows[l], boost::test_tools::tolerance(1e-9));
      BOOST_REQUIRE_EQUAL(a.shares[l].size(), b.shares[l].size());
      for (std::size_t e = 0; e < a.shares[l].size(); ++e)
        BOOST_TEST(std::abs(a.shares[l][e] - b.shares[l][e]) < 1e-9);
      BOOST_REQUIRE_EQUAL(a.sets[l].size(), b.sets[l].size());
      for (const auto& set : a.sets[l]) {
        const auto other = std::ranges::find(b.sets[l], set.experts, &measured_set::experts);
        BOOST_REQUIRE(other != b.sets[l].end());
        // What rounding leaves goes to the most frequent: up to one for each other set.
        BOOST_TEST(std::abs(set.share() - other->share()) <=
                   n * 1e-6 * static_cast<double>(a.sets[l].size()) + 1e-12);
      }
      BOOST_REQUIRE_EQUAL(a.steps.size(), b.steps.size());
      if (a.steps.empty()) continue;
      BOOST_TEST(a.step_rows[l] == b.step_rows[l], boost::test_tools::tolerance(1e-9));
      BOOST_REQUIRE_EQUAL(a.steps[l].size(), b.steps[l].size());
      for (const auto& step : a.steps[l]) {
        const auto same = [&](const auto& each) {
          return each.from == step.from && each.to == step.to;
        };
        const auto other = std::ranges::find_if(b.steps[l], same);
        BOOST_REQUIRE(other != b.steps[l].end());
        BOOST_TEST(std::abs(static_cast<double>(step.millionths) - other->millionths) <= 2.0 * n);
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(fading_twice_is_fading_once) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream draws(seed);
      auto once = random_counts(seed, 30 * second_ns, 20);
      auto often = once;
      const auto told = once.now();
      const auto first = static_cast<std::int64_t>(draws.below(100 * second_ns)),
                 second = static_cast<std::int64_t>(draws.below(100 * second_ns));
      for (int i = 1; i <= 7; ++i) often.fade_to(30 * second_ns + (first + second) * i / 7);
      once.fade_to(30 * second_ns + first + second);
      BOOST_TEST((often.now() == once.now()));
      // And so does what was told.
      const auto twice = faded(faded(told, weight_at_age(first, 20)), weight_at_age(second, 20));
      check_same(twice, faded(told, weight_at_age(first + second, 20)), 0);
      check_same(twice, once.now());
      // What is kept goes on as if it had never been away.
      activation_statistics again(2, 4, 2, 20);
      again.fade_to(5 * second_ns);
      again.restore(faded(told, weight_at_age(first, 20)));
      again.fade_to(5 * second_ns + second);
      check_same(again.now(), once.now());
    }
  }
}

BOOST_AUTO_TEST_CASE(counts_of_several_servers_are_weighed_at_one_instant_in_any_order) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      // They tell one after the other, the last at 12 s.
      constexpr double half_life_s = 3;
      const std::vector<std::int64_t> told_at{4 * second_ns, 9 * second_ns, 12 * second_ns};
      std::vector<measured_activation> parts;
      for (std::size_t m = 0; m < told_at.size(); ++m) {
        const auto of_one = random_counts(10 * seed + m, told_at[m], half_life_s);
        parts.push_back(
            faded(of_one.now(), weight_at_age(told_at.back() - told_at[m], half_life_s)));
      }
      const auto all = sum_of(parts, 2, 4);
      // By hand: each server's rows at the last instant.
      double rows = 0;
      std::vector<double> counts(4);
      for (std::size_t m = 0; m < told_at.size(); ++m) {
        auto of_one = random_counts(10 * seed + m, told_at[m], half_life_s);
        of_one.fade_to(told_at.back());
        rows += of_one.rows(0);
        for (std::size_t e = 0; e < counts.size(); ++e)
          counts[e] += of_one.rows(0) * of_one.shares(0)[e];
      }
      BOOST_TEST(all.rows[0] == rows, boost::test_tools::tolerance(1e-9));
      for (std::size_t e = 0; e < counts.size(); ++e)
        BOOST_TEST(all.shares[0][e] == counts[e] / rows, boost::test_tools::tolerance(1e-9));
      std::vector<std::size_t> order{0, 1, 2};
      while (std::ranges::next_permutation(order).found) {
        std::vector<measured_activation> other;
        for (const auto m : order) other.push_back(parts[m]);
        check_same(sum_of(other, 2, 4), all);
        const auto two = sum_of(std::span(other).first(2), 2, 4);
        check_same(sum_of(std::vector{two, other[2]}, 2, 4), all, 2);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_server_with_few_rows_forgets_as_fast_as_one_with_many) {
  activation_statistics few(1, 2, 1, 10), many(1, 2, 1, 10);
  few.add(0, experts(10, 0));
  many.add(0, experts(10'000, 0));
  // From now on all of them choose the other.
  for (std::int64_t s = 1; s <= 30; ++s) {
    for (auto* each : {&few, &many}) each->fade_to(s * second_ns);
    few.add(0, experts(1, 1));
    many.add(0, experts(1'000, 1));
  }
  BOOST_TEST(few.shares(0)[0] == many.shares(0)[0], boost::test_tools::tolerance(1e-9));
  BOOST_TEST(many.rows(0) / few.rows(0) == 1000, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(shares_are_known_as_well_as_by_so_many_rows_and_better) {
  // A row a second, of which each chooses expert 0 with probability 0.3.
  constexpr double share = 0.3, half_life_s = 60;
  constexpr int n_trials = 4000, n_rows = 600;
  random_stream draws(17);
  double squares = 0, weight = 0;
  for (int trial = 0; trial < n_trials; ++trial) {
    activation_statistics seen(1, 2, 1, half_life_s);
    for (int row = 0; row < n_rows; ++row) {
      seen.fade_to(row * second_ns);
      seen.add(0, experts{draws.unit() < share ? 0u : 1u});
    }
    weight = seen.rows(0);
    const auto off = seen.shares(0)[0] - share;
    squares += off * off;
  }
  const auto of_so_many_rows = share * (1 - share) / weight;
  const auto found = squares / n_trials;
  BOOST_TEST(found < of_so_many_rows);
  // Of twice as many; the mean of 4,000 squares is off by 2.2 % in a standard deviation.
  BOOST_TEST(found == of_so_many_rows / 2, boost::test_tools::tolerance(0.09));
}

BOOST_AUTO_TEST_CASE(what_rows_choose_together_is_counted_and_not_its_experts_alone) {
  activation_statistics seen(2, 4, 2, 1e12);
  seen.add(1, experts{0, 1, 2, 3, 0, 1, 2, 3});
  activation_statistics other(2, 4, 2, 1e12);
  other.add(1, experts{0, 2, 1, 3, 0, 2, 1, 3});
  BOOST_TEST((seen.now().shares == other.now().shares));
  BOOST_TEST(
      (seen.now().sets[1] == std::vector<measured_set>{{{0, 1}, 500'000}, {{2, 3}, 500'000}}));
  BOOST_TEST(
      (other.now().sets[1] == std::vector<measured_set>{{{0, 2}, 500'000}, {{1, 3}, 500'000}}));
  BOOST_TEST(seen.now().sets[0].empty());
  BOOST_TEST(seen.now().least_rows() == 0);
}

BOOST_AUTO_TEST_CASE(where_sets_are_too_many_frequent_ones_are_known_and_all_rows_count) {
  constexpr std::size_t n_experts = 64, top_k = 4, n_rows = 20'000;
  activation_statistics seen(1, n_experts, top_k, 1e12);
  random_stream draws(3);
  const experts often{1, 5, 9, 60};
  for (std::size_t row = 0; row < n_rows; ++row) {
    experts chosen = often;
    if (row % 10 != 0) {
      chosen.clear();
      while (chosen.size() < top_k) {
        const auto expert = static_cast<std::uint32_t>(draws.below(n_experts));
        if (std::ranges::find(chosen, expert) == chosen.end()) chosen.push_back(expert);
      }
      std::ranges::sort(chosen);
    }
    seen.add(0, chosen);
  }
  const auto told = seen.now();
  BOOST_TEST(told.rows[0] == n_rows, boost::test_tools::tolerance(1e-6));
  BOOST_REQUIRE_LE(told.sets[0].size(), most_told_sets);
  const auto& first = told.sets[0].front();
  BOOST_TEST(first.experts == often, boost::test_tools::per_element());
  // A tenth of the rows, and what it stands for of the others.
  BOOST_TEST(first.share() >= 0.1);
  BOOST_TEST(first.share() < 0.15);
  std::uint64_t sum = 0;
  for (const auto& set : told.sets[0]) sum += set.millionths;
  BOOST_TEST(sum == whole_share);
}

BOOST_AUTO_TEST_CASE(rows_at_several_servers_are_their_sum) {
  activation_statistics one(2, 3, 2, 1e12), other(2, 3, 2, 1e12);
  one.add(0, experts{0, 1, 0, 2});
  other.add(0, experts{0, 1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2});
  const std::vector<measured_activation> parts{one.now(), other.now()};
  const auto all = sum_of(parts, 2, 3);
  BOOST_TEST(all.rows == (std::vector<double>{8, 0}), boost::test_tools::per_element());
  BOOST_TEST(all.shares[0] == (std::vector<double>{5.0 / 16, 7.0 / 16, 4.0 / 16}),
             boost::test_tools::per_element());
  BOOST_TEST((all.sets[0] ==
              std::vector<measured_set>{{{0, 1}, 500'000}, {{1, 2}, 375'000}, {{0, 2}, 125'000}}));
  BOOST_TEST(all.shares[1].empty());
  BOOST_TEST(all.sets[1].empty());
  BOOST_TEST(all.least_rows() == 0);
  BOOST_TEST(sum_of({}, 2, 3).rows.size() == 2u);

  profile expected;
  expected.n_layers = 2;
  expected.layers.resize(2);
  for (auto& layer : expected.layers) layer.activation = {0.5, 0.25, 0.25};
  const auto moved = moved_shares(expected, all);
  BOOST_TEST(moved[0] == 0.1875, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(moved[1] == 0);
}

BOOST_AUTO_TEST_CASE(a_profile_expects_what_was_measured_at_every_layer) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      const auto old = random_profile(4, 6, 2, seed);
      const auto sets = other_frequencies(old, seed);
      const auto made = with_measured_activation(old, measured_as(sets, old.n_experts));
      check_valid(made);
      const auto visits = visits_of(made);
      for (std::size_t l = 0; l < old.n_layers; ++l) {
        for (const auto& set : sets[l])
          BOOST_TEST(std::abs(frequency_of(made.layers[l], set.experts) - set.share()) < 1e-4);
        // Positions come to a layer with what was measured there, and not with what calibration found.
        for (std::size_t s = 0; s < visits[l].size(); ++s)
          BOOST_TEST(std::abs(visits[l][s] - made.layers[l].sets[s].probability) < 1e-6);
      }
      for (std::size_t l = 0; l + 1 < old.n_layers; ++l)
        for (std::size_t e = 0; e < old.n_experts; ++e) {
          double share = 0;
          for (std::size_t k = 0; k < old.n_experts; ++k)
            share += made.layers[l].activation[k] * made.layers[l].transition(k, e);
          BOOST_TEST(std::abs(share - made.layers[l + 1].activation[e]) < 1e-6);
        }
    }
  }
}

BOOST_AUTO_TEST_CASE(
    where_layers_are_independent_the_cost_is_that_of_a_profile_of_what_was_measured) {
  constexpr std::size_t n_layers = 4, n_experts = 6;
  auto old = random_profile(n_layers, n_experts, 2, 5);
  const auto make_independent = [](profile& content) {
    for (std::size_t l = 0; l + 1 < content.n_layers; ++l) {
      auto& layer = content.layers[l];
      const auto& next = content.layers[l + 1];
      for (std::size_t r = 0; r < layer.sets.size(); ++r)
        for (std::size_t c = 0; c < next.sets.size(); ++c)
          layer.set_transition(r, c) = next.sets[c].probability;
    }
  };
  make_independent(old);
  const auto sets = other_frequencies(old, 5);
  auto expected = old;
  for (std::size_t l = 0; l < n_layers; ++l)
    for (auto& set : expected.layers[l].sets) {
      const auto found = std::ranges::find(sets[l], set.experts, &measured_set::experts);
      set.probability = found == sets[l].end() ? 0 : found->share();
    }
  make_independent(expected);
  const auto made = with_measured_activation(old, measured_as(sets, n_experts));
  const auto costs = instances::small_costs();
  const auto servers = instances::drawn_cluster(4, n_layers, n_experts, 1.3, 5);
  const auto placed = place_by_popularity(old, servers, costs, {}).value();
  const auto cost = [&](const profile& by) {
    return placement_cost_ns(by, placed, servers, costs);
  };
  BOOST_TEST(std::abs(cost(expected) / cost(old) - 1) > 0.01);
  BOOST_TEST(cost(made) == cost(expected), boost::test_tools::tolerance(1e-4));
}

BOOST_AUTO_TEST_CASE(transitions_keep_the_odds_that_calibration_found) {
  auto old = random_profile(2, 6, 2, 4);
  old.calibration_tokens = 1'000'000'000;
  const auto made =
      with_measured_activation(old, measured_as(other_frequencies(old, 4), old.n_experts));
  const auto place = [](const layer_profile& layer, const experts& set) {
    return static_cast<std::size_t>(std::ranges::find(layer.sets, set, &target_set::experts) -
                                    layer.sets.begin());
  };
  const auto odds = [&](const profile& content, std::size_t a, std::size_t b) {
    const auto& steps = content.layers[0].set_transition;
    const auto at = [&](std::size_t from, std::size_t to) {
      return steps(place(content.layers[0], old.layers[0].sets[from].experts),
                   place(content.layers[1], old.layers[1].sets[to].experts));
    };
    return std::log(at(0, 0) * at(a, b) / (at(0, b) * at(a, 0)));
  };
  std::size_t compared = 0;
  for (std::size_t a = 1; a < 4; ++a)
    for (std::size_t b = 1; b < 4; ++b) {
      const auto before = odds(old, a, b);
      if (!std::isfinite(before)) continue;
      ++compared;
      BOOST_TEST(std::abs(odds(made, a, b) - before) < 1e-3);
    }
  BOOST_TEST(compared > 0u);
}

BOOST_AUTO_TEST_CASE(what_follows_what_is_counted_wherever_it_is_seen) {
  // One server decides on layer 0, another on layer 1.
  activation_statistics first(2, 4, 2, 1e15), second(2, 4, 2, 1e15);
  first.add(0, experts{0, 1, 2, 3, 0, 1, 2, 3});
  second.add(1, experts{0, 2, 1, 3, 0, 2, 1, 3});
  second.add_steps(1, experts{0, 1, 0, 2, 2, 3, 1, 3, 0, 1, 0, 2, 2, 3, 1, 3});
  const std::vector<measured_activation> parts{first.now(), second.now()};
  const auto all = sum_of(parts, 2, 4);
  BOOST_REQUIRE_EQUAL(all.steps.size(), 2u);
  BOOST_TEST(all.steps[1].empty());
  BOOST_TEST((all.steps[0] ==
              std::vector<measured_step>{{{0, 1}, {0, 2}, 500'000}, {{2, 3}, {1, 3}, 500'000}}));
  BOOST_TEST(all.step_rows[0] == 4, boost::test_tools::tolerance(1e-9));
  const auto read = parse_activation(activation_json(all), "here", 2, 4, 2);
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST((*read == all));
  activation_statistics again(2, 4, 2, 1e15);
  again.restore(all);
  BOOST_TEST((again.now().steps == all.steps));
  BOOST_TEST((again.now().sets == all.sets));
  BOOST_TEST((again.now().shares == all.shares));
}

BOOST_AUTO_TEST_CASE(steps_are_not_counted_where_sets_are_too_many) {
  activation_statistics seen(2, 60, 4, 1e15);
  seen.add_steps(1, experts{0, 1, 2, 3, 4, 5, 6, 7});
  BOOST_TEST(seen.now().steps.empty());
  activation_statistics of_one(2, 64, 1, 1e15);
  of_one.add_steps(1, experts{0, 63});
  BOOST_TEST(of_one.now().steps[0].size() == 1u);
  activation_statistics more(2, 65, 1, 1e15);
  more.add_steps(1, experts{0, 63});
  BOOST_TEST(more.now().steps.empty());
}

BOOST_AUTO_TEST_CASE(what_was_seen_to_follow_outweighs_what_calibration_found) {
  auto old = uniform_profile("small", "", 2, 4, 1);
  old.calibration_tokens = 100'000;
  activation_statistics seen(2, 4, 1, 1e15);
  // Every row goes on to the expert before its own.
  for (std::uint32_t row = 0; row < 4000; ++row) {
    const auto here = row % 4, next = (row + 3) % 4;
    seen.add(0, experts{here});
    seen.add(1, experts{next});
    seen.add_steps(1, experts{here, next});
  }
  const auto made = with_measured_activation(old, seen.now());
  check_valid(made);
  for (std::size_t r = 0; r < 4; ++r)
    for (std::size_t c = 0; c < 4; ++c) {
      const auto from = made.layers[0].sets[r].experts[0], to = made.layers[1].sets[c].experts[0];
      const double expected = to == (from + 3) % 4 ? 1 : 0;
      BOOST_TEST(std::abs(made.layers[0].set_transition(r, c) - expected) < 0.01);
    }
}

BOOST_AUTO_TEST_CASE(sets_that_calibration_did_not_see_come_in) {
  auto old = uniform_profile("small", "", 3, 5, 2);
  const experts unseen{0, 2};
  for (const auto& set : old.layers[1].sets) BOOST_REQUIRE(set.experts != unseen);
  std::vector<std::vector<measured_set>> sets(3);
  sets[1] = {{unseen, 900'000}, {{1, 2}, 100'000}};
  const auto made = with_measured_activation(old, measured_as(sets, 5));
  check_valid(made);
  BOOST_TEST(made.layers[1].sets.front().experts == unseen, boost::test_tools::per_element());
  BOOST_TEST(std::abs(frequency_of(made.layers[1], unseen) - 0.9) < 1e-4);
  BOOST_TEST(std::abs(visits_of(made)[1][0] - 0.9) < 1e-4);
  // Layers of which nothing was seen expect what they did.
  BOOST_TEST((made.layers[0].activation == old.layers[0].activation));
  BOOST_TEST(std::abs(visits_of(made)[2][0] - old.layers[2].sets[0].probability) < 1e-6);
}

BOOST_AUTO_TEST_CASE(where_experts_alone_were_counted_sets_become_as_frequent_as_these_need) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const auto old = random_profile(3, 6, 2, seed);
    auto measured = measured_as(other_frequencies(old, seed), old.n_experts);
    measured.sets.clear();
    const auto made = with_measured_activation(old, measured);
    check_valid(made);
    for (std::size_t l = 0; l < old.n_layers; ++l)
      for (std::uint32_t e = 0; e < old.n_experts; ++e) {
        double share = 0;
        for (const auto& set : made.layers[l].sets)
          if (std::ranges::binary_search(set.experts, e)) share += set.probability / 2;
        BOOST_TEST(std::abs(share - measured.shares[l][e]) < 1e-3);
      }
  }
}

BOOST_AUTO_TEST_CASE(what_is_told_is_read_as_it_was_written_and_whatever_else_is_refused) {
  activation_statistics seen(2, 3, 2, 7);
  seen.add(0, experts{0, 1, 0, 2, 1, 2});
  seen.add(0, experts{0, 1});
  const auto text = activation_json(seen.now());
  const auto read = parse_activation(text, "here", 2, 3, 2);
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST((*read == seen.now()));
  const auto without = parse_activation(R"({"rows":[1,0],"shares":[[1,0,0],[]]})", "here", 2, 3, 2);
  BOOST_REQUIRE_MESSAGE(without.has_value(), (without ? "" : without.error().message));
  BOOST_TEST(without->sets.empty());
  const auto refused = [](const std::string& bad, const std::string& why) {
    const auto made = parse_activation(bad, "here", 2, 3, 2);
    BOOST_REQUIRE_MESSAGE(!made.has_value(), bad);
    BOOST_TEST(made.error().message.find(why) != std::string::npos, made.error().message);
    BOOST_TEST(made.error().message.starts_with("here"), made.error().message);
  };
  refused("nonsense", "here");
  refused(R"({"rows":[1,1]})", "shares");
  refused(R"({"rows":[1],"shares":[[],[]]})", "another shape");
  refused(R"({"rows":[1,1],"shares":[[]]})", "another shape");
  refused(R"({"rows":[1,1],"shares":[[0.5,0.5],[]]})", "another shape");
  refused(R"({"rows":[1,1],"shares":[[0.5,0.5,0.5],[]]})", "do not sum to 1");
  refused(R"({"rows":[-1,1],"shares":[[],[]]})", "rows");
  refused(R"({"rows":[1e300,1],"shares":[[],[]]})", "rows");
  refused(R"({"rows":[1,1],"shares":[[1,-1,1],[]]})", "shares");
  refused(R"({"rows":[1,1],"shares":[["1",0,0],[]]})", "shares");
  refused(R"({"rows":[1,1],"shares":[[1,0,0],[]],"more":1})", "more");
  const auto with_sets = [&](const std::string& sets, const std::string& why) {
    refused(R"({"rows":[1,1],"shares":[[1,0,0],[]],"sets":)" + sets + "}", why);
  };
  with_sets("[[]]", "another shape");
  with_sets("[[],[[0,1,1000000]]]", "do not sum to 1");
  with_sets("[[[0,1,999999]],[]]", "do not sum to 1");
  with_sets("[[[0,1,1000001]],[]]", "sets[0][0]");
  with_sets("[[[0,1,-1]],[]]", "sets[0][0]");
  with_sets("[[[0,1,0]],[]]", "a share of no row");
  with_sets("[[[1,0,1000000]],[]]", "another order");
  with_sets("[[[1,1,1000000]],[]]", "another order");
  with_sets("[[[1,3,1000000]],[]]", "unknown expert");
  with_sets("[[[1,1000000]],[]]", "sets[0][0]");
  with_sets("[[[0,1,500000],[0,1,500000]],[]]", "second time");
  with_sets("[[1],[]]", "sets[0][0]");
  with_sets("7", "sets");
  const auto with_steps = [&](const std::string& steps, const std::string& why) {
    refused(R"({"rows":[1,1],"shares":[[1,0,0],[]],"steps":)" + steps + R"(,"step_rows":[5,0]})",
            why);
  };
  with_steps("[[[0,1,0,1,1000000]]]", "another shape");
  with_steps("[[],[[0,1,0,1,1000000]]]", "another shape");
  with_steps("[[[0,1,0,1,600000],[0,1,0,2,600000]],[]]", "more than all steps");
  with_steps("[[[0,1,0,1,6],[0,1,0,1,6]],[]]", "second time");
  with_steps("[[[0,1,0,3,6]],[]]", "unknown expert");
  with_steps("[[[0,1,2,0,6]],[]]", "another order");
  with_steps("[[[0,1,0,1,0]],[]]", "no row");
  with_steps("[[[0,1,1]],[]]", "steps[0][0]");
  refused(R"({"rows":[1,1],"shares":[[1,0,0],[]],"steps":[[],[]]})", "another shape");
  refused(R"({"rows":[1,1],"shares":[[1,0,0],[]],"step_rows":[1,1]})", "another shape");
  std::string many = "[[";
  for (int i = 0; i < 65; ++i) many += std::string(i > 0 ? "," : "") + "[0,1,1]";
  with_sets(many + "],[]]", "found 65");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
