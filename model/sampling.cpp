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
#include "model/kernels/kernels.hpp"

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

/// Places of numbers, largest first, of equal ones the lower; ordered only as far as somebody asks.
template <class Number>
class ranking {
 public:
  explicit ranking(std::span<const Number> numbers) : numbers_(numbers), places_(numbers.size()) {
    std::iota(places_.begin(), places_.end(), 0);
  }
  /// The first n, or all.
  std::span<const std::int32_t> first(std::size_t n) {
    n = std::min(n, places_.size());
    if (n > n_ordered_) {
      const auto begin = places_.begin();
      std::partial_sort(begin + static_cast<std::ptrdiff_t>(n_ordered_),
                        begin + static_cast<std::ptrdiff_t>(n), places_.end(),
                        [&](std::int32_t left, std::int32_t right) {
                          const auto a = numbers_[static_cast<std::size_t>(left)];
                          const auto b = numbers_[static_cast<std::size_t>(right)];
                          return a > b || (a == b && left < right);
                        });
      n_ordered_ = n;
    }
    return std::span(places_).first(n);
  }

 private:
  std::span<const Number> numbers_;
  std::vector<std::int32_t> places_;
  std::size_t n_ordered_ = 0;
};

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

/// How many of the ids, likeliest first, reach `share` in sum, one at least; all where they do not.
std::size_t few_with(std::span<const double> weights, std::span<const std::int32_t> ids,
                     double share) {
  double so_far = 0;
  std::size_t few = 0;
  while (few < ids.size() && (few == 0 || so_far < share))
    so_far += weights[static_cast<std::size_t>(ids[few++])];
  return few;
}

/// How many of the first n have the share top_p of what these have together. What n is all of is not ordered to the end for
/// that, as few are enough most often: then the sum of all is taken in another order, whose rounding may differ, and where
/// that might change who stays, they are ordered after all.
std::size_t few_of(ranking<double>& ranked, std::span<const double> weights, std::size_t n,
                   double top_p) {
  if (n == weights.size()) {
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    // Of a sum in any order, twice.
    const double margin =
        2 * static_cast<double>(n) * std::numeric_limits<double>::epsilon() * total;
    constexpr std::size_t first_try = 64, growth = 8;
    for (std::size_t tried = first_try; tried < n; tried *= growth) {
      const auto ids = ranked.first(tried);
      const auto low = few_with(weights, ids, top_p * total - margin);
      if (low == tried) continue;
      if (few_with(weights, ids, top_p * total + margin) == low) return low;
      break;
    }
  }
  const auto ids = ranked.first(n);
  double total = 0;
  for (const auto id : ids) total += weights[static_cast<std::size_t>(id)];
  return few_with(weights, ids, top_p * total);
}

/// Ids that stay in the draw, ascending; `weights` are those of all.
std::vector<std::int32_t> kept_ids(std::span<const double> weights,
                                   const sampling_options& options) {
  const auto n = options.top_k == 0 ? weights.size() : std::min(options.top_k, weights.size());
  ranking<double> ranked(weights);
  const auto few = options.top_p < 1 ? few_of(ranked, weights, n, options.top_p) : n;
  const auto first = ranked.first(few);
  std::vector<std::int32_t> kept(first.begin(), first.end());
  std::ranges::sort(kept);
  return kept;
}

/// The id at a share of the cumulative distribution e^(score / temperature), ids ascending; -1 where rounding puts it behind the
/// last. Scores are weighed in fp32, block by block, and only the block that the share falls into once more: what is summed
/// is the same on every processor. `largest` is that of the scores, and finite.
std::int32_t draw(std::span<const float> scores, float largest, double temperature, double share) {
  constexpr std::size_t block = 512;
  alignas(64) float weights[block];
  const auto scale = static_cast<float>(1 / temperature);
  const auto weigh = [&](std::size_t start) {
    const auto part = scores.subspan(start, std::min(block, scores.size() - start));
    return kernels().softmax_weights(part.data(), part.size(), largest, scale, weights);
  };
  thread_local std::vector<double> sums;  // Behind each block.
  sums.clear();
  double total = 0;
  for (std::size_t start = 0; start < scores.size(); start += block)
    sums.push_back(total += static_cast<double>(weigh(start)));
  const double mark = share * total;
  const auto found = static_cast<std::size_t>(std::ranges::upper_bound(sums, mark) - sums.begin());
  if (found == sums.size()) return -1;
  const std::size_t start = found * block;
  weigh(start);
  double so_far = found == 0 ? 0 : sums[found - 1];
  std::size_t last =
      start;  // That weighs anything: one by one they may come to less than in lanes.
  for (std::size_t i = start; i < std::min(start + block, scores.size()); ++i) {
    if (!(weights[i - start] > 0)) continue;
    last = i;
    so_far += static_cast<double>(weights[i - start]);
    if (so_far > mark) break;
  }
  return static_cast<std::int32_t>(last);
}

/// Below it a temperature has no reciprocal in fp32 and leaves nothing but the largest anyway.
constexpr double least_temperature = 1e-30;

std::int32_t sample_by_rules(std::span<const float> logits, const sampling_options& options,
                             std::uint64_t request, std::uint64_t position,
                             std::span<const std::int32_t> answered) {
  const auto scores = changed_logits(logits, options, answered);
  const auto first = std::ranges::max_element(scores);
  const auto best = static_cast<std::int32_t>(first - scores.begin());
  if (options.temperature < least_temperature || !std::isfinite(*first)) return best;
  const double share = random_unit(options.seed, request, position);
  if (options.leaves_all(scores.size())) {
    const std::vector<float> rounded(scores.begin(), scores.end());
    const auto id = draw(rounded, static_cast<float>(*first), options.temperature, share);
    return id < 0 ? best : id;
  }
  std::vector<double> weights(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i)
    weights[i] = exact_exp((scores[i] - *first) / options.temperature);
  const auto kept = kept_ids(weights, options);
  std::vector<double> cumulative(kept.size());
  double total = 0;
  for (std::size_t i = 0; i < kept.size(); ++i)
    cumulative[i] = total += weights[static_cast<std::size_t>(kept[i])];
  const auto chosen = std::ranges::upper_bound(cumulative, share * total);
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
  if (options.temperature < least_temperature || !std::isfinite(largest)) return best;
  const auto id =
      draw(logits, largest, options.temperature, random_unit(options.seed, request, position));
  // Rounding may lift the mark to the total itself; the largest logit is then as good as any.
  return id < 0 ? best : id;
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
  ranking<float> ranked(logits);
  for (const auto id : ranked.first(n)) made.push_back(chance_of(id));
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
