#include "test/support/random_profile.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>

#include "config/random.hpp"

namespace ordermoe::planning {

namespace {

constexpr std::size_t latent_size = 16;
constexpr std::size_t n_tokens = 1500;
constexpr std::size_t max_sets = 64;

using latent = std::array<double, latent_size>;

/// Box-Muller, one number of the pair.
double normal(random_stream& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.unit()));
  return radius * std::cos(2 * std::numbers::pi * random.unit());
}

latent normal_latent(random_stream& random, double scale) {
  latent values;
  for (double& value : values) value = scale * normal(random);
  return values;
}

double dot(const latent& a, const latent& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// Vectors in groups of about three: a component that all share, one that the group shares, and an
/// own one.
std::vector<latent> grouped_vectors(random_stream& random, std::size_t n_experts,
                                    double shared_scale, double own_scale) {
  const auto shared = normal_latent(random, shared_scale);
  std::vector<latent> centres;
  for (std::size_t g = 0; g < (n_experts + 2) / 3; ++g) centres.push_back(normal_latent(random, 1));
  std::vector<latent> vectors;
  for (std::size_t e = 0; e < n_experts; ++e) {
    const auto& centre = centres[random.below(centres.size())];
    const auto own = normal_latent(random, own_scale);
    vectors.emplace_back();
    for (std::size_t i = 0; i < latent_size; ++i) vectors[e][i] = shared[i] + centre[i] + own[i];
  }
  return vectors;
}

/// What the router did with every token at one layer.
struct routed_layer {
  std::vector<std::vector<double>> logits;         ///< [tokens][E]
  std::vector<std::vector<double>> probabilities;  ///< [tokens][E]
  std::vector<std::vector<std::uint32_t>> chosen;  ///< [tokens][top_k], ascending
  std::vector<std::vector<double>> gates;          ///< [tokens][top_k], of `chosen`
  std::vector<std::size_t> set;                    ///< [tokens] -> kept set
};

void route(routed_layer& layer, const std::vector<latent>& router, const latent& token,
           std::size_t top_k) {
  const auto n = router.size();
  std::vector<double> logits(n), probabilities(n);
  for (std::size_t e = 0; e < n; ++e) logits[e] = 0.6 * dot(router[e], token);
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (std::size_t e = 0; e < n; ++e) sum += probabilities[e] = std::exp(logits[e] - top);
  for (double& p : probabilities) p /= sum;
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return logits[a] > logits[b]; });
  order.resize(top_k);
  std::sort(order.begin(), order.end());
  // A single expert keeps its softmax weight (Switch); several share a weight of 1 (Mixtral).
  double weight = 0;
  for (const auto e : order) weight += probabilities[e];
  std::vector<double> gates;
  for (const auto e : order)
    gates.push_back(top_k == 1 ? probabilities[e] : probabilities[e] / weight);
  layer.logits.push_back(std::move(logits));
  layer.probabilities.push_back(std::move(probabilities));
  layer.chosen.push_back(std::move(order));
  layer.gates.push_back(std::move(gates));
}

/// Eq. (4).
matrix logit_similarity(const routed_layer& routed, std::size_t n_experts) {
  matrix products(n_experts, n_experts);
  for (const auto& logits : routed.logits)
    for (std::size_t i = 0; i < n_experts; ++i)
      for (std::size_t j = 0; j <= i; ++j) products(i, j) += logits[i] * logits[j];
  matrix similarity(n_experts, n_experts, 0);
  for (std::size_t i = 0; i < n_experts; ++i) {
    similarity(i, i) = 1;
    for (std::size_t j = 0; j < i; ++j) {
      const double norms = std::sqrt(products(i, i) * products(j, j));
      const double cosine = norms > 0 ? std::clamp(products(i, j) / norms, -1.0, 1.0) : 0.0;
      similarity(i, j) = similarity(j, i) = cosine;
    }
  }
  return similarity;
}

std::size_t overlap(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  return static_cast<std::size_t>(std::count_if(
      a.begin(), a.end(), [&](auto e) { return std::binary_search(b.begin(), b.end(), e); }));
}

/// Keeps the most frequent sets and says of every token which kept set it counts for.
void fill_sets(layer_profile& layer, routed_layer& routed) {
  std::map<std::vector<std::uint32_t>, std::size_t> counts;
  for (const auto& chosen : routed.chosen) ++counts[chosen];
  std::vector<std::pair<std::vector<std::uint32_t>, std::size_t>> frequent(counts.begin(),
                                                                           counts.end());
  std::stable_sort(frequent.begin(), frequent.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (frequent.size() > max_sets) frequent.resize(max_sets);

  std::map<std::vector<std::uint32_t>, std::size_t> kept_set;
  for (std::size_t s = 0; s < frequent.size(); ++s) kept_set[frequent[s].first] = s;
  for (auto& [experts, assigned] : counts) {
    if (const auto kept = kept_set.find(experts); kept != kept_set.end()) {
      assigned = kept->second;
      continue;
    }
    assigned = 0;
    for (std::size_t s = 1; s < frequent.size(); ++s)
      if (overlap(experts, frequent[s].first) > overlap(experts, frequent[assigned].first))
        assigned = s;
  }

  std::vector<std::size_t> exact(frequent.size()), mapped(frequent.size());
  std::vector<std::vector<double>> gates(frequent.size(),
                                         std::vector<double>(routed.chosen.front().size()));
  for (std::size_t t = 0; t < n_tokens; ++t) {
    const auto s = counts[routed.chosen[t]];
    routed.set.push_back(s);
    ++mapped[s];
    if (routed.chosen[t] != frequent[s].first) continue;
    ++exact[s];
    for (std::size_t i = 0; i < gates[s].size(); ++i) gates[s][i] += routed.gates[t][i];
  }

  // Mapping the rare sets may have changed which kept set is the most frequent.
  std::vector<std::size_t> order(frequent.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return mapped[a] > mapped[b]; });
  std::vector<std::size_t> rank(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto s = order[i];
    rank[s] = i;
    for (double& gate : gates[s]) gate = std::min(1.0, gate / static_cast<double>(exact[s]));
    layer.sets.push_back({frequent[s].first, gates[s], static_cast<double>(mapped[s]) / n_tokens});
  }
  for (auto& s : routed.set) s = rank[s];
}

