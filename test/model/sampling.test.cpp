#include "model/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "config/exact_exp.hpp"
#include "config/random.hpp"
#include "model/architecture/routing.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using ordermoe::expert_id;

/// What top_p leaves, by a sort of everything, and what is drawn of it.
std::int32_t drawn_by_full_sort(const std::vector<float>& logits,
                                const om::sampling_options& options, std::uint64_t request,
                                std::uint64_t position) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<std::pair<double, std::int32_t>> ranked;
  for (std::size_t i = 0; i < logits.size(); ++i)
    ranked.emplace_back(
        -ordermoe::exact_exp((static_cast<double>(logits[i]) - largest) / options.temperature),
        static_cast<std::int32_t>(i));
  std::ranges::sort(ranked);
  if (options.top_k > 0 && options.top_k < ranked.size()) ranked.resize(options.top_k);
  double total = 0, so_far = 0;
  for (const auto& [weight, id] : ranked) total -= weight;
  std::map<std::int32_t, double> kept;
  for (const auto& [weight, id] : ranked) {
    if (!kept.empty() && so_far >= options.top_p * total) break;
    so_far -= weight;
    kept[id] = -weight;
  }
  total = 0;
  for (const auto& [id, weight] : kept) total += weight;
  const double mark = ordermoe::random_unit(options.seed, request, position) * total;
  so_far = 0;
  for (const auto& [id, weight] : kept)
    if (mark < (so_far += weight)) return id;
  return ranked.front().second;
}

/// Where a token's share of the distribution begins and ends, in double precision from one end to the other.
struct share_of_token {
  double begin = 0, end = 0;
};
std::vector<share_of_token> shares(const std::vector<float>& logits, double temperature) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<share_of_token> made(logits.size());
  double so_far = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    made[i].begin = so_far;
    so_far += std::exp((static_cast<double>(logits[i]) - largest) / temperature);
    made[i].end = so_far;
  }
  for (auto& each : made) each = {each.begin / so_far, each.end / so_far};
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sampling)

BOOST_AUTO_TEST_CASE(a_draw_is_the_token_in_whose_share_the_number_falls) {
  for (const std::size_t n : {1, 2, 511, 512, 513, 1024, 32000, 151936})
    for (const double scale : {0.0, 1.0, 12.0})
      for (const double temperature : {0.05, 0.7, 1.0, 3.0}) {
        const auto logits = fixture::numbers(n, n + 1, scale);
        const auto expected = shares(logits, temperature);
        const om::sampling_options options{.temperature = temperature, .seed = n};
        std::size_t n_exact = 0;
        constexpr unsigned n_draws = 40;
        for (unsigned i = 0; i < n_draws; ++i) {
          const double at = ordermoe::random_unit(n, 6, i);
          const auto id = static_cast<std::size_t>(om::sample(logits, options, 6, i));
          BOOST_REQUIRE(id < n);
          // Chances are fp32: a number at the border of two shares may fall to the neighbour.
          BOOST_TEST(at >= expected[id].begin - 1e-6);
          BOOST_TEST(at <= expected[id].end + 1e-6);
          n_exact += at >= expected[id].begin && at < expected[id].end;
        }
        // A border is rarely so near, but where nearly all shares are as small as that.
        BOOST_TEST(n_exact + (n > 32000 ? 4 : 1) >= n_draws);
      }
}

BOOST_AUTO_TEST_CASE(what_is_no_number_or_nothing_is_never_drawn) {
  auto logits = fixture::numbers(1000, 3);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i % 3 == 0) logits[i] = NAN;
    if (i % 3 == 1) logits[i] = -INFINITY;
  }
  for (unsigned i = 0; i < 300; ++i)
    BOOST_TEST(om::sample(logits, {.temperature = 1, .seed = 4}, 0, i) % 3 == 2);
  const std::vector<float> none(40, NAN);
  BOOST_TEST(om::sample(none, {.temperature = 1, .seed = 4}, 0, 0) == 0);
  const std::vector<float> one{0, INFINITY, 3};
  BOOST_TEST(om::sample(one, {.temperature = 1, .seed = 4}, 0, 0) == 1);
}

