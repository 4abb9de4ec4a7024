#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "planning/strategies/measured_activation.hpp"

/// A profile that expects what was measured.
namespace ordermoe::planning {

namespace {

/// A row of the old profile keeps every expert and set above zero.
constexpr double prior_rows = 1;
/// Rows whose successors are taken to be those of any row, beside those that calibration saw of a set.
constexpr double unknown_rows = 4;
/// As many rows as this counts what calibration says of a set's successors beside those that were measured.
constexpr double expected_rows = 8;
constexpr std::size_t nowhere = std::numeric_limits<std::size_t>::max();
constexpr int most_rounds = 200;
constexpr double settled = 1e-9;

/// Scales the sets' probabilities towards `shares`, expert by expert; each set has top_k experts,
/// so an expert is in share * top_k of the positions.
void fit_sets(std::vector<target_set>& sets, std::span<const double> shares, std::size_t top_k) {
  constexpr int n_rounds = 50;
  for (int round = 0; round < n_rounds; ++round) {
    double change = 0;
    for (std::uint32_t expert = 0; expert < shares.size(); ++expert) {
      double in = 0, out = 0;
      const auto has = [&](const target_set& set) {
        return std::binary_search(set.experts.begin(), set.experts.end(), expert);
      };
      for (const auto& set : sets) (has(set) ? in : out) += set.probability;
      const auto wanted = std::min(1.0, shares[expert] * static_cast<double>(top_k));
      if (in <= 0 || out <= 0) continue;
      change = std::max(change, std::abs(wanted - in / (in + out)));
      for (auto& set : sets) set.probability *= has(set) ? wanted / in : (1 - wanted) / out;
    }
    if (change < settled) break;
  }
  double total = 0;
  for (const auto& set : sets) total += set.probability;
  for (auto& set : sets) set.probability /= total;
}

/// A layer's target sets as they are expected now, most frequent first.
struct expected_sets {
  std::vector<target_set> sets;
  std::vector<std::size_t> origin;  ///< [sets] which of the profile's each is, or `nowhere`.

  std::vector<double> frequency() const {
    std::vector<double> all;
    for (const auto& set : sets) all.push_back(set.probability);
    return all;
  }
};

/// Of a set that calibration did not see.
std::vector<double> gates_of(const layer_profile& layer, std::span<const std::uint32_t> experts) {
  std::vector<double> gates;
  for (const auto expert : experts) {
    const auto gate = layer.mean_gate[expert];
    gates.push_back(gate > 0 ? gate : 1.0 / static_cast<double>(experts.size()));
  }
  return gates;
}

void sort_by_frequency(expected_sets& content) {
  std::vector<std::size_t> order(content.sets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return content.sets[a].probability > content.sets[b].probability;
  });
  const auto old = content;
  for (std::size_t i = 0; i < order.size(); ++i) {
    content.sets[i] = old.sets[order[i]];
    content.origin[i] = old.origin[order[i]];
  }
}

/// `weight`: of what was measured.
void take_sets(const layer_profile& layer, const std::vector<measured_set>& measured, double weight,
               expected_sets& content) {
  std::map<std::vector<std::uint32_t>, std::size_t> places;
  for (std::size_t s = 0; s < content.sets.size(); ++s) {
    places.emplace(content.sets[s].experts, s);
    content.sets[s].probability *= 1 - weight;
  }
  for (const auto& set : measured) {
    const auto [place, is_new] = places.emplace(set.experts, content.sets.size());
    if (is_new) {
      content.sets.push_back({set.experts, gates_of(layer, set.experts), 0});
      content.origin.push_back(nowhere);
    }
    content.sets[place->second].probability += weight * set.share();
  }
}

expected_sets expect(const profile& old, const measured_activation& measured, std::size_t l,
                     layer_profile& layer) {
  expected_sets content{layer.sets, std::vector<std::size_t>(layer.sets.size())};
  std::iota(content.origin.begin(), content.origin.end(), std::size_t{0});
  if (measured.shares[l].empty()) return content;
  const auto weight = measured.rows[l] / (measured.rows[l] + prior_rows);
  for (std::size_t e = 0; e < layer.activation.size(); ++e)
    layer.activation[e] = weight * measured.shares[l][e] + (1 - weight) * layer.activation[e];
  if (!measured.sets.empty()) take_sets(layer, measured.sets[l], weight, content);
  fit_sets(content.sets, layer.activation, old.top_k);
  sort_by_frequency(content);
  return content;
}

/// Of the joint frequencies whose rows sum to `from` and whose columns sum to `to` those nearest to these (of least relative
/// entropy): both sums are met in turn, which leaves the odds between pairs as they are.
void fit_joint(matrix& joint, std::span<const double> from, std::span<const double> to) {
  std::vector<double> sums(joint.columns);
  for (int round = 0; round < most_rounds; ++round) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t r = 0; r < joint.rows; ++r) {
      double* row = joint.values.data() + r * joint.columns;
      const auto sum = std::accumulate(row, row + joint.columns, 0.0);
      const auto factor = sum > 0 ? from[r] / sum : 0;
      for (std::size_t c = 0; c < joint.columns; ++c) sums[c] += row[c] *= factor;
    }
    double change = 0;
    for (std::size_t c = 0; c < joint.columns; ++c) {
      change = std::max(change, std::abs(sums[c] - to[c]));
      sums[c] = sums[c] > 0 ? to[c] / sums[c] : 0;
    }
    if (change < settled) return;
    for (std::size_t r = 0; r < joint.rows; ++r)
      for (std::size_t c = 0; c < joint.columns; ++c) joint(r, c) *= sums[c];
  }
}

