#include "planning/target_sets.hpp"

#include <algorithm>
#include <numeric>

namespace ordermoe::planning {

representatives choose_representatives(std::span<const std::vector<std::uint32_t>> sets,
                                       std::span<const double> weights, std::size_t n_most) {
  representatives made;
  made.counts.resize(sets.size());
  if (sets.size() <= n_most) {
    made.kept.resize(sets.size());
    std::iota(made.kept.begin(), made.kept.end(), std::size_t{0});
    made.counts = made.kept;
    return made;
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::size_t> rare;
  double rare_weight = 0;
  for (std::size_t s = 0; s < sets.size(); ++s) {
    if (weights[s] * static_cast<double>(n_most) >= total && made.kept.size() < n_most) {
      made.kept.push_back(s);
    } else {
      rare.push_back(s);
      rare_weight += weights[s];
    }
  }
  std::sort(rare.begin(), rare.end(), [&](auto a, auto b) { return sets[a] < sets[b]; });
  const auto n_sampled = n_most - made.kept.size();
  const double stride = rare_weight / static_cast<double>(std::max<std::size_t>(1, n_sampled));
  double passed = 0, next = 0.5 * stride;
  for (const auto s : rare) {
    passed += weights[s];
    if (passed <= next || made.kept.size() == n_most) continue;
    made.kept.push_back(s);
    while (next < passed) next += stride;
  }
  std::sort(made.kept.begin(), made.kept.end());

  // Kept sets by expert, so that overlaps are counted and not searched.
  std::uint32_t n_experts = 0;
  for (const auto& set : sets)
    for (const auto e : set) n_experts = std::max(n_experts, e + 1);
  std::vector<std::vector<std::size_t>> with(n_experts);
  std::vector<double> mass(made.kept.size(), 0);
  std::vector<std::uint8_t> is_kept(sets.size(), 0);
  for (std::size_t i = 0; i < made.kept.size(); ++i) {
    const auto s = made.kept[i];
    is_kept[s] = 1;
    made.counts[s] = i;
    mass[i] = weights[s];
    for (const auto e : sets[s]) with[e].push_back(i);
  }
  std::vector<std::uint32_t> shared(made.kept.size());
  for (std::size_t s = 0; s < sets.size(); ++s) {
    if (is_kept[s]) continue;
    std::fill(shared.begin(), shared.end(), 0u);
    for (const auto e : sets[s])
      for (const auto i : with[e]) ++shared[i];
    std::size_t best = 0;
    for (std::size_t i = 1; i < shared.size(); ++i)
      if (shared[i] > shared[best] || (shared[i] == shared[best] && mass[i] < mass[best])) best = i;
    made.counts[s] = best;
    mass[best] += weights[s];
  }
  return made;
}

}  // namespace ordermoe::planning