BOOST_AUTO_TEST_CASE(the_smallest_temperatures_leave_the_largest) {
  const float logits[] = {1.0f, 1.5f, 1.25f};
  om::sampling_options options{.seed = 4};
  for (const double temperature : {1e-3, 1e-29, 1e-31, 1e-300, 5e-324})
    for (const bool by_rules : {false, true})
      for (unsigned i = 0; i < 20; ++i) {
        options.temperature = temperature;
        options.bias = {};
        if (by_rules) options.bias = {{2, 0.0f}};
        BOOST_TEST(om::sample(logits, options, 0, i) == 1);
      }
}

BOOST_AUTO_TEST_CASE(rules_that_change_nothing_change_no_draw) {
  // So many that chances in fp32 and in double precision part now and then.
  const auto logits = fixture::numbers(151936, 8);
  om::sampling_options plain{.temperature = 1, .seed = 5}, ruled = plain;
  ruled.bias = {{7, 0.0f}};
  for (unsigned i = 0; i < 2000; ++i)
    BOOST_TEST(om::sample(logits, ruled, 2, i) == om::sample(logits, plain, 2, i));
}

BOOST_AUTO_TEST_CASE(greedy_takes_the_largest_logit_and_the_lowest_id_of_equals) {
  const float logits[] = {0.5f, 2.0f, -1.0f, 2.0f};
  BOOST_TEST(om::sample(logits, {}, 0, 0) == 1);
  BOOST_TEST(om::sample(logits, {}, 7, 99) == 1);
}

BOOST_AUTO_TEST_CASE(frequencies_follow_the_softmax) {
  const float logits[] = {0.0f, std::log(2.0f), -100.0f, std::log(5.0f)};
  const double expected[] = {1.0 / 8, 2.0 / 8, 0, 5.0 / 8};
  constexpr int n = 40000;
  int counts[4] = {};
  for (int i = 0; i < n; ++i)
    ++counts[om::sample(logits, {.temperature = 1.0, .seed = 5}, 3, static_cast<unsigned>(i))];
  for (int v = 0; v < 4; ++v) {
    // Four standard deviations of a binomial share; the draw is fixed by the seed.
    const double deviation = std::sqrt(expected[v] * (1 - expected[v]) / n);
    BOOST_TEST(std::abs(counts[v] / static_cast<double>(n) - expected[v]) <= 4 * deviation);
  }
}

BOOST_AUTO_TEST_CASE(rules_that_change_nothing_draw_the_same) {
  const auto logits = fixture::numbers(300, 4);
  const std::vector<std::int32_t> answered{1, 2, 2};
  for (unsigned i = 0; i < 500; ++i) {
    const om::sampling_options plain{.temperature = i % 5 == 0 ? 0.0 : 1.1, .seed = 3};
    const auto expected = om::sample(logits, plain, 1, i);
    auto all = plain;
    all.top_k = logits.size();
    BOOST_TEST(om::sample(logits, all, 1, i, answered) == expected);
    auto zero = plain;
    zero.bias = {{7, 0.0f}};
    BOOST_TEST(om::sample(logits, zero, 1, i, answered) == expected);
  }
}

