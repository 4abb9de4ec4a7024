#include "setup/calibration_profile.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planning/target_sets.hpp"

namespace ordermoe::setup {

namespace {

planning::matrix cosine(const std::vector<double>& gram, std::size_t n) {
  planning::matrix similarity(n, n);
  similarity.values = model::cosines(gram, n);
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

/// The target sets that a layer's profile keeps, most frequent first.
struct kept_sets {
  std::vector<planning::target_set> sets;
  std::vector<std::size_t> counts;  ///< [observed sets] the index of the set that it counts for
};

kept_sets keep_sets(const std::vector<model::observed_set>& observed) {
  std::vector<std::vector<std::uint32_t>> experts;
  std::vector<double> weights;
  double tokens = 0;
  for (const auto& set : observed) {
    experts.emplace_back();
    for (const auto expert : set.experts) experts.back().push_back(expert.value);
    weights.push_back(static_cast<double>(set.count));
    tokens += weights.back();
  }
  const auto kept = planning::choose_representatives(experts, weights, planning::max_profile_sets);
  std::vector<double> mass(kept.kept.size(), 0);
  for (std::size_t s = 0; s < observed.size(); ++s) mass[kept.counts[s]] += weights[s];
  std::vector<std::size_t> order(mass.size()), place(mass.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return mass[a] > mass[b]; });
  kept_sets made;
  for (std::size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = i;
    const auto s = kept.kept[order[i]];
    made.sets.push_back({experts[s], observed[s].mean_gate, mass[order[i]] / tokens});
  }
  for (const auto i : kept.counts) made.counts.push_back(place[i]);
  return made;
}

/// What it is with 95 % confidence at most, of substitutes and of slots left out, whichever is more, and no less than where more is unread. What
/// is measured is random and in proportion; at a price that is next to nothing every slot runs where that is fastest, whatever it loses, and does
/// more: no less than two fifths.
std::vector<double> unread_damage(std::span<const model::unread_statistics> measured) {
  constexpr double least = 0.4, most = 100, one_sided_95 = 1.645;
  const auto at_most = [](const model::damage_measurement& found) {
    return found.coefficient + one_sided_95 * found.standard_error;
  };
  std::vector<double> factors(measured.size());
  double behind = least;
  for (auto b = measured.size(); b-- > 0;) {
    behind = std::clamp(std::max(at_most(measured[b].substituted), at_most(measured[b].left_out)),
                        behind, most);
    factors[b] = behind;
  }
  return factors;
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
  made.position_damage = statistics.position_damage;
  made.unread_damage = unread_damage(statistics.unread);
  const auto n = statistics.n_experts;
  std::vector<std::vector<std::size_t>> counts_for;  // [layers][observed sets]
  for (const auto& from : statistics.layers) {
    planning::layer_profile layer;
    double activations = 0;
    for (const auto count : from.activations) activations += static_cast<double>(count);
    for (const auto count : from.activations)
      layer.activation.push_back(static_cast<double>(count) / activations);
    layer.router_logit = cosine(from.logit_gram, n);
    layer.token_gate_regret = square(from.gate_regret, n);
    layer.mean_gate = from.mean_gate;
    auto kept = keep_sets(from.sets);
    layer.sets = std::move(kept.sets);
    counts_for.push_back(std::move(kept.counts));
    for (const auto& measured : from.damage) {
      layer.damage.push_back(std::max(least_damage, measured.coefficient));
      layer.damage_error.push_back(measured.standard_error);
    }
    if (statistics.top_k > 1)
      layer.left_out = {std::max(least_damage, from.left_out.coefficient),
                        from.left_out.standard_error};
    for (const auto& copy : from.copies)
      layer.copies.push_back(
          {copy.kept, copy.distance,
           std::max({least_damage, copy.damage.coefficient, copy.damage.standard_error}),
           copy.damage.standard_error});
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
      sets(counts_for[l][step.from], counts_for[l + 1][step.to]) += static_cast<double>(step.count);
    std::vector<double> frequency;
    for (const auto& set : next.sets) frequency.push_back(set.probability);
    layer.set_transition = normalised(std::move(sets), frequency);
  }
  return made;
}

}  // namespace ordermoe::setup
