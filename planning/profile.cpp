#include "planning/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace ordermoe::planning {

namespace {

/// Rounding in a sum of many probabilities; far below anything that a decision depends on.
constexpr double sum_tolerance = 1e-6;

error wrong_shape(const std::string& path, std::size_t found, std::size_t expected) {
  return {errc::mismatch, fmt::format("{}: found {} values, expected {}; calibrate the model again",
                                      path, found, expected)};
}

error wrong_value(const std::string& path, double found, std::string_view expected) {
  return {errc::out_of_range, fmt::format("{}: found {}, expected {}; calibrate the model again",
                                          path, found, expected)};
}

result<void> check_range(std::span<const double> values, double low, double high,
                         const std::string& path) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Written so that a NaN fails.
    if (!(values[i] >= low && values[i] <= high))
      return wrong_value(fmt::format("{}[{}]", path, i), values[i],
                         std::isinf(high) ? fmt::format("a finite number of at least {}", low)
                                          : fmt::format("a number from {} to {}", low, high));
    if (std::isinf(values[i]))
      return wrong_value(fmt::format("{}[{}]", path, i), values[i], "a finite number");
  }
  return {};
}

result<void> check_sum(std::span<const double> values, const std::string& path) {
  double sum = 0;
  for (const double value : values) sum += value;
  if (!(std::abs(sum - 1) <= sum_tolerance)) return wrong_value(path, sum, "a sum of 1");
  return {};
}

result<void> check_matrix(const matrix& content, std::size_t rows, std::size_t columns, double low,
                          double high, const std::string& path) {
  if (content.rows != rows) return wrong_shape(path, content.rows, rows);
  if (content.columns != columns) return wrong_shape(path + "[0]", content.columns, columns);
  if (content.values.size() != rows * columns)
    return wrong_shape(path, content.values.size(), rows * columns);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::span<const double> values(content.values.data() + row * columns, columns);
    if (auto checked = check_range(values, low, high, fmt::format("{}[{}]", path, row)); !checked)
      return checked;
  }
  return {};
}

result<void> check_stochastic(const matrix& content, std::size_t rows, std::size_t columns,
                              const std::string& path) {
  if (auto checked = check_matrix(content, rows, columns, 0, 1, path); !checked) return checked;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::span<const double> values(content.values.data() + row * columns, columns);
    if (auto checked = check_sum(values, fmt::format("{}[{}]", path, row)); !checked)
      return checked;
  }
  return {};
}

result<void> check_similarity(const matrix& content, std::size_t n, const std::string& path) {
  // A cosine may leave [-1, 1] by rounding only.
  constexpr double rounding = 1e-9;
  if (auto checked = check_matrix(content, n, n, -1 - rounding, 1 + rounding, path); !checked)
    return checked;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::abs(content(i, i) - 1) > rounding)
      return wrong_value(fmt::format("{}[{}][{}]", path, i, i), content(i, i), "1 on the diagonal");
    for (std::size_t j = 0; j < i; ++j)
      if (std::abs(content(i, j) - content(j, i)) > rounding)
        return wrong_value(fmt::format("{}[{}][{}]", path, i, j), content(i, j),
                           fmt::format("{}, as in row {} column {}", content(j, i), j, i));
  }
  return {};
}

result<void> check_zero_diagonal(const matrix& content, const std::string& path) {
  for (std::size_t i = 0; i < content.rows; ++i)
    if (content(i, i) != 0)
      return wrong_value(fmt::format("{}[{}][{}]", path, i, i), content(i, i), "0 on the diagonal");
  return {};
}