BOOST_AUTO_TEST_CASE(top_k_and_top_p_keep_the_likeliest_and_their_proportions) {
  // Chances 0.5, 0.2, 0.2, 0.1 of ids 2, 0, 3, 1.
  const float logits[] = {std::log(2.0f), 0.0f, std::log(5.0f), std::log(2.0f)};
  const auto shares = [&](om::sampling_options options) {
    options.temperature = 1;
    options.seed = 5;
    std::vector<double> made(4);
    constexpr int n = 20000;
    for (unsigned i = 0; i < n; ++i)
      made[static_cast<std::size_t>(om::sample(logits, options, 0, i))] += 1.0 / n;
    return made;
  };
  const auto check = [&](const om::sampling_options& options, std::vector<double> expected) {
    const auto found = shares(options);
    for (std::size_t v = 0; v < 4; ++v) {
      if (expected[v] == 0)
        BOOST_TEST(found[v] == 0);
      else
        BOOST_TEST(std::abs(found[v] - expected[v]) < 0.015);
    }
  };
  check({.top_k = 1}, {0, 0, 1, 0});
  check({.top_k = 2}, {2.0 / 7, 0, 5.0 / 7, 0});  // Of equals the lower id.
  check({.top_k = 3}, {2.0 / 9, 0, 5.0 / 9, 2.0 / 9});
  check({.top_p = 0.4}, {0, 0, 1, 0});
  check({.top_p = 0.6}, {2.0 / 7, 0, 5.0 / 7, 0});
  check({.top_p = 0.95}, {0.2, 0.1, 0.5, 0.2});
  check({.top_k = 2, .top_p = 0.5}, {0, 0, 1, 0});  // A share of what top_k left.
  check({.bias = {{2, -100.0f}}}, {0.4, 0.2, 0, 0.4});
}

BOOST_AUTO_TEST_CASE(top_p_draws_what_a_sort_of_everything_draws) {
  // Flat ones, of which nearly all stay, steep ones, and some with many equals.
  for (const std::size_t n : {1, 63, 64, 65, 500, 5000})
    for (const double scale : {0.01, 1.0, 6.0})
      for (const bool has_equals : {false, true}) {
        auto logits = fixture::numbers(n, n, scale);
        if (has_equals)
          for (auto& each : logits) each = std::round(each);
        unsigned place = 0;
        for (const double top_p :
             {1e-9, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999999, 1 - 1e-15})
          for (const std::size_t top_k : {0, 70})
            for (int i = 0; i < 3; ++i, ++place) {
              const om::sampling_options options{
                  .temperature = 0.8, .seed = 9, .top_k = top_k, .top_p = top_p};
              BOOST_TEST(
                  om::sample(logits, options, 2, place) ==
                      drawn_by_full_sort(logits, options, 2, place),
                  n << " logits, scale " << scale << ", top_p " << top_p << ", top_k " << top_k);
            }
      }
}

BOOST_AUTO_TEST_CASE(top_k_and_top_p_of_many_draw_what_a_sort_of_everything_draws) {
  // Of so many that the largest are looked for by blocks, and what top_p leaves by the size of weights. Some are no numbers for
  // the draw, some equal, and of the flattest nearly all weigh the same.
  constexpr std::size_t n = 20000;
  unsigned place = 0;
  for (const double scale : {1e-7, 1.0, 4.0})
    for (const bool has_equals : {false, true}) {
      auto logits = fixture::numbers(n, 77, scale);
      if (has_equals)
        for (auto& each : logits) each = std::round(4 * each) / 4;
      for (std::size_t i = 0; i < n; i += 1000) logits[i] = -INFINITY;
      for (const std::size_t top_k : {0, 1, 40, 600, 2500, 19999})
        for (const double top_p : {0.01, 0.5, 0.9, 0.9999, 1.0}) {
          if (top_k == 0 && top_p == 1) continue;
          const om::sampling_options options{
              .temperature = 0.9, .seed = 9, .top_k = top_k, .top_p = top_p};
          BOOST_TEST(om::sample(logits, options, 2, place) ==
                         drawn_by_full_sort(logits, options, 2, place),
                     "scale " << scale << ", top_p " << top_p << ", top_k " << top_k);
          ++place;
        }
    }
}

