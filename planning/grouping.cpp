#include <algorithm>
#include <numeric>

#include "planning/placement.hpp"

namespace ordermoe::planning {

namespace {

/// Experts by falling activation, eq. (5); ties to the lower index.
std::vector<std::uint32_t> by_activation(const std::vector<double>& activation) {
  std::vector<std::uint32_t> order(activation.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return activation[a] > activation[b]; });
  return order;
}

/// Eq. (24): the dominant experts C_l, in the order in which they were found.
std::vector<std::uint32_t> dominant_experts(const std::vector<std::uint32_t>& order,
                                            const matrix& similarity, double threshold) {
  std::vector<std::uint32_t> dominant;
  for (const auto j : order) {
    const bool covered = std::any_of(dominant.begin(), dominant.end(),
                                     [&](auto c) { return similarity(j, c) >= threshold; });
    if (!covered) dominant.push_back(j);
  }
  return dominant;
}

/// Eq. (25): the index g(j) of the dominant expert most similar to j.
std::uint32_t most_similar(const std::vector<std::uint32_t>& dominant, const matrix& similarity,
                           std::uint32_t j) {
  std::uint32_t best = 0;
  for (std::uint32_t g = 1; g < dominant.size(); ++g)
    if (similarity(j, dominant[g]) > similarity(j, dominant[best])) best = g;
  return best;
}

/// Eq. (27): rho_l^j, the mean similarity of j to its group, itself included.
double representativeness(const expert_group& group, const matrix& similarity, std::uint32_t j) {
  double sum = 0;
  for (const auto k : group.members) sum += similarity(j, k);
  return sum / static_cast<double>(group.members.size());
}

/// Eq. (28): I_l^j.
double importance(double activation, double rho, double alpha_activation) {
  return alpha_activation * activation + (1 - alpha_activation) * rho;
}

}  // namespace

double layer_threshold(std::size_t layer, std::size_t n_layers, const placement_options& options) {
  // Eq. (6)
  if (n_layers <= 1) return options.theta_max;
  const auto depth_left =
      static_cast<double>(n_layers - 1 - layer) / static_cast<double>(n_layers - 1);
  return options.theta_min + (options.theta_max - options.theta_min) * depth_left;
}

layer_grouping group_layer(const layer_profile& profile, const matrix& similarity, double threshold,
                           const placement_options& options) {
  const auto n = profile.activation.size();
  const auto dominant = dominant_experts(by_activation(profile.activation), similarity, threshold);
  layer_grouping grouping;
  grouping.threshold = threshold;
  grouping.group_of.resize(n);
  // Eq. (26). A dominant expert belongs to its own group even where rounding makes another look
  // nearer.
  for (const auto c : dominant) grouping.groups.push_back({c, {}});
  for (std::uint32_t j = 0; j < n; ++j) {
    const auto own = std::find(dominant.begin(), dominant.end(), j);
    const auto g = own != dominant.end() ? static_cast<std::uint32_t>(own - dominant.begin())
                                         : most_similar(dominant, similarity, j);
    grouping.group_of[j] = g;
    grouping.groups[g].members.push_back(j);
  }
  for (std::uint32_t j = 0; j < n; ++j) {
    const auto rho = representativeness(grouping.groups[grouping.group_of[j]], similarity, j);
    grouping.representativeness.push_back(rho);
    grouping.importance.push_back(importance(profile.activation[j], rho, options.alpha_activation));
  }
  return grouping;
}

std::vector<std::uint32_t> feasible_experts(const layer_grouping& grouping,
                                            const matrix& similarity, std::uint32_t target) {
  std::vector<std::uint32_t> feasible;
  for (const auto k : grouping.groups[grouping.group_of[target]].members)
    if (k == target || similarity(target, k) >= grouping.threshold) feasible.push_back(k);
  return feasible;
}

}  // namespace ordermoe::planning