result<void> check_sets(const profile& whole, const layer_profile& layer, const std::string& path) {
  if (layer.sets.empty())
    return error{errc::mismatch, path +
                                     ": found no target set, expected at least one; calibrate "
                                     "the model again"};
  double sum = 0;
  for (std::size_t s = 0; s < layer.sets.size(); ++s) {
    const auto& set = layer.sets[s];
    const auto here = fmt::format("{}[{}]", path, s);
    if (set.experts.size() != whole.top_k)
      return wrong_shape(here + ".experts", set.experts.size(), whole.top_k);
    if (set.mean_gate.size() != whole.top_k)
      return wrong_shape(here + ".mean_gate", set.mean_gate.size(), whole.top_k);
    for (std::size_t i = 0; i < set.experts.size(); ++i) {
      if (set.experts[i] >= whole.n_experts)
        return wrong_value(fmt::format("{}.experts[{}]", here, i), set.experts[i],
                           fmt::format("an expert below {}", whole.n_experts));
      if (i > 0 && set.experts[i] <= set.experts[i - 1])
        return wrong_value(fmt::format("{}.experts[{}]", here, i), set.experts[i],
                           "experts in ascending order");
    }
    if (auto checked = check_range(set.mean_gate, 0, 1, here + ".mean_gate"); !checked)
      return checked;
    const std::span<const double> probability(&set.probability, 1);
    if (auto checked = check_range(probability, 0, 1, here + ".probability"); !checked)
      return checked;
    if (s > 0 && set.probability > layer.sets[s - 1].probability)
      return wrong_value(here + ".probability", set.probability, "the most frequent set first");
    sum += set.probability;
  }
  if (!(std::abs(sum - 1) <= sum_tolerance))
    return wrong_value(path, sum, "probabilities that sum to 1");
  auto names = std::vector<std::vector<std::uint32_t>>();
  for (const auto& set : layer.sets) names.push_back(set.experts);
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end())
    return error{errc::mismatch, path +
                                     ": found a target set twice, expected each set once; "
                                     "calibrate the model again"};
  return {};
}

result<void> check_layer(const profile& content, std::size_t l) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto& layer = content.layers[l];
  const auto n = content.n_experts;
  const bool last = l + 1 == content.n_layers;
  const auto path = [&](const char* name) { return fmt::format("layers[{}].{}", l, name); };

  if (layer.activation.size() != n)
    return wrong_shape(path("activation"), layer.activation.size(), n);
  if (auto r = check_range(layer.activation, 0, 1, path("activation")); !r) return r;
  if (auto r = check_sum(layer.activation, path("activation")); !r) return r;
  if (auto r = check_similarity(layer.router_logit, n, path("router_logit")); !r) return r;
  if (auto r = check_matrix(layer.token_gate_regret, n, n, -1, 1, path("token_gate_regret")); !r)
    return r;
  if (auto r = check_zero_diagonal(layer.token_gate_regret, path("token_gate_regret")); !r)
    return r;
  if (layer.mean_gate.size() != n) return wrong_shape(path("mean_gate"), layer.mean_gate.size(), n);
  if (auto r = check_range(layer.mean_gate, 0, 1, path("mean_gate")); !r) return r;
  if (auto r = check_stochastic(layer.transition, last ? 0 : n, last ? 0 : n, path("transition"));
      !r)
    return r;
  if (auto r = check_sets(content, layer, path("sets")); !r) return r;
  if (auto r =
          check_stochastic(layer.set_transition, last ? 0 : layer.sets.size(),
                           last ? 0 : content.layers[l + 1].sets.size(), path("set_transition"));
      !r)
    return r;
  if (layer.damage.size() != n_loss_metrics)
    return wrong_shape(path("damage"), layer.damage.size(), n_loss_metrics);
  if (auto r = check_range(layer.damage, 0, infinity, path("damage")); !r) return r;
  if (layer.damage_error.size() != n_loss_metrics)
    return wrong_shape(path("damage_error"), layer.damage_error.size(), n_loss_metrics);
  if (auto r = check_range(layer.damage_error, 0, infinity, path("damage_error")); !r) return r;
  if (layer.left_out) {
    const std::array left_out{layer.left_out->damage, layer.left_out->damage_error};
    if (auto r = check_range(left_out, 0, infinity, path("left_out.damage")); !r) return r;
  }
  if (layer.copies.size() != content.layers[0].copies.size())
    return wrong_shape(path("copies"), layer.copies.size(), content.layers[0].copies.size());
  for (std::size_t c = 0; c < layer.copies.size(); ++c) {
    const auto& copy = layer.copies[c];
    const auto here = fmt::format("layers[{}].copies[{}]", l, c);
    if (copy.kept != content.layers[0].copies[c].kept ||
        (c > 0 && copy.kept <= layer.copies[c - 1].kept))
      return error{errc::mismatch,
                   fmt::format("{}.precision: found {}, expected the precisions of layers[0], each "
                               "once from fine to coarse; calibrate the model again",
                               here, to_string(copy.kept))};
    if (copy.distance.size() != n) return wrong_shape(here + ".distance", copy.distance.size(), n);
    if (auto r = check_range(copy.distance, 0, infinity, here + ".distance"); !r) return r;
    const std::array damage{copy.damage, copy.damage_error};
    if (auto r = check_range(damage, 0, infinity, here + ".damage"); !r) return r;
  }
  return {};
}

}  // namespace

