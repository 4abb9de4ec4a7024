#include "model/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "config/error.hpp"
#include "config/random.hpp"

namespace ordermoe::model {

std::int32_t sample(std::span<const float> logits, const sampling_options& options,
                    std::uint64_t request, std::uint64_t position) {
  ORDERMOE_CHECK(!logits.empty(), "sampling from no logits");
  const auto largest = std::ranges::max_element(logits);
  const auto best = static_cast<std::int32_t>(largest - logits.begin());
  if (options.temperature <= 0) return best;
  std::vector<double> cumulative(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    total += std::exp((static_cast<double>(logits[i]) - *largest) / options.temperature);
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
  const double largest = *std::ranges::max_element(logits);
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) - largest);
  return std::log(total) + largest - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

}  // namespace ordermoe::model