/// What follows each row, where rows and columns come as often as they do.
matrix conditional(matrix joint, std::span<const double> from, std::span<const double> to) {
  fit_joint(joint, from, to);
  for (std::size_t r = 0; r < from.size(); ++r) {
    double* row = joint.values.data() + r * to.size();
    const auto sum = std::accumulate(row, row + to.size(), 0.0);
    for (std::size_t c = 0; c < to.size(); ++c) row[c] = sum > 0 ? row[c] / sum : to[c];
  }
  return joint;
}

/// What a transition matrix of the profile becomes: its rows and columns are those of `origin`, and occur as often as
/// `from` and `to` say. `seen` [old rows]: rows of calibration that each is the mean of.
matrix fitted(const matrix& old, std::span<const double> seen,
              std::span<const std::size_t> from_origin, std::span<const std::size_t> to_origin,
              std::span<const double> from, std::span<const double> to) {
  matrix joint(from.size(), to.size());
  for (std::size_t r = 0; r < from.size(); ++r) {
    const auto old_row = from_origin[r];
    const auto known = old_row == nowhere ? 0 : seen[old_row];
    for (std::size_t c = 0; c < to.size(); ++c) {
      const auto old_share =
          old_row == nowhere || to_origin[c] == nowhere ? 0 : old(old_row, to_origin[c]);
      joint(r, c) = from[r] * (known * old_share + unknown_rows * to[c]) / (known + unknown_rows);
    }
  }
  return conditional(std::move(joint), from, to);
}

/// With the steps that were measured, [from, to] rows of each.
matrix with_steps(matrix expected, const matrix& seen, std::span<const double> from,
                  std::span<const double> to) {
  for (std::size_t r = 0; r < expected.rows; ++r) {
    double rows = expected_rows;
    for (std::size_t c = 0; c < expected.columns; ++c) rows += seen(r, c);
    for (std::size_t c = 0; c < expected.columns; ++c)
      expected(r, c) = from[r] * (expected_rows * expected(r, c) + seen(r, c)) / rows;
  }
  return conditional(std::move(expected), from, to);
}

std::size_t place_of(const expected_sets& content, const std::vector<std::uint32_t>& experts) {
  return static_cast<std::size_t>(std::ranges::find(content.sets, experts, &target_set::experts) -
                                  content.sets.begin());
}

/// [sets here, sets at the next layer] rows that were seen to take each step.
matrix seen_steps(const measured_activation& measured, std::size_t l, const expected_sets& here,
                  const expected_sets& next) {
  matrix seen(here.sets.size(), next.sets.size());
  for (const auto& step : measured.steps[l]) {
    const auto from = place_of(here, step.from), to = place_of(next, step.to);
    if (from < seen.rows && to < seen.columns)
      seen(from, to) += measured.step_rows[l] * step.millionths / whole_share;
  }
  return seen;
}

std::vector<double> rows_of(std::span<const double> frequency, double rows) {
  std::vector<double> all(frequency.begin(), frequency.end());
  for (auto& each : all) each *= rows;
  return all;
}

}  // namespace

profile with_measured_activation(const profile& profile, const measured_activation& measured) {
  auto made = profile;
  std::vector<expected_sets> expected;
  for (std::size_t l = 0; l < made.n_layers; ++l)
    expected.push_back(expect(profile, measured, l, made.layers[l]));
  std::vector<std::size_t> experts(made.n_experts);
  std::iota(experts.begin(), experts.end(), std::size_t{0});
  const auto tokens = static_cast<double>(profile.calibration_tokens);
  const auto is_measured = [&](std::size_t l) { return !measured.shares[l].empty(); };
  for (std::size_t l = 0; l < made.n_layers; ++l) {
    auto& layer = made.layers[l];
    layer.sets = expected[l].sets;
    if (l + 1 == made.n_layers || (!is_measured(l) && !is_measured(l + 1))) continue;
    const auto& old = profile.layers[l];
    std::vector<double> old_frequency;
    for (const auto& set : old.sets) old_frequency.push_back(set.probability);
    layer.set_transition =
        fitted(old.set_transition, rows_of(old_frequency, tokens), expected[l].origin,
               expected[l + 1].origin, expected[l].frequency(), expected[l + 1].frequency());
    if (!measured.steps.empty() && is_measured(l) && is_measured(l + 1))
      layer.set_transition = with_steps(std::move(layer.set_transition),
                                        seen_steps(measured, l, expected[l], expected[l + 1]),
                                        expected[l].frequency(), expected[l + 1].frequency());
    layer.transition =
        fitted(old.transition, rows_of(old.activation, tokens * static_cast<double>(made.top_k)),
               experts, experts, layer.activation, made.layers[l + 1].activation);
  }
  return made;
}

}  // namespace ordermoe::planning
