#include "planning/pruning.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "planning/infinity.hpp"

namespace ordermoe::planning {

namespace {

constexpr std::uint32_t nobody = std::numeric_limits<std::uint32_t>::max();

/// One layer while experts leave it.
class thinning {
 public:
  thinning(const layer_profile& layer, std::size_t top_k)
      : layer_(layer),
        n_experts_(layer.activation.size()),
        top_k_(top_k),
        damage_(layer.damage[static_cast<std::size_t>(loss_metric::token_gate)]),
        pruned_(n_experts_, 0),
        in_place_(layer.sets.size() * top_k, nobody) {}

  bool is_pruned(std::size_t expert) const { return pruned_[expert] != 0; }
  std::size_t n_left() const {
    return n_experts_ - static_cast<std::size_t>(std::ranges::count(pruned_, 1));
  }

  /// Nats that it would add to leave this one out, too.
  double added_nats(std::size_t expert) {
    pruned_[expert] = 1;
    double added = 0;
    for (std::size_t s = 0; s < layer_.sets.size(); ++s)
      for (std::size_t j = 0; j < top_k_; ++j) {
        if (!is_hit(s, j, expert)) continue;
        const auto target = layer_.sets[s].experts[j];
        const auto before = in_place_[s * top_k_ + j];
        const auto after = best_in_place(s, j);
        added += layer_.sets[s].probability *
                 (regret(target, after) - (before == nobody ? 0 : regret(target, before)));
      }
    pruned_[expert] = 0;
    return damage_ * added;
  }

  void prune(std::size_t expert) {
    pruned_[expert] = 1;
    for (std::size_t s = 0; s < layer_.sets.size(); ++s)
      for (std::size_t j = 0; j < top_k_; ++j)
        if (is_hit(s, j, expert)) in_place_[s * top_k_ + j] = best_in_place(s, j);
  }

  /// What runs for this member of a set.
  std::uint32_t runs(std::size_t set, std::size_t member) const {
    const auto other = in_place_[set * top_k_ + member];
    return other == nobody ? layer_.sets[set].experts[member] : other;
  }

 private:
  /// Whether this slot ran the expert before it left.
  bool is_hit(std::size_t set, std::size_t member, std::size_t expert) const {
    return runs(set, member) == expert;
  }
  double regret(std::uint32_t target, std::uint32_t expert) const {
    return std::max(0.0, layer_.token_gate_regret(target, expert));
  }
  std::uint32_t best_in_place(std::size_t set, std::size_t member) const {
    const auto& experts = layer_.sets[set].experts;
    std::uint32_t best = nobody;
    double least = infinity;
    for (std::uint32_t k = 0; k < n_experts_; ++k) {
      if (pruned_[k] != 0 || regret(experts[member], k) >= least) continue;
      if (std::ranges::find(experts, k) != experts.end() || is_in_place(set, k)) continue;
      least = regret(experts[member], k);
      best = k;
    }
    ORDERMOE_CHECK(best != nobody, "a layer has as many experts left as a token has");
    return best;
  }
  bool is_in_place(std::size_t set, std::uint32_t expert) const {
    const auto* const first = in_place_.data() + set * top_k_;
    return std::find(first, first + top_k_, expert) != first + top_k_;
  }

  const layer_profile& layer_;
  std::size_t n_experts_, top_k_;
  double damage_;
  std::vector<std::uint8_t> pruned_;
  std::vector<std::uint32_t> in_place_;  ///< [sets, top_k] what runs for a pruned member
};

/// One layer's steps, until top_k experts are left.
std::vector<pruning_step> steps_of(const layer_profile& layer, std::size_t number,
                                   std::size_t top_k) {
  thinning model(layer, top_k);
  std::vector<pruning_step> steps;
  while (model.n_left() > top_k) {
    pruning_step least{number, 0, infinity};
    for (std::size_t e = 0; e < layer.activation.size(); ++e) {
      if (model.is_pruned(e)) continue;
      const double nats = model.added_nats(e);
      if (nats < least.nats) least = {number, e, nats};
    }
    model.prune(least.expert);
    steps.push_back(least);
  }
  return steps;
}

}  // namespace

std::vector<pruning_step> pruning_order(const profile& profile) {
  std::vector<std::vector<pruning_step>> layers;
  for (std::size_t l = 0; l < profile.n_layers; ++l)
    layers.push_back(steps_of(profile.layers[l], l, profile.top_k));
  std::vector<std::size_t> done(profile.n_layers, 0);
  std::vector<pruning_step> order;
  for (;;) {
    const pruning_step* least = nullptr;
    for (std::size_t l = 0; l < profile.n_layers; ++l)
      if (done[l] < layers[l].size() && (least == nullptr || layers[l][done[l]].nats < least->nats))
        least = &layers[l][done[l]];
    if (least == nullptr) return order;
    order.push_back(*least);
    ++done[least->layer];
  }
}

pruned_experts first_pruned(const std::vector<pruning_step>& order, std::size_t n_layers,
                            std::size_t n) {
  pruned_experts pruned;
  pruned.layers.resize(n_layers);
  for (std::size_t i = 0; i < std::min(n, order.size()); ++i)
    pruned.layers[order[i].layer].push_back(static_cast<std::uint32_t>(order[i].expert));
  for (auto& layer : pruned.layers) std::ranges::sort(layer);
  return pruned;
}

std::vector<std::vector<double>> worth_of_each(const std::vector<pruning_step>& order,
                                               const profile& profile) {
  constexpr double least = 1e-12;
  double most = least;
  for (const auto& step : order) most = std::max(most, step.nats);
  std::vector<std::vector<double>> worth(profile.n_layers,
                                         std::vector<double>(profile.n_experts, 2 * most));
  double so_far = least;
  for (const auto& step : order)
    worth[step.layer][step.expert] = so_far = std::max(so_far, step.nats);
  return worth;
}

profile with_pruned(const profile& content, const pruned_experts& pruned) {
  auto made = content;
  for (std::size_t l = 0; l < content.n_layers; ++l) {
    if (pruned.layers[l].empty()) continue;
    thinning model(content.layers[l], content.top_k);
    for (const auto e : pruned.layers[l]) model.prune(e);
    auto& layer = made.layers[l];
    std::ranges::fill(layer.activation, 0);
    for (std::size_t s = 0; s < layer.sets.size(); ++s) {
      auto& set = layer.sets[s];
      std::vector<std::pair<std::uint32_t, double>> members;
      for (std::size_t j = 0; j < content.top_k; ++j) {
        members.emplace_back(model.runs(s, j), set.mean_gate[j]);
        layer.activation[members.back().first] +=
            set.probability / static_cast<double>(content.top_k);
      }
      std::ranges::sort(members);
      for (std::size_t j = 0; j < content.top_k; ++j)
        std::tie(set.experts[j], set.mean_gate[j]) = members[j];
    }
  }
  return made;
}

}  // namespace ordermoe::planning
