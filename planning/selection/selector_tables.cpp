#include "planning/selection/selector_tables.hpp"

#include <fmt/format.h>

#include <string>

#include "planning/selection/policy_check.hpp"

namespace ordermoe::planning::selection {

namespace {

/// States times choices of one set of tables beyond which building them is refused.
constexpr double max_work = 4e9;
/// Keys beyond which experts are the keys unless sets are asked for.
constexpr double max_automatic_keys = 4096;
/// Slots to place, over all sets, pairs of servers and layers, for which tables take some 50 ms
/// where keys are experts, and the sets that a layer keeps at least and at most.
constexpr double max_placed_slots = 200'000;
constexpr std::size_t least_kept_sets = 8, most_kept_sets = 64;

/// Pairs of servers between which the tables place slots, over all layers and residencies.
double count_pairs(const plan& placed) {
  std::vector<const residency*> distinct;
  for (const auto& members : placed.residence)
    if (std::none_of(distinct.begin(), distinct.end(),
                     [&](const residency* other) { return other->layers == members.layers; }))
      distinct.push_back(&members);
  double pairs = 0;
  for (const auto* members : distinct)
    for (std::size_t l = 0; l < members->layers.size(); ++l) {
      const auto next = l + 1 < members->layers.size() ? members->layers[l + 1]
                                                       : members->layers[l] | members->layers[0];
      pairs += static_cast<double>(std::popcount(members->layers[l]) * std::popcount(next));
    }
  return pairs;
}

}  // namespace

void tables::set_budget(loss_units token_budget) {
  token_budget_ = token_budget;
  const bool counts =
      token_budget > 0 && token_budget < unbounded_budget && !is_priced() && !ignores_budgets();
  n_bins_ = counts ? policy_.budget_bins : 1;
  width_ = n_bins_ > 1
               ? std::max<loss_units>(1, token_budget / static_cast<loss_units>(n_bins_ - 1))
               : 1;
  per_unit_ = counts ? policy_.omega_quality / static_cast<double>(token_budget) : 0;
}

result<void> tables::set_costs(const cost_model& costs) {
  const auto n = costs.n_servers;
  if (n == 0 || n > 64)
    return mismatch(fmt::format("found {} servers, expected 1 to 64; split the cluster", n));
  if (costs.hidden_ns.size() != n * n || costs.message_ns.size() != n * n ||
      costs.expert_ns.size() != n || costs.attention_ns.size() != n || costs.head_ns.size() != n ||
      (!costs.expert_precision.empty() && costs.expert_precision.size() != n))
    return mismatch(fmt::format(
        "the cost model's arrays do not fit its {} servers; make it from the cluster again", n));
  n_servers_ = n;
  costs_ = costs;
  hidden_to_.resize(n * n);
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to) hidden_to_[to * n + from] = costs.hidden(from, to);
  double reference = 0;  // d_ref of eq. (38)
  for (const double time : costs.expert_ns) reference += time;
  reference /= static_cast<double>(n);
  per_ns_ = policy_.omega_time / std::max(reference, 1.0);
  return {};
}

/// Only candidate_rule::any with losses in nats runs coarser copies; for the others servers that
/// keep nothing else host nothing.
void tables::set_precisions(const cost_model& costs) {
  const auto at = [&](std::size_t m) {
    return costs.expert_precision.empty() ? precision::stored : costs.expert_precision[m];
  };
  precisions_ = {precision::stored};
  if (policy_.candidates == candidate_rule::any && policy_.calibrated)
    for (const auto kept : {precision::int8, precision::int4})
      for (std::size_t m = 0; m < n_servers_; ++m)
        if (at(m) == kept && precisions_.back() != kept) precisions_.push_back(kept);
  servers_at_.assign(precisions_.size(), 0);
  precision_at_.assign(n_servers_, 0);
  for (std::size_t kept = 0; kept < precisions_.size(); ++kept)
    for (std::size_t m = 0; m < n_servers_; ++m)
      if (at(m) == precisions_[kept]) {
        servers_at_[kept] |= server_bit(m);
        precision_at_[m] = static_cast<std::uint8_t>(kept);
      }
  n_ways_ = precisions_.size() * n_experts_;
}

