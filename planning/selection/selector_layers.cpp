#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <string>

#include "planning/selection/selector_tables.hpp"
#include "planning/target_sets.hpp"

/// What decisions and their look-ahead need of each layer, whatever the residency.
namespace ordermoe::planning::selection {

namespace {

representatives representatives_of(const layer_profile& layer, std::size_t n_most) {
  if (layer.sets.size() <= n_most) {
    representatives all;
    all.kept.resize(layer.sets.size());
    std::iota(all.kept.begin(), all.kept.end(), std::size_t{0});
    all.counts = all.kept;
    return all;
  }
  std::vector<std::vector<std::uint32_t>> sets;
  std::vector<double> weights;
  for (const auto& set : layer.sets) {
    sets.push_back(set.experts);
    weights.push_back(set.probability);
  }
  return choose_representatives(sets, weights, n_most);
}

}  // namespace

// Eq. (41) over target sets, completed for sets that calibration did not see.
void tables::fill_transition(const layer_profile& here, const layer_profile* next,
                             layer_facts& facts) {
  if (next == nullptr || policy_.horizon == 1) return;
  if (has_expert_keys()) {
    fill_expert_transition(here, *next, facts);
    return;
  }
  const auto n_next = next->sets.size();
  facts.transition.assign(keys_.size() * n_next, 0);
  std::map<std::vector<std::uint32_t>, std::size_t> observed;
  for (std::size_t set = 0; set < here.sets.size(); ++set)
    observed.emplace(here.sets[set].experts, set);
  for (std::size_t key = 0; key < keys_.size(); ++key) {
    double* row = facts.transition.data() + key * n_next;
    const auto& members = keys_[key];
    if (const auto found = observed.find(members); found != observed.end()) {
      for (std::size_t to = 0; to < n_next; ++to) row[to] = here.set_transition(found->second, to);
      continue;
    }
    double weight = 0;
    for (std::size_t set = 0; set < here.sets.size(); ++set) {
      const auto& candidate = here.sets[set].experts;
      const bool shares = std::any_of(members.begin(), members.end(), [&](std::uint32_t e) {
        return std::find(candidate.begin(), candidate.end(), e) != candidate.end();
      });
      if (!shares) continue;
      weight += here.sets[set].probability;
      for (std::size_t to = 0; to < n_next; ++to)
        row[to] += here.sets[set].probability * here.set_transition(set, to);
    }
    for (std::size_t to = 0; to < n_next; ++to)
      row[to] = weight > 0 ? row[to] / weight : next->sets[to].probability;
  }
}

/// The mean over the sets with an expert, weighted by their frequency, over the sets that the next
/// layer keeps.
void tables::fill_expert_transition(const layer_profile& here, const layer_profile& next,
                                    layer_facts& facts) {
  const auto after = representatives_of(next, n_kept_sets_);
  const auto n_next = after.kept.size();
  facts.transition.assign(n_experts_ * n_next, 0);
  std::vector<double> marginal(n_next, 0), row(n_next), weight(n_experts_, 0);
  for (std::size_t to = 0; to < next.sets.size(); ++to)
    marginal[after.counts[to]] += next.sets[to].probability;
  for (std::size_t set = 0; set < here.sets.size(); ++set) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t to = 0; to < next.sets.size(); ++to)
      row[after.counts[to]] += here.set_transition(set, to);
    const double p = here.sets[set].probability;
    for (const auto e : here.sets[set].experts) {
      weight[e] += p;
      double* out = facts.transition.data() + e * n_next;
      for (std::size_t to = 0; to < n_next; ++to) out[to] += p * row[to];
    }
  }
  for (std::size_t e = 0; e < n_experts_; ++e)
    for (std::size_t to = 0; to < n_next; ++to) {
      double& p = facts.transition[e * n_next + to];
      p = weight[e] > 0 ? p / weight[e] : marginal[to];
    }
}

/// Which experts are where, and what servers lose by keeping them coarser.
result<void> tables::set_hosts(std::size_t layer, const layer_profile& here,
                               const placement_index& placement, layer_facts& facts) const {
  const auto n = n_experts_;
  for (std::size_t e = 0; e < n; ++e) {
    server_mask hosts = 0;
    for (const auto servers : servers_at_) hosts |= placement.hosts(layer, e) & servers;
    facts.hosts.push_back(hosts);
    const auto may_be_asked = [&](std::size_t access) {
      return pruned_.empty() || pruned_[access * n_layers_ + layer][e] == 0;
    };
    if (hosts == 0 &&
        std::ranges::any_of(std::views::iota(std::size_t{0}, n_servers_), may_be_asked))
      return mismatch(
          fmt::format("no server hosts expert {} of layer {}, expected one at least; "
                      "plan again",
                      e, layer));
  }
  for (std::size_t kept = 0; kept < precisions_.size(); ++kept) {
    const auto* copy = here.copy_of(precisions_[kept]);
    if (kept > 0 && copy == nullptr)
      return mismatch(
          fmt::format("servers keep experts as {}, and the profile does not say what that "
                      "costs; calibrate the model again",
                      to_string(precisions_[kept])));
    for (std::size_t e = 0; e < n; ++e) {
      facts.way_hosts.push_back(facts.hosts[e] & servers_at_[kept]);
      facts.copy_loss.push_back(kept == 0 ? 0
                                          : std::max(damage_floor, copy->damage) *
                                                copy->distance[e] * copy->distance[e]);
    }
  }
  for (const auto hosts : facts.way_hosts) {
    const auto known = std::find(facts.host_sets.begin(), facts.host_sets.end(), hosts);
    facts.host_set_of.push_back(static_cast<std::uint32_t>(known - facts.host_sets.begin()));
    if (known == facts.host_sets.end()) facts.host_sets.push_back(hosts);
  }
  if (!has_expert_keys()) return {};
  facts.experts_at.resize(n_servers_);
  for (std::uint32_t e = 0; e < n; ++e)
    for_each_server(facts.hosts[e], [&](std::size_t m) { facts.experts_at[m].push_back(e); });
  return {};
}

