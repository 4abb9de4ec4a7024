#include "model/damage_samples.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "config/position_buckets.hpp"

namespace ordermoe::model {

namespace {

/// A layer's samples together.
damage_sample sum_of(std::span<const damage_sample> samples, std::size_t n_buckets) {
  damage_sample sum(n_buckets);
  for (const auto& each : samples)
    for (std::size_t b = 0; b < n_buckets; ++b) {
      sum.divergence[b] += each.divergence[b];
      sum.predicted[b] += each.predicted[b];
    }
  return sum;
}

double weighed(std::span<const double> predicted, std::span<const double> factors) {
  return std::inner_product(predicted.begin(), predicted.end(), factors.begin(), 0.0);
}

double total(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

std::vector<double> position_factors(std::span<const std::vector<damage_sample>> layers) {
  if (layers.empty() || layers[0].empty()) return {1};
  const auto n = layers[0][0].predicted.size();
  std::vector<damage_sample> sums;
  for (const auto& layer : layers) sums.push_back(sum_of(layer, n));
  std::vector<double> divergence(n), expected(n), factors(n, 1);
  for (const auto& layer : sums)
    for (std::size_t b = 0; b < n; ++b) divergence[b] += layer.divergence[b];
  const double all = total(divergence);
  if (!(all > 0)) return factors;
  constexpr int rounds = 20;
  constexpr double unknown_share =
      0.003;  // Of the divergence, as if every bucket had so much more, of a factor of 1.
  constexpr double least = 1e-2, most = 1e2;
  const auto later_from = std::min(n - 1, position_bucket(31));
  for (int round = 0; round < rounds; ++round) {
    std::ranges::fill(expected, 0);
    for (const auto& layer : sums) {
      const double predicted = weighed(layer.predicted, factors);
      if (!(predicted > 0)) continue;
      const double damage = total(layer.divergence) / predicted;
      for (std::size_t b = 0; b < n; ++b) expected[b] += damage * layer.predicted[b];
    }
    for (std::size_t b = 0; b < n; ++b)
      factors[b] = (divergence[b] + unknown_share * all) / (expected[b] + unknown_share * all);
    const auto later = std::span<const double>(expected).subspan(later_from);
    const double mean = weighed(later, std::span(factors).subspan(later_from)) / total(later);
    for (auto& factor : factors)
      factor = std::clamp(total(later) > 0 ? factor / mean : factor, least, most);
  }
  return factors;
}

damage_measurement conclude(std::span<const damage_sample> samples, std::span<const double> factors,
                            double n_tokens) {
  damage_measurement measured;
  double divergence = 0, predicted = 0;
  for (const auto& each : samples) {
    divergence += total(each.divergence);
    predicted += weighed(each.predicted, factors);
  }
  if (n_tokens > 0) {
    measured.mean_divergence = divergence / n_tokens;
    measured.mean_predicted = predicted / n_tokens;
  }
  if (predicted <= 0) return measured;
  measured.coefficient = divergence / predicted;
  // Standard error of a ratio of sums, from the residuals of its samples.
  const auto n = static_cast<double>(samples.size());
  if (n < 2) return measured;
  double residuals = 0;
  for (const auto& each : samples) {
    const double residual =
        total(each.divergence) - measured.coefficient * weighed(each.predicted, factors);
    residuals += residual * residual;
  }
  measured.standard_error = std::sqrt(residuals * n / (n - 1)) / predicted;
  return measured;
}

}  // namespace ordermoe::model
