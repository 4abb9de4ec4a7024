#include "planning/search/trajectory_model.hpp"

#include <algorithm>

#include "planning/selection/slot_sweep.hpp"
#include "planning/target_sets.hpp"

namespace ordermoe::planning {

namespace {

/// The target sets kept of a layer, what they count for together, and which set counts for which.
struct kept_sets {
  representatives which;
  std::vector<double> probability;  ///< [kept]

  kept_sets(const layer_profile& layer, std::size_t max_sets) {
    std::vector<std::vector<std::uint32_t>> sets;
    std::vector<double> weights;
    for (const auto& set : layer.sets) {
      sets.push_back(set.experts);
      weights.push_back(set.probability);
    }
    which = choose_representatives(sets, weights, max_sets);
    probability.assign(which.kept.size(), 0);
    for (std::size_t s = 0; s < sets.size(); ++s) probability[which.counts[s]] += weights[s];
  }
  bool is_all() const { return which.kept.size() == which.counts.size(); }
};

}  // namespace

trajectory_model::trajectory_model(const profile& experts, const cost_model& prices,
                                   slot_sharing shares, std::size_t max_sets)
    : n_layers(experts.n_layers),
      n_experts(experts.n_experts),
      n_servers(prices.n_servers),
      n_slots(experts.top_k),
      n_candidates(shares == slot_sharing::allowed ? n_experts : n_experts - n_slots + 1),
      sharing(shares),
      costs(prices) {
  ORDERMOE_CHECK(n_slots >= 1 && n_slots <= max_trajectory_slots, "a token has 1 to 8 slots");
  ORDERMOE_CHECK(n_servers >= 1 && n_servers <= 64, "a plan has 1 to 64 servers");
  ORDERMOE_CHECK(n_servers * n_experts <= 65536,
                 "servers times experts of a layer are at most 65536");
  for (std::size_t m = 0; m < costs.expert_precision.size(); ++m)
    if (costs.expert_precision[m] != precision::stored) coarse |= server_mask{1} << m;
  constexpr auto metric = static_cast<std::size_t>(loss_metric::token_gate);
  if (max_sets == 0) max_sets = 64;
  std::vector<kept_sets> kept;
  for (const auto& source : experts.layers) kept.emplace_back(source, max_sets);
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto& source = experts.layers[l];
    layer target;
    target.n_sets = kept[l].which.kept.size();
    ORDERMOE_CHECK(target.n_sets > 0, "a profile lists at least one target set for each layer");
    double total = 0;
    for (const double p : kept[l].probability) total += p;
    for (std::size_t q = 0; q < target.n_sets; ++q) {
      const auto& set = source.sets[kept[l].which.kept[q]];
      target.probability.push_back(total > 0 ? kept[l].probability[q] / total
                                             : 1.0 / static_cast<double>(target.n_sets));
      for (std::size_t j = 0; j < n_slots; ++j) {
        target.squared_gates.push_back(set.mean_gate[j] * set.mean_gate[j]);
        const auto r = set.experts[j];
        target.targets.push_back(r);
        // An expert that runs for another slot anyway adds nothing: taking it is priced as losing
        // the slot, by the largest regret of the target.
        double dropped = 0;
        for (std::size_t k = 0; k < n_experts; ++k)
          dropped = std::max(dropped, source.token_gate_regret(r, k));
        for (std::size_t k = 0; k < n_experts; ++k) {
          const bool wanted =
              std::find(set.experts.begin(), set.experts.end(), k) != set.experts.end();
          const double regret = k == r   ? 0
                                : wanted ? dropped
                                         : std::max(0.0, source.token_gate_regret(r, k));
          target.nats.push_back(source.damage[metric] * regret);
        }
        const double* nats = target.nats.data() + (q * n_slots + j) * n_experts;
        std::vector<std::uint32_t> order;
        for (std::uint32_t k = 0; k < n_experts; ++k) {
          const bool taken =
              k != r && std::find(set.experts.begin(), set.experts.end(), k) != set.experts.end();
          if (sharing == slot_sharing::allowed || !taken) order.push_back(k);
        }
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
          return std::pair{a != r, nats[a]} < std::pair{b != r, nats[b]};
        });
        target.candidates.insert(target.candidates.end(), order.begin(), order.end());
        if (n_slots <= 2) continue;
        target.ranks.resize(target.ranks.size() + n_experts,
                            static_cast<std::uint16_t>(n_candidates));
        auto* ranks = target.ranks.data() + (q * n_slots + j) * n_experts;
        for (std::size_t i = 0; i < order.size(); ++i) {
          ranks[order[i]] = static_cast<std::uint16_t>(i);
          target.losses.push_back(
              static_cast<loss_units>(std::min(i == 0 ? 0 : nats[order[i]] * units_per_nat,
                                               static_cast<double>(selection::largest_loss))));
        }
      }
    }
    if (n_slots > 2) target.nats = {};
    if (coarse != 0) target.copy_nats.assign(n_servers * n_experts, 0);
    selection::for_each_server(coarse, [&](std::size_t m) {
      const auto* copy = source.copy_of(costs.expert_precision[m]);
      ORDERMOE_CHECK(copy != nullptr, "the profile says what coarser copies cost");
      for (std::size_t e = 0; e < n_experts; ++e)
        target.copy_nats[m * n_experts + e] = copy->damage * copy->distance[e] * copy->distance[e];
    });
    if (l + 1 < n_layers) {
      const auto& after = kept[l + 1];
      const auto n_after = after.which.kept.size();
      // Rows of the kept sets, over the kept sets of the next layer: of what counts for them.
      std::vector<double> rows(target.n_sets * n_after, 0);
      for (std::size_t s = 0; s < source.sets.size(); ++s) {
        const double weight = kept[l].is_all() ? 1 : source.sets[s].probability;
        double* row = rows.data() + kept[l].which.counts[s] * n_after;
        for (std::size_t to = 0; to < after.which.counts.size(); ++to)
          row[after.which.counts[to]] += weight * source.set_transition(s, to);
      }
      double marginal = 0;
      for (const double p : after.probability) marginal += p;
      target.incoming.assign(n_after * target.n_sets, 0);
      for (std::size_t q = 0; q < target.n_sets; ++q) {
        double sum = 0;
        for (std::size_t p = 0; p < n_after; ++p) sum += rows[q * n_after + p];
        for (std::size_t p = 0; p < n_after; ++p)
          target.incoming[p * target.n_sets + q] =
              sum > 0 ? rows[q * n_after + p] / sum : after.probability[p] / marginal;
      }
    }
    layers.push_back(std::move(target));
  }
  layers[0].visits = layers[0].probability;
  for (std::size_t l = 0; l + 1 < n_layers; ++l) {
    const auto& here = layers[l];
    auto& next = layers[l + 1];
    next.visits.assign(next.n_sets, 0);
    for (std::size_t p = 0; p < next.n_sets; ++p)
      for (std::size_t q = 0; q < here.n_sets; ++q)
        next.visits[p] += here.visits[q] * here.incoming[p * here.n_sets + q];
  }
}

}  // namespace ordermoe::planning
