#include "model/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

}  // namespace

std::int32_t sample(std::span<const float> logits, const sampling_options& options,
                    std::uint64_t request, std::uint64_t position) {
  ORDERMOE_CHECK(!logits.empty(), "sampling from no logits");
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

double negative_log_likelihood(std::span<const float> logits, std::int32_t target) {
  ORDERMOE_CHECK(target >= 0 && static_cast<std::size_t>(target) < logits.size(),
                 fmt::format("token {} of {}", target, logits.size()));
  const double largest = largest_of(logits);
  double total = 0;
  for (const float logit : logits) total += exact_exp(static_cast<double>(logit) - largest);
  return std::log(total) + largest - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

}  // namespace ordermoe::model