/// How far substitutes are from targets.
void tables::set_distances(const layer_profile& here, layer_facts& facts) const {
  const auto n = n_experts_;
  facts.distance.resize(n * n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t k = 0; k < n; ++k)
      facts.distance[r * n + k] = policy_.metric == loss_metric::router_logit
                                      ? (1 - here.router_logit(r, k)) / 2  // Eq. (18)
                                      : std::max(0.0, here.token_gate_regret(r, k));
  if (!policy_.calibrated) return;
  facts.damage = std::max(damage_floor, here.damage[static_cast<std::size_t>(policy_.metric)]);
  if (here.left_out) facts.left_out_damage = std::max(damage_floor, here.left_out->damage);
}

/// Which experts may run in place of which. groups: null where the plan has none.
void tables::set_candidates(const layer_profile& here, const layer_grouping* groups,
                            layer_facts& facts) const {
  const auto rule = policy_.candidates;
  facts.allows_all = rule == candidate_rule::any || rule == candidate_rule::router_restricted ||
                     rule == candidate_rule::here_or_target ||
                     (is_kept_local() && groups == nullptr);
  if (facts.allows_all) return;
  const bool grouped = rule == candidate_rule::group || is_kept_local();
  facts.first_candidate.push_back(0);
  for (std::uint32_t r = 0; r < n_experts_; ++r) {
    for (std::uint32_t k = 0; k < n_experts_; ++k)
      if (r == k || (grouped && groups->group_of[r] == groups->group_of[k] &&
                     here.router_logit(r, k) >= groups->threshold))  // Eq. (7), (8)
        facts.candidates.push_back(k);
    for (std::size_t at = facts.first_candidate.back(); at < facts.candidates.size(); ++at)
      facts.candidate_distance.push_back(facts.distance[r * n_experts_ + facts.candidates[at]]);
    facts.first_candidate.push_back(static_cast<std::uint32_t>(facts.candidates.size()));
  }
}

/// The target sets that the look-ahead ranges over, and what substitutes lose at their mean gates.
void tables::set_target_sets(const layer_profile& here, const representatives& kept,
                             layer_facts& facts) const {
  const auto n = n_experts_;
  for (const auto index : kept.kept) {
    const auto& set = here.sets[index];
    facts.sets.push_back(set.experts);
    facts.mean_gates.insert(facts.mean_gates.end(), set.mean_gate.begin(), set.mean_gate.end());
    for (std::size_t j = 0; j < top_k_; ++j) {
      const auto target = set.experts[j];
      const auto loss = [&](std::size_t k) {
        return to_loss_units(predicted_loss(facts, target, k, set.mean_gate[j]));
      };
      const auto begin = facts.mean_loss.size();
      facts.mean_loss.resize(begin + n, forbidden);
      auto* const losses = facts.mean_loss.data() + begin;
      for (std::size_t k = 0; facts.allows_all && k < n; ++k) losses[k] = loss(k);
      if (!facts.allows_all)
        for (const auto k : facts.candidates_of(target)) losses[k] = loss(k);
      losses[target] = 0;
    }
  }
}

result<void> tables::set_layers(const profile& profile, const plan& placed) {
  const placement_index placement(placed);
  const bool grouped = !placed.grouping.empty();
  if (policy_.candidates == candidate_rule::group && !grouped)
    return mismatch(fmt::format(
        "the candidate rule group needs groups and the plan '{}' has none; place by similarity or "
        "choose another rule",
        placed.strategy));
  if (grouped && placed.grouping.size() != n_layers_)
    return mismatch(fmt::format("the plan groups {} layers, expected {}; plan again",
                                placed.grouping.size(), n_layers_));
  layers_.resize(n_layers_);
  for (std::size_t l = 0; l < n_layers_; ++l) {
    const auto& here = profile.layers[l];
    auto& facts = layers_[l];
    if (auto done = set_hosts(l, here, placement, facts); !done) return done.error();
    set_distances(here, facts);
    set_candidates(here, grouped ? &placed.grouping[l] : nullptr, facts);
    const auto kept = representatives_of(here, has_expert_keys() ? n_kept_sets_ : here.sets.size());
    if (l == 0) {
      start_probability_.assign(kept.kept.size(), 0);
      for (std::size_t set = 0; set < here.sets.size(); ++set)
        start_probability_[kept.counts[set]] += here.sets[set].probability;
    }
    set_target_sets(here, kept, facts);
    fill_transition(here, l + 1 < n_layers_ ? &profile.layers[l + 1] : nullptr, facts);
  }
  return {};
}

}  // namespace ordermoe::planning::selection
