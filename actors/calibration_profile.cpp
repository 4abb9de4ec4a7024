#include "actors/calibration_profile.hpp"

#include <algorithm>
#include <cmath>

namespace ordermoe::actors {

namespace {

/// Eq. (4): cosine of the router's logit rows, from their Gram matrix.
planning::matrix cosine(const std::vector<double>& gram, std::size_t n) {
  planning::matrix similarity(n, n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      const auto norm = std::sqrt(gram[i * n + i] * gram[j * n + j]);
      similarity(i, j) = i == j     ? 1.0
                         : norm > 0 ? std::clamp(gram[i * n + j] / norm, -1.0, 1.0)
                                    : 0.0;
    }
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < i; ++j) similarity(i, j) = similarity(j, i);
  return similarity;
}

planning::matrix square(const std::vector<double>& values, std::size_t n) {
  planning::matrix copy(n, n);
  copy.values = values;
  for (std::size_t i = 0; i < n; ++i) copy(i, i) = 0;
  return copy;
}

/// Rows that sum to 1; a row without counts follows `fallback`.
planning::matrix normalised(planning::matrix counts, const std::vector<double>& fallback) {
  for (std::size_t r = 0; r < counts.rows; ++r) {
    double sum = 0;
    for (std::size_t c = 0; c < counts.columns; ++c) sum += counts(r, c);
    for (std::size_t c = 0; c < counts.columns; ++c)
      counts(r, c) = sum > 0 ? counts(r, c) / sum : fallback[c];
  }
  return counts;
}

}  // namespace

planning::profile make_profile(const model::calibration_statistics& statistics,
                               std::string model_name, std::string model_digest,
                               std::uint64_t seed) {
  planning::profile made;
  made.model_name = std::move(model_name);
  made.model_digest = std::move(model_digest);
  made.n_layers = statistics.n_layers;
  made.n_experts = statistics.n_experts;
  made.top_k = statistics.top_k;
  made.calibration_tokens = statistics.n_tokens;
  made.seed = seed;
  made.baseline_nats = statistics.baseline_nats;
  const auto n = statistics.n_experts;
  for (const auto& from : statistics.layers) {
    planning::layer_profile layer;
    double activations = 0;
    for (const auto count : from.activations) activations += static_cast<double>(count);
    for (const auto count : from.activations)
      layer.activation.push_back(static_cast<double>(count) / activations);
    layer.router_logit = cosine(from.logit_gram, n);
    layer.router_logit_centred = cosine(from.centred_gram, n);
    layer.output_distance = square(from.output_distance, n);
    layer.token_gate_regret = square(from.gate_regret, n);
    layer.mean_gate = from.mean_gate;
    double tokens = 0;
    for (const auto& set : from.sets) tokens += static_cast<double>(set.count);
    for (const auto& set : from.sets) {
      planning::target_set target;
      for (const auto expert : set.experts) target.experts.push_back(expert.value);
      target.mean_gate = set.mean_gate;
      target.probability = static_cast<double>(set.count) / tokens;
      layer.sets.push_back(std::move(target));
    }
    for (const auto& measured : from.damage) {
      layer.damage.push_back(std::max(least_damage, measured.coefficient));
      layer.damage_error.push_back(measured.standard_error);
    }
    made.layers.push_back(std::move(layer));
  }
  for (std::size_t l = 0; l + 1 < made.n_layers; ++l) {
    auto& layer = made.layers[l];
    const auto& next = made.layers[l + 1];
    planning::matrix counts(n, n);
    for (std::size_t i = 0; i < n * n; ++i)
      counts.values[i] = static_cast<double>(statistics.layers[l].transitions[i]);
    layer.transition = normalised(std::move(counts), next.activation);
    planning::matrix sets(layer.sets.size(), next.sets.size());
    for (const auto& step : statistics.layers[l].set_transitions)
      sets(step.from, step.to) = static_cast<double>(step.count);
    std::vector<double> frequency;
    for (const auto& set : next.sets) frequency.push_back(set.probability);
    layer.set_transition = normalised(std::move(sets), frequency);
  }
  return made;
}

}  // namespace ordermoe::actors