BOOST_AUTO_TEST_CASE(what_rules_change_is_ranked_by_what_it_became) {
  // Adding the biases to the logits beforehand is the same, as they are exact there.
  auto logits = fixture::numbers(30000, 12, 2.0);
  for (auto& each : logits) each = std::round(64 * each) / 64;
  auto changed = logits;
  om::sampling_options plain{.temperature = 0.7, .seed = 6}, ruled = plain;
  for (const auto& [id, bias] : {std::pair{5, 9.0f}, {17, -4.0f}, {29999, 8.5f}, {4000, -100.0f}}) {
    ruled.bias.emplace_back(id, bias);
    changed[static_cast<std::size_t>(id)] += bias;
  }
  for (unsigned i = 0; i < 200; ++i) {
    plain.top_k = ruled.top_k = i % 3 == 0 ? 0 : 30;
    plain.top_p = ruled.top_p = i % 3 == 1 ? 1 : 0.8;
    BOOST_TEST(om::sample(logits, ruled, 1, i) == om::sample(changed, plain, 1, i));
  }
}

BOOST_AUTO_TEST_CASE(penalties_count_what_was_answered) {
  const float logits[] = {3.0f, 2.5f, 2.0f};
  const std::vector<std::int32_t> answered{0, 0, 1};
  BOOST_TEST(om::sample(logits, {.frequency_penalty = 0.2}, 0, 0, answered) == 0);
  BOOST_TEST(om::sample(logits, {.frequency_penalty = 0.45}, 0, 0, answered) == 0);
  BOOST_TEST(om::sample(logits, {.frequency_penalty = 0.52}, 0, 0, answered) == 2);
  BOOST_TEST(om::sample(logits, {.presence_penalty = 0.9}, 0, 0, answered) == 0);
  BOOST_TEST(om::sample(logits, {.presence_penalty = 1.1}, 0, 0, answered) == 2);
  BOOST_TEST(om::sample(logits, {.frequency_penalty = 2}, 0, 0, {}) == 0);
  BOOST_TEST(om::sample(logits, {.frequency_penalty = -1}, 0, 0, std::vector{2, 2}) == 2);
}

BOOST_AUTO_TEST_CASE(chances_are_logarithms_of_the_softmax) {
  const float logits[] = {std::log(2.0f), 0.0f, std::log(5.0f), std::log(2.0f)};
  const auto found = om::chances(logits, 1, 3);
  const std::vector<std::pair<int, double>> expected{{1, 0.1}, {2, 0.5}, {0, 0.2}, {3, 0.2}};
  BOOST_TEST_REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    BOOST_TEST(found[i].id == expected[i].first);
    BOOST_TEST(std::abs(std::exp(found[i].logprob) - expected[i].second) < 1e-7);
  }
  BOOST_TEST(om::chances(logits, 0, 99).size() == 5u);
}

BOOST_AUTO_TEST_CASE(temperature_sharpens_and_flattens) {
  const float logits[] = {0.0f, 1.0f};
  const auto share = [&](double temperature) {
    int ones = 0;
    for (unsigned i = 0; i < 10000; ++i)
      ones += om::sample(logits, {.temperature = temperature, .seed = 1}, 0, i);
    return ones / 10000.0;
  };
  BOOST_TEST(std::abs(share(0.5) - 1 / (1 + std::exp(-2.0))) < 0.02);
  BOOST_TEST(std::abs(share(2.0) - 1 / (1 + std::exp(-0.5))) < 0.02);
}

BOOST_AUTO_TEST_CASE(a_draw_depends_on_seed_request_and_position_alone) {
  const auto logits = fixture::numbers(50, 2);
  const auto draw = [&](std::uint64_t seed, std::uint64_t request, std::uint64_t position) {
    return om::sample(logits, {.temperature = 1.0, .seed = seed}, request, position);
  };
  std::vector<std::int32_t> first, seed, request, position;
  for (std::uint64_t i = 0; i < 40; ++i) {
    first.push_back(draw(1, 1, i));
    BOOST_TEST(draw(1, 1, i) == first.back());
    seed.push_back(draw(2, 1, i));
    request.push_back(draw(1, 2, i));
    position.push_back(draw(1, 1, i + 1000));
  }
  BOOST_TEST((first != seed));
  BOOST_TEST((first != request));
  BOOST_TEST((first != position));
}