/// Sets of 1 to top_k of n things, ascending.
void tables::list_sets(std::size_t n, std::vector<std::vector<std::uint32_t>>& sets,
                       set_index& index) const {
  std::vector<std::uint32_t> members;
  const auto extend = [&](auto&& self, std::size_t first, std::size_t size) -> void {
    if (members.size() == size) {
      sets.push_back(members);
      return;
    }
    for (std::size_t e = first; e < n; ++e) {
      members.push_back(static_cast<std::uint32_t>(e));
      self(self, e + 1, size);
      members.pop_back();
    }
  };
  for (std::size_t size = 1; size <= (has_expert_keys() ? 1 : top_k_); ++size)
    extend(extend, 0, size);
  index.n = n;
  if (has_expert_keys()) return;
  if (top_k_ == 2) {
    index.pairs.resize(n * n);
    for (std::size_t key = 0; key < sets.size(); ++key) {
      const auto a = sets[key].front(), b = sets[key].back();
      index.pairs[a * n + b] = index.pairs[b * n + a] = static_cast<std::uint32_t>(key);
    }
  } else if (top_k_ > 2) {
    for (std::size_t key = 0; key < sets.size(); ++key) {
      std::uint64_t mask = 0;
      for (const auto e : sets[key]) mask |= std::uint64_t{1} << e;
      index.masks.emplace_back(mask, static_cast<std::uint32_t>(key));
    }
    std::sort(index.masks.begin(), index.masks.end());
  }
}

void tables::set_keys() {
  list_sets(n_experts_, keys_, key_index_);
  if (precisions_.size() == 1 || has_expert_keys()) return;
  list_sets(n_ways_, steps_, step_index_);
  for (const auto& ways : steps_) {
    std::array<std::uint32_t, max_slots> experts{};
    for (std::size_t i = 0; i < ways.size(); ++i)
      experts[i] = static_cast<std::uint32_t>(ways[i] % n_experts_);
    keys_of_steps_.push_back(key_of(experts.data(), ways.size()));
  }
}

result<void> tables::set_residencies(const plan& placed) {
  if (placed.residence.size() != n_servers_)
    return mismatch(
        fmt::format("the plan has residency sets for {} access servers, expected {}; "
                    "plan again",
                    placed.residence.size(), n_servers_));
  const auto everywhere = all_servers(n_servers_);
  const bool with_slot = policy_.residence == residence_choice::with_slot;
  for (std::size_t access = 0; access < n_servers_; ++access) {
    const auto& members = placed.residence[access];
    if (members.layers.size() != n_layers_)
      return mismatch(
          fmt::format("the residency of access server {} has {} layers, expected {}; "
                      "plan again",
                      access, members.layers.size(), n_layers_));
    const auto known = std::find_if(
        residencies_.begin(), residencies_.end(),
        [&](const residency_tables& other) { return other.members.layers == members.layers; });
    residency_of_.push_back(static_cast<std::uint32_t>(known - residencies_.begin()));
    if (known != residencies_.end()) continue;
    for (std::size_t l = 0; l < n_layers_; ++l) {
      if (members.layers[l] == 0 || (members.layers[l] & ~everywhere) != 0)
        return mismatch(fmt::format(
            "the residency of access server {} at layer {} is {:#x}, expected a non-empty set of "
            "the {} servers; plan again",
            access, l, members.layers[l], n_servers_));
      if (!with_slot || l + 1 == n_layers_) continue;
      for (std::size_t e = 0; e < n_experts_; ++e)
        if ((layers_[l].hosts[e] & members.layers[l + 1]) == 0)
          return mismatch(fmt::format(
              "residence with_slot: no host of expert {} of layer {} is in the residency of layer "
              "{}; let attention run anywhere or choose a free residence",
              e, l, l + 1));
      if (is_local_rule() && (members.layers[l] & ~members.layers[l + 1]) != 0)
        return mismatch(fmt::format(
            "residence with_slot: a token that must stay local cannot be kept from layer {} to "
            "{}, whose residency is smaller; choose a free residence",
            l, l + 1));
    }
    residencies_.push_back({members, {}});
  }
  return {};
}

result<void> tables::set_pruned(const plan& placed) {
  if (placed.pruned.empty()) return {};
  const bool runs_targets =
      policy_.candidates == candidate_rule::exact || policy_.candidates == candidate_rule::weigh;
  if (!runs_targets || policy_.horizon != 1)
    return mismatch(fmt::format(
        "the plan '{}' prunes experts, and only targets without look-ahead can be chosen by it; "
        "name the strategy that made it, or plan again",
        placed.strategy));
  if (placed.pruned.size() != n_servers_)
    return mismatch(fmt::format("the plan prunes for {} access servers, expected {}; plan again",
                                placed.pruned.size(), n_servers_));
  for (std::size_t access = 0; access < n_servers_; ++access)
    for (std::size_t l = 0; l < n_layers_; ++l) {
      const auto& layer = placed.pruned[access].layers[l];
      if (layer.size() + top_k_ > n_experts_)
        return mismatch(fmt::format(
            "the plan leaves access server {} {} experts of layer {}, expected {}, as many as a "
            "token has; plan again",
            access, n_experts_ - layer.size(), l, top_k_));
      pruned_.push_back(pruned_flags(layer, n_experts_));
    }
  return {};
}