void fill_gates(layer_profile& layer, const routed_layer& routed, std::size_t n_experts) {
  std::vector<double> counts(n_experts), gates(n_experts);
  matrix regret(n_experts, n_experts);
  for (std::size_t t = 0; t < n_tokens; ++t) {
    for (std::size_t i = 0; i < routed.chosen[t].size(); ++i) {
      const auto r = routed.chosen[t][i];
      ++counts[r];
      gates[r] += routed.gates[t][i];
      for (std::size_t k = 0; k < n_experts; ++k)
        regret(r, k) += routed.probabilities[t][r] - routed.probabilities[t][k];
    }
  }
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  for (std::size_t e = 0; e < n_experts; ++e) {
    layer.activation.push_back(counts[e] / total);
    layer.mean_gate.push_back(counts[e] > 0 ? std::min(1.0, gates[e] / counts[e]) : 0.0);
    for (std::size_t k = 0; k < n_experts; ++k)
      regret(e, k) = counts[e] > 0 ? regret(e, k) / counts[e] : 0.0;
  }
  layer.token_gate_regret = std::move(regret);
}

/// Rows of counts as probabilities; a row without a count takes the next layer's overall shares.
void normalise_rows(matrix& counts) {
  std::vector<double> overall(counts.columns);
  double total = 0;
  for (std::size_t i = 0; i < counts.rows; ++i)
    for (std::size_t j = 0; j < counts.columns; ++j) {
      overall[j] += counts(i, j);
      total += counts(i, j);
    }
  for (std::size_t i = 0; i < counts.rows; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < counts.columns; ++j) sum += counts(i, j);
    for (std::size_t j = 0; j < counts.columns; ++j)
      counts(i, j) = sum > 0 ? counts(i, j) / sum : overall[j] / total;
  }
}

void fill_transitions(layer_profile& layer, const routed_layer& here, const routed_layer& next,
                      std::size_t n_experts, std::size_t n_next_sets) {
  layer.transition = matrix(n_experts, n_experts);
  layer.set_transition = matrix(layer.sets.size(), n_next_sets);
  for (std::size_t t = 0; t < n_tokens; ++t) {
    for (const auto from : here.chosen[t])
      for (const auto to : next.chosen[t]) ++layer.transition(from, to);
    ++layer.set_transition(here.set[t], next.set[t]);
  }
  normalise_rows(layer.transition);
  normalise_rows(layer.set_transition);
}

}  // namespace

profile random_profile(std::size_t n_layers, std::size_t n_experts, std::size_t top_k,
                       std::uint64_t seed) {
  ORDERMOE_CHECK(n_layers > 0 && top_k > 0 && top_k <= n_experts,
                 "a profile without layers or slots");
  random_stream random(seed, 0x70726f66);
  profile content;
  content.model_name = "random";
  content.model_digest = std::string(64, '0');
  content.n_layers = n_layers;
  content.n_experts = n_experts;
  content.top_k = top_k;
  content.calibration_tokens = n_tokens;
  content.seed = seed;
  content.baseline_nats = 2;
  content.layers.resize(n_layers);

  std::vector<latent> tokens;
  for (std::size_t t = 0; t < n_tokens; ++t) tokens.push_back(normal_latent(random, 1));
  std::vector<routed_layer> routed(n_layers);
  for (std::size_t l = 0; l < n_layers; ++l) {
    auto& layer = content.layers[l];
    const auto router = grouped_vectors(random, n_experts, 0.5, 0.45);
    for (auto& token : tokens) {
      route(routed[l], router, token, top_k);
      // Most of a token's direction survives a layer, so that targets of adjacent layers are
      // correlated.
      for (double& value : token) value = 0.95 * value + 0.31 * normal(random);
    }
    layer.router_logit = logit_similarity(routed[l], n_experts);
    // Drawn and left, as two of four damages below: a seed stands for the profile that it always stood for.
    grouped_vectors(random, n_experts, 0, 0.6);
    fill_gates(layer, routed[l], n_experts);
    fill_sets(layer, routed[l]);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto damage = random.uniform(0.05, 0.4);
      if (i == 1 || i == 2) continue;
      layer.damage.push_back(damage);
      layer.damage_error.push_back(0.05 * layer.damage.back());
    }
  }
  for (std::size_t l = 0; l + 1 < n_layers; ++l)
    fill_transitions(content.layers[l], routed[l], routed[l + 1], n_experts,
                     content.layers[l + 1].sets.size());
  return content;
}

}  // namespace ordermoe::planning