BOOST_AUTO_TEST_CASE(the_loss_is_minus_the_log_of_the_softmax) {
  const float logits[] = {0.0f, std::log(3.0f), 1000.0f};
  BOOST_TEST(std::abs(om::negative_log_likelihood(std::span(logits).first(2), 0) - std::log(4.0)) <
             1e-7);
  BOOST_TEST(om::negative_log_likelihood(logits, 2) == 0.0);
  BOOST_TEST(std::abs(om::negative_log_likelihood(logits, 0) - 1000.0) < 1e-9);
}

// D(p || q) of (1/4, 3/4) and (1/2, 1/2), whatever is added to all logits.
BOOST_AUTO_TEST_CASE(a_divergence_is_what_the_likelihood_is_lower_by_in_the_mean) {
  const float p[] = {5.0f, 5.0f + std::log(3.0f)}, q[] = {-7.0f, -7.0f};
  const double expected = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  BOOST_TEST(std::abs(om::kl_divergence(p, q) - expected) < 1e-6);
  double mean = 0;
  for (std::int32_t i = 0; i < 2; ++i)
    mean += std::exp(-om::negative_log_likelihood(p, i)) *
            (om::negative_log_likelihood(q, i) - om::negative_log_likelihood(p, i));
  BOOST_TEST(std::abs(om::kl_divergence(p, q) - mean) < 1e-12);
  BOOST_TEST(std::abs(om::kl_divergence(q, p) - om::kl_divergence(p, q)) > 0.01);
  BOOST_TEST(om::kl_divergence(p, p) == 0.0);
}

BOOST_AUTO_TEST_CASE(a_divergence_counts_no_token_that_is_never_drawn) {
  const float never = -std::numeric_limits<float>::infinity();
  const float p[] = {0.0f, never, 0.0f}, q[] = {0.0f, 0.0f, 0.0f};
  BOOST_TEST(std::abs(om::kl_divergence(p, q) - std::log(1.5)) < 1e-12);
}

BOOST_AUTO_TEST_CASE(the_router_takes_the_largest_logits_in_order_and_the_lower_of_equals) {
  const float logits[] = {1.0f, 3.0f, 2.0f, 3.0f, 2.0f};
  const auto slots = om::choose_experts(logits, 4, om::gate_rule::renormalised);
  BOOST_REQUIRE_EQUAL(slots.size(), 4u);
  const std::size_t expected[] = {1, 3, 2, 4};
  float total = 0;
  for (std::size_t j = 0; j < 4; ++j) {
    BOOST_TEST(slots[j].expert.index() == expected[j]);
    total += slots[j].gate;
  }
  BOOST_TEST(std::abs(total - 1.0f) < 1e-6f);
  BOOST_TEST(slots[0].gate == slots[1].gate);
  BOOST_TEST(std::abs(slots[0].gate / slots[2].gate - std::exp(1.0f)) < 1e-5f);
}

BOOST_AUTO_TEST_CASE(gates_of_the_routers_own_choice_have_the_routers_bits) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto logits = fixture::numbers(8, seed, 4.0);
    const auto slots = om::choose_experts(logits, 3, om::gate_rule::renormalised);
    std::vector<expert_id> experts;
    for (const auto& slot : slots) experts.push_back(slot.expert);
    const auto gates = om::gates_of(logits, experts, om::gate_rule::renormalised);
    for (std::size_t j = 0; j < 3; ++j)
      BOOST_TEST(fixture::same_bits(&gates[j], &slots[j].gate, 1));
  }
}

BOOST_AUTO_TEST_SUITE_END()
