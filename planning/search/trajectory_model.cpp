#include "planning/search/trajectory_model.hpp"

#include <algorithm>

#include "config/loss_units.hpp"
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

/// [next sets, sets]: P(q -> q') by q'. Rows of the kept sets, over the kept sets of the next layer:
/// of what counts for them.
std::vector<double> incoming_of(const layer_profile& source, const kept_sets& kept,
                                const kept_sets& after, std::size_t n_sets) {
  const auto n_after = after.which.kept.size();
  std::vector<double> rows(n_sets * n_after, 0);
  for (std::size_t s = 0; s < source.sets.size(); ++s) {
    const double weight = kept.is_all() ? 1 : source.sets[s].probability;
    double* row = rows.data() + kept.which.counts[s] * n_after;
    for (std::size_t to = 0; to < after.which.counts.size(); ++to)
      row[after.which.counts[to]] += weight * source.set_transition(s, to);
  }
  double marginal = 0;
  for (const double p : after.probability) marginal += p;
  std::vector<double> incoming(n_after * n_sets, 0);
  for (std::size_t q = 0; q < n_sets; ++q) {
    double sum = 0;
    for (std::size_t p = 0; p < n_after; ++p) sum += rows[q * n_after + p];
    for (std::size_t p = 0; p < n_after; ++p)
      incoming[p * n_sets + q] =
          sum > 0 ? rows[q * n_after + p] / sum : after.probability[p] / marginal;
  }
  return incoming;
}

/// [columns, rows] of [rows, columns].
std::vector<double> transposed(const std::vector<double>& table, std::size_t n_columns) {
  const auto n_rows = table.size() / n_columns;
  std::vector<double> made(table.size());
  for (std::size_t r = 0; r < n_rows; ++r)
    for (std::size_t c = 0; c < n_columns; ++c) made[c * n_rows + r] = table[r * n_columns + c];
  return made;
}

}  // namespace

trajectory_model::trajectory_model(const profile& profile, const cost_model& prices,
                                   std::size_t max_sets, bool may_leave_out)
    : n_layers(profile.n_layers),
      n_experts(profile.n_experts),
      n_servers(prices.n_servers),
      n_slots(profile.top_k),
      n_candidates(n_experts - n_slots + 1),
      costs(prices) {
  ORDERMOE_CHECK(n_slots >= 1 && n_slots <= max_trajectory_slots, "a token has 1 to 8 slots");
  ORDERMOE_CHECK(n_servers >= 1 && n_servers <= 64, "a plan has 1 to 64 servers");
  ORDERMOE_CHECK(n_servers * n_experts <= 65536,
                 "servers times experts of a layer are at most 65536");
  for (std::size_t m = 0; m < costs.expert_precision.size(); ++m)
    if (costs.expert_precision[m] != precision::stored) coarse |= server_bit(m);
  if (max_sets == 0) max_sets = 64;
  std::vector<kept_sets> kept;
  for (const auto& source : profile.layers) kept.emplace_back(source, max_sets);
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto& source = profile.layers[l];
    layer target;
    target.n_sets = kept[l].which.kept.size();
    ORDERMOE_CHECK(target.n_sets > 0, "a profile lists at least one target set for each layer");
    double total = 0;
    for (const double p : kept[l].probability) total += p;
    for (std::size_t q = 0; q < target.n_sets; ++q) {
      target.probability.push_back(total > 0 ? kept[l].probability[q] / total
                                             : 1.0 / static_cast<double>(target.n_sets));
      const auto& set = source.sets[kept[l].which.kept[q]];
      for (std::size_t j = 0; j < n_slots; ++j) add_slot(source, set, j, target);
      if (may_leave_out && n_slots == 2) add_left_out(source, set, target);
    }
    if (n_slots > 2) target.nats = {};
    add_copies(source, target);
    if (l + 1 < n_layers)
      target.incoming = incoming_of(source, kept[l], kept[l + 1], target.n_sets);
    target.outgoing = transposed(target.incoming, target.n_sets);
    layers.push_back(std::move(target));
  }
  count_visits();
}

void trajectory_model::add_slot(const layer_profile& source, const target_set& set,
                                std::size_t slot, layer& target) const {
  constexpr auto metric = static_cast<std::size_t>(loss_metric::token_gate);
  const auto r = set.experts[slot];
  target.squared_gates.push_back(set.mean_gate[slot] * set.mean_gate[slot]);
  target.targets.push_back(r);
  const auto begin = target.nats.size();
  std::vector<std::uint32_t> order;
  for (std::uint32_t k = 0; k < n_experts; ++k) {
    target.nats.push_back(
        k == r ? 0 : source.damage[metric] * std::max(0.0, source.token_gate_regret(r, k)));
    if (k == r || std::find(set.experts.begin(), set.experts.end(), k) == set.experts.end())
      order.push_back(k);
  }
  const double* nats = target.nats.data() + begin;
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair{a != r, nats[a]} < std::pair{b != r, nats[b]};
  });
  target.candidates.insert(target.candidates.end(), order.begin(), order.end());
  if (n_slots <= 2) return;
  const auto first_rank = target.ranks.size();
  target.ranks.resize(first_rank + n_experts, static_cast<std::uint16_t>(n_candidates));
  for (std::size_t i = 0; i < order.size(); ++i) {
    target.ranks[first_rank + order[i]] = static_cast<std::uint16_t>(i);
    target.losses.push_back(i == 0 ? 0 : to_loss_units(nats[order[i]]));
  }
}

/// As selection_tables::loss_left_out(). What the router gives both targets is shared out by their gates where that is what counts.
void trajectory_model::add_left_out(const layer_profile& source, const target_set& set,
                                    layer& target) {
  if (source.left_out) {
    for (const double gate : set.mean_gate)
      target.left_out_nats.push_back(source.left_out->damage * gate * gate);
    return;
  }
  double both = 0, gates = 0;
  for (std::size_t j = 0; j < set.experts.size(); ++j) {
    // The sum of p_r - p_k over all k is n p_r - 1.
    double sum = 1;
    for (std::size_t k = 0; k < source.activation.size(); ++k)
      if (k != set.experts[j]) sum += source.token_gate_regret(set.experts[j], k);
    both += sum / static_cast<double>(source.activation.size());
    gates += set.mean_gate[j];
  }
  const double damage = source.damage[static_cast<std::size_t>(loss_metric::token_gate)];
  for (std::size_t j = 0; j < set.experts.size(); ++j)
    target.left_out_nats.push_back(
        gates > 0 ? damage * std::clamp(both, 0.0, 1.0) * set.mean_gate[j] / gates : damage);
}

void trajectory_model::add_copies(const layer_profile& source, layer& target) const {
  if (coarse == 0) return;
  target.copy_nats.assign(n_servers * n_experts, 0);
  for_each_server(coarse, [&](std::size_t m) {
    const auto* copy = source.copy_of(costs.expert_precision[m]);
    ORDERMOE_CHECK(copy != nullptr, "the profile says what coarser copies cost");
    for (std::size_t e = 0; e < n_experts; ++e)
      target.copy_nats[m * n_experts + e] = copy->damage * copy->distance[e] * copy->distance[e];
  });
}

void trajectory_model::count_visits() {
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
