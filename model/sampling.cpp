#include "model/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "config/error.hpp"
#include "config/exact_exp.hpp"
#include "config/random.hpp"

namespace ordermoe::model {

namespace {

/// In lanes, as compilers find vector instructions for.
float largest_of(std::span<const float> numbers) {
  constexpr std::size_t n_lanes = 16;
  float lanes[n_lanes];
  std::ranges::fill(lanes, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + n_lanes <= numbers.size(); i += n_lanes)
    for (std::size_t j = 0; j < n_lanes; ++j)
      lanes[j] = numbers[i + j] > lanes[j] ? numbers[i + j] : lanes[j];
  for (; i < numbers.size(); ++i) lanes[0] = numbers[i] > lanes[0] ? numbers[i] : lanes[0];
  return *std::ranges::max_element(lanes);
}

/// Places of the n largest, largest first, of equal ones the lower.
template <class Number>
std::vector<std::int32_t> largest_places(std::span<const Number> numbers, std::size_t n) {
  std::vector<std::int32_t> places(numbers.size());
  std::iota(places.begin(), places.end(), 0);
  n = std::min(n, places.size());
  std::ranges::partial_sort(places, places.begin() + static_cast<std::ptrdiff_t>(n),
                            [&](std::int32_t left, std::int32_t right) {
                              const auto a = numbers[static_cast<std::size_t>(left)];
                              const auto b = numbers[static_cast<std::size_t>(right)];
                              return a > b || (a == b && left < right);
                            });
  places.resize(n);
  return places;
}

std::vector<double> changed_logits(std::span<const float> logits, const sampling_options& options,
                                   std::span<const std::int32_t> answered) {
  std::vector<double> scores(logits.begin(), logits.end());
  // Nothing is likely where nothing can be compared.
  for (auto& score : scores)
    if (std::isnan(score)) score = -std::numeric_limits<double>::infinity();
  for (const auto& [id, bias] : options.bias)
    if (static_cast<std::size_t>(id) < scores.size()) scores[static_cast<std::size_t>(id)] += bias;
  if (!options.has_penalty()) return scores;
  std::map<std::int32_t, std::size_t> times;
  for (const auto id : answered) ++times[id];
  for (const auto& [id, n] : times)
    if (static_cast<std::size_t>(id) < scores.size())
      scores[static_cast<std::size_t>(id)] -=
          options.frequency_penalty * static_cast<double>(n) + options.presence_penalty;
  return scores;
}

/// Ids that stay in the draw, ascending; `weights` are those of all.
std::vector<std::int32_t> kept_ids(std::span<const double> weights,
                                   const sampling_options& options) {
  const auto n = options.top_k == 0 ? weights.size() : std::min(options.top_k, weights.size());
  auto kept = largest_places(weights, n);
  if (options.top_p < 1) {
    double total = 0;
    for (const auto id : kept) total += weights[static_cast<std::size_t>(id)];
    double so_far = 0;
    std::size_t few = 0;
    while (few < kept.size() && (few == 0 || so_far < options.top_p * total))
      so_far += weights[static_cast<std::size_t>(kept[few++])];
    kept.resize(few);
  }
  std::ranges::sort(kept);
  return kept;
}

std::int32_t sample_by_rules(std::span<const float> logits, const sampling_options& options,
                             std::uint64_t request, std::uint64_t position,
                             std::span<const std::int32_t> answered) {
  const auto scores = changed_logits(logits, options, answered);
  const auto first = std::ranges::max_element(scores);
  const auto best = static_cast<std::int32_t>(first - scores.begin());
  if (options.temperature <= 0 || !std::isfinite(*first)) return best;
  std::vector<double> weights(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i)
    weights[i] = exact_exp((scores[i] - *first) / options.temperature);
  const auto kept = kept_ids(weights, options);
  std::vector<double> cumulative(kept.size());
  double total = 0;
  for (std::size_t i = 0; i < kept.size(); ++i)
    cumulative[i] = total += weights[static_cast<std::size_t>(kept[i])];
  const double mark = random_unit(options.seed, request, position) * total;
  const auto chosen = std::ranges::upper_bound(cumulative, mark);
  if (chosen == cumulative.end()) return best;
  return kept[static_cast<std::size_t>(chosen - cumulative.begin())];
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const sampling_options& options,
                    std::uint64_t request, std::uint64_t position,
                    std::span<const std::int32_t> answered) {
  ORDERMOE_CHECK(!logits.empty(), "sampling from no logits");
  if (!options.is_plain()) return sample_by_rules(logits, options, request, position, answered);
  const float largest = largest_of(logits);
  const auto first = std::ranges::find(logits, largest);
  // None where all are not numbers.
  const auto best = first == logits.end() ? 0 : static_cast<std::int32_t>(first - logits.begin());
  if (options.temperature <= 0) return best;
  std::vector<double> cumulative(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    total += exact_exp((static_cast<double>(logits[i]) - largest) / options.temperature);
    cumulative[i] = total;
  }
  const double mark = random_unit(options.seed, request, position) * total;
  const auto chosen = std::ranges::upper_bound(cumulative, mark);
  // Rounding may lift the mark to the total itself; the largest logit is then as good as any.
  if (chosen == cumulative.end()) return best;
  return static_cast<std::int32_t>(chosen - cumulative.begin());
}

std::vector<token_chance> chances(std::span<const float> logits, std::int32_t chosen,
                                  std::size_t n) {
  const double largest = largest_of(logits);
  double total = 0;
  for (const float logit : logits) total += exact_exp(static_cast<double>(logit) - largest);
  const double offset = std::log(total) + largest;
  const auto chance_of = [&](std::int32_t id) {
    return token_chance{id, static_cast<double>(logits[static_cast<std::size_t>(id)]) - offset};
  };
  std::vector<token_chance> made{chance_of(chosen)};
  for (const auto id : largest_places(logits, n)) made.push_back(chance_of(id));
  return made;
}

double negative_log_likelihood(std::span<const float> logits, std::int32_t target) {
  ORDERMOE_CHECK(target >= 0 && static_cast<std::size_t>(target) < logits.size(),
                 fmt::format("token {} of {}", target, logits.size()));
  const double largest = largest_of(logits);
  double total = 0;
  for (const float logit : logits) total += exact_exp(static_cast<double>(logit) - largest);
  return std::log(total) + largest - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

}  // namespace ordermoe::model