const copy_profile* layer_profile::copy_of(precision kept) const {
  const auto found = std::find_if(copies.begin(), copies.end(),
                                  [&](const copy_profile& copy) { return copy.kept == kept; });
  return found == copies.end() ? nullptr : &*found;
}

namespace {

/// As many sets as experts, each expert in as many as any other.
std::vector<target_set> uniform_sets(std::size_t n_experts, std::size_t top_k) {
  // With all experts in it there is only one.
  const auto n_sets = top_k == n_experts ? std::size_t{1} : n_experts;
  std::vector<target_set> sets(n_sets);
  for (std::size_t s = 0; s < n_sets; ++s) {
    for (std::size_t i = 0; i < top_k; ++i)
      sets[s].experts.push_back(static_cast<std::uint32_t>((s + i) % n_experts));
    std::sort(sets[s].experts.begin(), sets[s].experts.end());
    sets[s].mean_gate.assign(top_k, 1.0 / static_cast<double>(top_k));
    sets[s].probability = 1.0 / static_cast<double>(n_sets);
  }
  return sets;
}

}  // namespace

profile uniform_profile(std::string model_name, std::string model_digest, std::size_t n_layers,
                        std::size_t n_experts, std::size_t top_k) {
  profile made;
  made.model_name = std::move(model_name);
  made.model_digest = std::move(model_digest);
  made.n_layers = n_layers;
  made.n_experts = n_experts;
  made.top_k = top_k;
  layer_profile layer;
  const double share = 1.0 / static_cast<double>(n_experts);
  layer.activation.assign(n_experts, share);
  layer.router_logit = matrix(n_experts, n_experts);
  for (std::size_t e = 0; e < n_experts; ++e) layer.router_logit(e, e) = 1;
  layer.token_gate_regret = matrix(n_experts, n_experts);
  layer.mean_gate.assign(n_experts, 1.0 / static_cast<double>(top_k));
  layer.sets = uniform_sets(n_experts, top_k);
  const auto n_sets = layer.sets.size();
  layer.damage.assign(n_loss_metrics, 1);
  layer.damage_error.assign(n_loss_metrics, 0);
  auto last = layer;
  layer.transition = matrix(n_experts, n_experts, share);
  layer.set_transition = matrix(n_sets, n_sets, 1.0 / static_cast<double>(n_sets));
  made.layers.assign(n_layers - 1, layer);
  made.layers.push_back(std::move(last));
  return made;
}

result<void> validate(const profile& content) {
  if (content.n_layers == 0) return wrong_value("n_layers", 0, "at least 1");
  if (content.n_experts == 0) return wrong_value("n_experts", 0, "at least 1");
  if (content.top_k == 0 || content.top_k > content.n_experts)
    return wrong_value("top_k", static_cast<double>(content.top_k),
                       fmt::format("a number from 1 to {}", content.n_experts));
  if (content.layers.size() != content.n_layers)
    return wrong_shape("layers", content.layers.size(), content.n_layers);
  if (!(std::isfinite(content.baseline_nats) && content.baseline_nats >= 0))
    return wrong_value("baseline_nats", content.baseline_nats, "a finite number of at least 0");
  for (std::size_t l = 0; l < content.n_layers; ++l)
    if (auto checked = check_layer(content, l); !checked) return checked;
  // Beyond these a loss in nats would be no number of units.
  constexpr double least = 1e-3, most = 1e3;
  if (auto checked = check_range(content.unread_damage, least, most, "unread_damage"); !checked)
    return checked;
  return check_range(content.position_damage, least, most, "position_damage");
}

}  // namespace ordermoe::planning