result<std::shared_ptr<const selection_tables>> tables::make(
    const profile& profile, const plan& placed, const cost_model& costs,
    const selection_policy& policy, loss_units token_budget, look_ahead_keys keys) {
  if (auto checked = check_policy(policy, profile.top_k, token_budget); !checked)
    return checked.error();
  if (placed.n_layers != profile.n_layers || placed.n_experts != profile.n_experts)
    return mismatch(fmt::format(
        "the plan is for {} layers of {} experts and the profile for {} of {}; calibrate and plan "
        "the same model",
        placed.n_layers, placed.n_experts, profile.n_layers, profile.n_experts));
  if (placed.n_servers != costs.n_servers)
    return mismatch(fmt::format("the plan is for {} servers and the cluster has {}; plan again",
                                placed.n_servers, costs.n_servers));
  if (profile.layers.size() != profile.n_layers || profile.n_layers == 0)
    return mismatch(fmt::format("the profile holds {} layers, expected {}; calibrate again",
                                profile.layers.size(), profile.n_layers));
  if (profile.top_k == 0 || profile.top_k > max_slots)
    return mismatch(
        fmt::format("the model routes to {} experts, expected 1 to {}", profile.top_k, max_slots));
  auto made = std::make_shared<tables>();
  made->policy_ = policy;
  made->n_layers_ = profile.n_layers;
  made->n_experts_ = profile.n_experts;
  made->top_k_ = profile.top_k;
  if (auto done = made->set_costs(costs); !done) return done.error();
  made->set_precisions(costs);
  const auto n_ways = made->n_ways_;
  if (n_ways > max_options)
    return error{errc::unsupported,
                 fmt::format("selection tables: found {} experts in {} precisions, supported are "
                             "at most {} in all",
                             profile.n_experts, made->precisions_.size(), max_options)};
  // Sets of up to top_k experts as keys; tables range over states, residences and ways to fill the
  // slots.
  double n_keys = 0, binomial = 1, ways = 1;
  for (std::size_t i = 1; i <= profile.top_k; ++i) {
    binomial *= static_cast<double>(n_ways - i + 1) / static_cast<double>(i);
    n_keys += binomial;
    if (policy.candidates == candidate_rule::any) ways *= static_cast<double>(n_ways);
  }
  double n_sets = 0;
  for (const auto& layer : profile.layers) n_sets += static_cast<double>(layer.sets.size());
  const double pairs = static_cast<double>(costs.n_servers * costs.n_servers);
  const double work =
      policy.horizon == 1 ? n_keys : pairs * n_sets * ways + pairs * n_keys * profile.n_layers;
  const bool fits = n_keys <= 1e5 && work <= max_work && profile.top_k * n_ways <= max_options &&
                    (profile.top_k <= 2 || n_ways <= 64);
  if (keys == look_ahead_keys::automatic)
    keys = profile.top_k == 1 || (fits && n_keys <= max_automatic_keys) ? look_ahead_keys::sets
                                                                        : look_ahead_keys::experts;
  if (profile.top_k == 1) keys = look_ahead_keys::sets;
  if (keys == look_ahead_keys::sets && !fits)
    return error{
        errc::unsupported,
        fmt::format("selection tables: {} experts at top-{} over {} servers would take {:.2g} "
                    "steps with sets as keys, supported are {:.2g}; choose experts as keys, "
                    "horizon 1, groups or fewer experts",
                    profile.n_experts, profile.top_k, costs.n_servers, work, max_work)};

  made->kind_ = keys;
  const double per_set = std::max(1.0, count_pairs(placed)) * static_cast<double>(profile.top_k);
  made->n_kept_sets_ = std::clamp(static_cast<std::size_t>(max_placed_slots / per_set),
                                  least_kept_sets, most_kept_sets);
  made->set_budget(token_budget);
  if (made->is_priced())
    made->per_unit_ = made->per_ns_ * policy.price_ns_per_loss / units_per_loss;
  if (policy.calibrated) {
    made->position_damage_ = profile.position_damage;
    made->unread_damage_ = profile.unread_damage;
  }
  made->set_keys();
  if (auto done = made->set_pruned(placed); !done) return done.error();
  if (auto done = made->set_layers(profile, placed); !done) return done.error();
  if (auto done = made->set_residencies(placed); !done) return done.error();
  for (auto& residency : made->residencies_) made->build_residency(residency);
  return std::shared_ptr<const selection_tables>(std::move(made));
}

}  // namespace ordermoe::planning::selection
