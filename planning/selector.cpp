#include "planning/selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace ordermoe::planning {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double damage_floor = 1e-6;
/// Predicted losses end here, so that the sum over all slots stays far from overflow.
constexpr loss_units largest_loss = 1'000'000'000'000'000;
/// Options of all slots of one decision, on the stack.
constexpr std::size_t max_options = 2048;
/// States times choices of one set of tables beyond which building them is refused.
constexpr double max_work = 4e9;

loss_units to_units(double loss) {
  const double units = loss * units_per_loss;
  if (!(units > 0)) return 0;
  if (units >= static_cast<double>(largest_loss)) return largest_loss;
  const auto whole = static_cast<loss_units>(units);
  return whole + (static_cast<double>(whole) < units ? 1 : 0);
}

/// Calls visit(server) for each member, ascending.
template <class Visit>
inline void for_each_server(server_mask servers, Visit&& visit) {
  for (; servers != 0; servers &= servers - 1)
    visit(static_cast<std::size_t>(std::countr_zero(servers)));
}

/// A way to run one slot: an expert and the servers where it may run.
struct option {
  loss_units loss;
  server_mask hosts;
  std::uint32_t expert;
  std::uint32_t leaves;  ///< 1 where local_only or router_restricted had to leave the server.
};

/// A way to run all slots, with calibration means in place of gates.
struct combination {
  double quality = 0;  ///< omega_Q / budget * loss
  std::uint32_t key = 0;
  std::uint32_t bin = 0;  ///< ceil(loss / width)
  std::uint32_t leaves = 0;
};

/// What a layer's decisions need, whatever the residency.
struct layer_facts {
  std::vector<server_mask> hosts;     ///< [E]
  std::vector<double> distance;       ///< [E, E] from target to substitute
  std::vector<std::uint8_t> allowed;  ///< [E, E] by the candidate rule
  double damage = 1;
  std::vector<std::vector<std::uint32_t>> sets;  ///< [sets][top_k]
  std::vector<std::uint32_t> set_key;            ///< [sets]
  std::vector<loss_units> mean_loss;             ///< [sets, top_k, E]
  std::vector<double> transition;  ///< [keys, sets at the next layer]; empty at the last layer
};

/// W of one layer and residency.
struct layer_table {
  std::vector<std::uint32_t> next;  ///< Residences after the layer, ascending.
  server_mask next_mask = 0;
  std::vector<double> later;   ///< [next] attention at n, where it is priced.
  std::size_t key_stride = 0;  ///< 0 where W does not depend on the target set.
  std::vector<double> w;       ///< [keys or 1, next, bins]
  std::vector<double> low;     ///< [next, bins] minimum of w over the keys
};

/// Access servers with the same residency share tables.
struct residency_tables {
  residency members;
  std::vector<layer_table> layers;
};

class tables final : public selection_tables {
 public:
  static result<std::shared_ptr<const selection_tables>> make(const profile& experts,
                                                              const plan& placed,
                                                              const cost_model& costs,
                                                              const selection_policy& policy,
                                                              loss_units token_budget);

  void slot_losses(std::size_t layer, std::uint32_t target, float gate,
                   std::span<const float> probabilities,
                   std::span<loss_units> losses) const override;
  decision select(const decision_query& query) const override;
  double value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
               std::size_t bin) const override;
  std::size_t bins() const override { return n_bins_; }
  loss_units bin_width() const override { return width_; }
  const selection_policy& policy() const override { return policy_; }

 private:
  /// One decision while it is made.
  struct step_query {
    const decision_query& query;
    const layer_facts& facts;
    const layer_table& table;
    std::size_t count;      ///< Slots.
    const option* options;  ///< [slot, n_experts], counts[slot] of them, by ascending loss
    const std::size_t* counts;
    loss_units left;
    const double*
        row;  ///< [next, bins]: W where it does not depend on the choice, else its minimum.
    std::size_t full;     ///< The bin of all that is left.
    const double* ready;  ///< [server] d(s, m) + wait(m)

    const option& at(std::size_t slot, std::size_t index, std::size_t n_experts) const {
      return options[slot * n_experts + index];
    }
  };
  struct outcome {
    double cost = std::numeric_limits<double>::infinity();
    loss_units loss = 0;
    double time = 0;
    double work = 0;
    std::uint32_t leaves = ~std::uint32_t{0};
    std::uint32_t position = 0;
    bool placed = false;
    std::array<std::uint16_t, max_slots> choice;
    std::array<std::uint8_t, max_slots> servers;
  };

  void set_budget(loss_units token_budget);
  /// Whether losses cost time instead of a share of an indexed budget.
  bool is_priced() const {
    return policy_.price_ns_per_loss > 0 && token_budget_ > 0 &&
           policy_.candidates != candidate_rule::router_restricted;
  }
  result<void> set_costs(const cost_model& costs);
  result<void> set_layers(const profile& experts, const plan& placed);
  result<void> set_residencies(const plan& placed);
  void set_keys();
  std::uint32_t key_of(const std::uint32_t* experts, std::size_t count) const;
  void fill_transition(const layer_profile& here, const layer_profile* next, layer_facts& facts);
  double predicted_loss(const layer_facts& facts, std::size_t target, std::size_t expert,
                        double gate) const;

  bool is_local_rule() const {
    return policy_.candidates == candidate_rule::local_only ||
           policy_.candidates == candidate_rule::router_restricted;
  }
  bool is_executed() const { return policy_.condition == transition_condition::executed; }
  /// More budget, less loss or another expert never hurts; local_only is forced to substitute, so
  /// there it may.
  bool is_monotone() const { return policy_.candidates != candidate_rule::local_only; }
  double hidden(std::size_t from, std::size_t to) const {
    return hidden_to_[to * n_servers_ + from];
  }
  server_mask hosts_from(const layer_facts& facts, std::size_t expert, std::size_t server) const {
    const auto hosts = facts.hosts[expert];
    return is_local_rule() && ((hosts >> server) & 1u) ? server_mask{1} << server : hosts;
  }

  // Look-ahead tables.
  void build_residency(residency_tables& content) const;
  std::vector<combination> combinations(const layer_facts& facts, std::size_t set,
                                        std::size_t server) const;
  std::vector<std::vector<option>> mean_options(const layer_facts& facts, std::size_t set,
                                                std::size_t server) const;
  void fill_steps(const layer_facts& facts, std::size_t server, std::size_t residence, double later,
                  std::vector<double>& steps) const;
  double shortest(const layer_facts& facts, const std::uint32_t* experts, std::size_t count,
                  std::size_t server, std::size_t residence) const;
  void relax(const std::vector<combination>& choices, const std::vector<double>& steps,
             const double* onward, std::size_t key_stride, std::size_t set_key,
             double* values) const;
  void settle(const double* levels, double* values) const;

  // Decisions.
  std::size_t bin_of(loss_units left) const;
  void fill_options(const decision_query& query, const layer_facts& facts, loss_units left,
                    option* options, std::size_t* counts) const;
  void restrict_options(const decision_query& query, const layer_facts& facts, option* options,
                        std::size_t* counts) const;
  const double* onward_row(const layer_table& table, const std::uint32_t* experts,
                           std::size_t count) const;
  void search(const step_query& step, server_mask residences, outcome& best) const;
  void search_one(const step_query& step, std::size_t position, outcome& best) const;
  void search_two(const step_query& step, std::size_t position, outcome& best) const;
  void search_many(const step_query& step, std::size_t position, outcome& best) const;
  /// When slot work that is run as the q-th and last expert at m is back at the residence n.
  double back(const step_query& step, std::size_t m, std::size_t n, double q) const {
    return step.ready[m] + q * costs_.expert_ns[m] + hidden_to_[n * n_servers_ + m];
  }
  void place(const step_query& step, outcome& candidate) const;
  void offer(const step_query& step, outcome& candidate, outcome& best) const;

  selection_policy policy_;
  loss_units token_budget_ = 0;
  loss_units width_ = 1;
  std::size_t n_bins_ = 1;
  double per_ns_ = 0;    ///< omega_T / d_ref
  double per_unit_ = 0;  ///< omega_Q / budget; 0 where the budget is none or without limit

  std::size_t n_layers_ = 0, n_experts_ = 0, n_servers_ = 0, top_k_ = 0;
  cost_model costs_;
  std::vector<double> hidden_to_;                 ///< [to, from]
  std::vector<std::vector<std::uint32_t>> keys_;  ///< Sets of 1 to top_k experts, ascending.
  std::vector<std::uint32_t> pair_key_;           ///< [E, E], where top_k is 2
  std::vector<std::pair<std::uint64_t, std::uint32_t>> mask_key_;  ///< Sorted, where top_k >= 3
  std::vector<layer_facts> layers_;
  std::vector<double> start_probability_;  ///< [sets of the first layer]
  std::vector<residency_tables> residencies_;
  std::vector<std::uint32_t> residency_of_;  ///< [n_servers], by access server
};

// ---------------------------------------------------------------------------------------------------------------
// Building
// ---------------------------------------------------------------------------------------------------------------

error mismatch(std::string what) {
  return {errc::mismatch, "selection tables: " + std::move(what)};
}
error usage(std::string what) {
  return {errc::usage, "selection policy: " + std::move(what)};
}

result<void> check_policy(const selection_policy& policy, std::size_t top_k,
                          loss_units token_budget) {
  if (policy.residence == residence_choice::with_slot && top_k > 1)
    return usage(fmt::format(
        "found residence with_slot for a top-{} model, expected top-1; choose a free residence",
        top_k));
  if (policy.budget_bins == 0)
    return usage("found 0 budget bins, expected at least 1; leave the default of 16");
  if (!(policy.omega_time >= 0) || !(policy.omega_quality >= 0) || std::isinf(policy.omega_time) ||
      std::isinf(policy.omega_quality))
    return usage(fmt::format(
        "found the weights {} and {}, expected finite numbers of at least 0; state both again",
        policy.omega_time, policy.omega_quality));
  if (!(policy.reference_ns >= 0) || std::isinf(policy.reference_ns))
    return usage(fmt::format(
        "found a reference delay of {} ns, expected at least 0; 0 takes the mean expert time",
        policy.reference_ns));
  if (!(policy.price_ns_per_loss >= 0) || std::isinf(policy.price_ns_per_loss))
    return usage(
        fmt::format("found a price of {} ns per loss, expected a finite number of at "
                    "least 0; 0 keeps the budget index",
                    policy.price_ns_per_loss));
  if (token_budget < 0 || token_budget > unbounded_budget)
    return usage(fmt::format("found a token budget of {} units, expected 0 to {}; state it again",
                             token_budget, unbounded_budget));
  return {};
}

void tables::set_budget(loss_units token_budget) {
  token_budget_ = token_budget;
  const bool counts = token_budget > 0 && token_budget < unbounded_budget && !is_priced() &&
                      policy_.candidates != candidate_rule::router_restricted;
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
      costs.expert_ns.size() != n || costs.attention_ns.size() != n || costs.head_ns.size() != n)
    return mismatch(fmt::format(
        "the cost model's arrays do not fit its {} servers; make it from the cluster again", n));
  n_servers_ = n;
  costs_ = costs;
  hidden_to_.resize(n * n);
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to) hidden_to_[to * n + from] = costs.hidden(from, to);
  double reference = policy_.reference_ns;
  if (reference == 0) {
    for (const double time : costs.expert_ns) reference += time;
    reference /= static_cast<double>(n);
  }
  per_ns_ = policy_.omega_time / std::max(reference, 1.0);
  return {};
}

void tables::set_keys() {
  std::vector<std::uint32_t> members;
  const auto extend = [&](auto&& self, std::size_t first, std::size_t size) -> void {
    if (members.size() == size) {
      keys_.push_back(members);
      return;
    }
    for (std::size_t e = first; e < n_experts_; ++e) {
      members.push_back(static_cast<std::uint32_t>(e));
      self(self, e + 1, size);
      members.pop_back();
    }
  };
  for (std::size_t size = 1; size <= top_k_; ++size) extend(extend, 0, size);
  if (top_k_ == 2) {
    pair_key_.resize(n_experts_ * n_experts_);
    for (std::size_t key = 0; key < keys_.size(); ++key) {
      const auto a = keys_[key].front(), b = keys_[key].back();
      pair_key_[a * n_experts_ + b] = pair_key_[b * n_experts_ + a] =
          static_cast<std::uint32_t>(key);
    }
  } else if (top_k_ > 2) {
    for (std::size_t key = 0; key < keys_.size(); ++key) {
      std::uint64_t mask = 0;
      for (const auto e : keys_[key]) mask |= std::uint64_t{1} << e;
      mask_key_.emplace_back(mask, static_cast<std::uint32_t>(key));
    }
    std::sort(mask_key_.begin(), mask_key_.end());
  }
}

/// The key of the set of these experts; an expert may be named twice.
std::uint32_t tables::key_of(const std::uint32_t* experts, std::size_t count) const {
  if (count == 1) return experts[0];
  if (top_k_ == 2) return pair_key_[experts[0] * n_experts_ + experts[1]];
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < count; ++i) mask |= std::uint64_t{1} << experts[i];
  return std::lower_bound(mask_key_.begin(), mask_key_.end(), std::pair{mask, std::uint32_t{0}})
      ->second;
}

// Eq. (41) over target sets, completed for sets that calibration did not see.
void tables::fill_transition(const layer_profile& here, const layer_profile* next,
                             layer_facts& facts) {
  if (next == nullptr || policy_.horizon == 1) return;
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

double tables::predicted_loss(const layer_facts& facts, std::size_t target, std::size_t expert,
                              double gate) const {
  const double distance = facts.distance[target * n_experts_ + expert];
  double weight = 1;
  if (policy_.metric == loss_metric::output)
    weight = gate * gate;
  else if (policy_.metric != loss_metric::token_gate && top_k_ > 1)
    weight = gate;
  return weight * distance * facts.damage;
}

result<void> tables::set_layers(const profile& experts, const plan& placed) {
  const placement_index placement(placed);
  const auto n = n_experts_;
  const bool grouped = !placed.grouping.empty();
  if (policy_.candidates == candidate_rule::group && !grouped)
    return mismatch(fmt::format(
        "the candidate rule group needs groups and the plan '{}' has none; place by similarity or "
        "choose another rule",
        placed.strategy));
  if (grouped && placed.grouping.size() != n_layers_)
    return mismatch(fmt::format("the plan groups {} layers, expected {}; plan again",
                                placed.grouping.size(), n_layers_));
  for (const auto& set : experts.layers[0].sets) start_probability_.push_back(set.probability);
  layers_.resize(n_layers_);
  for (std::size_t l = 0; l < n_layers_; ++l) {
    const auto& here = experts.layers[l];
    auto& facts = layers_[l];
    for (std::size_t e = 0; e < n; ++e) {
      facts.hosts.push_back(placement.hosts(l, e));
      if (facts.hosts.back() == 0)
        return mismatch(
            fmt::format("no server hosts expert {} of layer {}, expected one at least; "
                        "plan again",
                        e, l));
    }
    const bool centred = policy_.metric == loss_metric::router_logit_centred;
    const auto& similarity = centred ? here.router_logit_centred : here.router_logit;
    facts.distance.resize(n * n);
    facts.allowed.assign(n * n, 0);
    for (std::size_t r = 0; r < n; ++r) {
      for (std::size_t k = 0; k < n; ++k) {
        double& distance = facts.distance[r * n + k];
        switch (policy_.metric) {
          case loss_metric::router_logit:
          case loss_metric::router_logit_centred:
            distance = (1 - similarity(r, k)) / 2;  // Eq. (18)
            break;
          case loss_metric::output:
            distance = here.output_distance(r, k) * here.output_distance(r, k);
            break;
          case loss_metric::token_gate:
            distance = std::max(0.0, here.token_gate_regret(r, k));
            break;
        }
        bool allowed = r == k;
        const auto rule = policy_.candidates;
        if (rule == candidate_rule::any || rule == candidate_rule::router_restricted ||
            (rule == candidate_rule::local_only && !grouped))
          allowed = true;
        else if (rule != candidate_rule::exact) {
          const auto& groups = placed.grouping[l];  // Eq. (7), (8)
          allowed = allowed || (groups.group_of[r] == groups.group_of[k] &&
                                similarity(r, k) >= groups.threshold);
        }
        facts.allowed[r * n + k] = allowed ? 1 : 0;
      }
    }
    if (policy_.calibrated)
      facts.damage = std::max(damage_floor, here.damage[static_cast<std::size_t>(policy_.metric)]);
    for (const auto& set : here.sets) {
      facts.sets.push_back(set.experts);
      facts.set_key.push_back(key_of(set.experts.data(), top_k_));
      for (std::size_t j = 0; j < top_k_; ++j)
        for (std::size_t k = 0; k < n; ++k) {
          const auto target = set.experts[j];
          const bool allowed = facts.allowed[target * n + k];
          facts.mean_loss.push_back(
              k == target ? 0
              : allowed   ? to_units(predicted_loss(facts, target, k, set.mean_gate[j]))
                          : forbidden);
        }
    }
    fill_transition(here, l + 1 < n_layers_ ? &experts.layers[l + 1] : nullptr, facts);
  }
  return {};
}

result<void> tables::set_residencies(const plan& placed) {
  if (placed.residence.size() != n_servers_)
    return mismatch(
        fmt::format("the plan has residency sets for {} access servers, expected {}; "
                    "plan again",
                    placed.residence.size(), n_servers_));
  const auto everywhere = n_servers_ == 64 ? ~server_mask{0} : (server_mask{1} << n_servers_) - 1;
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

result<std::shared_ptr<const selection_tables>> tables::make(const profile& experts,
                                                             const plan& placed,
                                                             const cost_model& costs,
                                                             const selection_policy& policy,
                                                             loss_units token_budget) {
  if (auto checked = check_policy(policy, experts.top_k, token_budget); !checked)
    return checked.error();
  if (placed.n_layers != experts.n_layers || placed.n_experts != experts.n_experts)
    return mismatch(fmt::format(
        "the plan is for {} layers of {} experts and the profile for {} of {}; calibrate and plan "
        "the same model",
        placed.n_layers, placed.n_experts, experts.n_layers, experts.n_experts));
  if (placed.n_servers != costs.n_servers)
    return mismatch(fmt::format("the plan is for {} servers and the cluster has {}; plan again",
                                placed.n_servers, costs.n_servers));
  if (experts.layers.size() != experts.n_layers || experts.n_layers == 0)
    return mismatch(fmt::format("the profile holds {} layers, expected {}; calibrate again",
                                experts.layers.size(), experts.n_layers));
  if (experts.top_k == 0 || experts.top_k > max_slots)
    return mismatch(
        fmt::format("the model routes to {} experts, expected 1 to {}", experts.top_k, max_slots));
  if (experts.top_k * experts.n_experts > max_options)
    return error{errc::unsupported,
                 fmt::format("selection tables: found {} experts at top-{}, supported is a product "
                             "of at most {}",
                             experts.n_experts, experts.top_k, max_options)};
  // Keys are sets of up to top_k experts; a set of tables ranges over states, residences and ways
  // to fill the slots.
  double n_keys = 0, binomial = 1, ways = 1;
  for (std::size_t i = 1; i <= experts.top_k; ++i) {
    binomial *= static_cast<double>(experts.n_experts - i + 1) / static_cast<double>(i);
    n_keys += binomial;
    if (policy.candidates == candidate_rule::any) ways *= static_cast<double>(experts.n_experts);
  }
  double n_sets = 0;
  for (const auto& layer : experts.layers) n_sets += static_cast<double>(layer.sets.size());
  const double pairs = static_cast<double>(costs.n_servers * costs.n_servers);
  const double work =
      policy.horizon == 1 ? n_keys : pairs * n_sets * ways + pairs * n_keys * experts.n_layers;
  if (n_keys > 1e5 || work > max_work || (experts.top_k > 2 && experts.n_experts > 64))
    return error{
        errc::unsupported,
        fmt::format("selection tables: {} experts at top-{} over {} servers would take {:.2g} "
                    "steps, supported are {:.2g}; choose horizon 1, groups or fewer experts",
                    experts.n_experts, experts.top_k, costs.n_servers, work, max_work)};

  auto made = std::make_shared<tables>();
  made->policy_ = policy;
  made->n_layers_ = experts.n_layers;
  made->n_experts_ = experts.n_experts;
  made->top_k_ = experts.top_k;
  made->set_budget(token_budget);
  if (auto done = made->set_costs(costs); !done) return done.error();
  if (made->is_priced())
    made->per_unit_ = made->per_ns_ * policy.price_ns_per_loss / units_per_loss;
  made->set_keys();
  if (auto done = made->set_layers(experts, placed); !done) return done.error();
  if (auto done = made->set_residencies(placed); !done) return done.error();
  for (auto& residency : made->residencies_) made->build_residency(residency);
  return std::shared_ptr<const selection_tables>(std::move(made));
}

// ---------------------------------------------------------------------------------------------------------------
// Look-ahead: eq. (42) backwards
// ---------------------------------------------------------------------------------------------------------------

/// Ways to run each slot of a target set at mean gates, for a token at `server`.
std::vector<std::vector<option>> tables::mean_options(const layer_facts& facts, std::size_t set,
                                                      std::size_t server) const {
  const auto& targets = facts.sets[set];
  const auto loss = [&](std::size_t slot, std::size_t expert) {
    return facts.mean_loss[(set * top_k_ + slot) * n_experts_ + expert];
  };
  std::vector<std::vector<option>> options(top_k_);
  const auto add = [&](std::size_t slot, std::size_t expert) {
    options[slot].push_back({loss(slot, expert), hosts_from(facts, expert, server),
                             static_cast<std::uint32_t>(expert), 0});
  };
  const auto is_local = [&](std::size_t expert) { return (facts.hosts[expert] >> server) & 1u; };

  if (policy_.candidates == candidate_rule::router_restricted) {
    std::vector<std::uint8_t> taken(n_experts_, 0);
    for (std::size_t j = 0; j < top_k_; ++j)
      if (is_local(targets[j])) {
        taken[targets[j]] = 1;
        add(j, targets[j]);
      }
    for (std::size_t j = 0; j < top_k_; ++j) {
      if (!options[j].empty()) continue;
      // The best local expert not yet taken, else the best local one.
      std::size_t best = n_experts_;
      for (const bool free : {true, false}) {
        for (std::size_t e = 0; e < n_experts_; ++e)
          if (is_local(e) && !(free && taken[e]) &&
              (best == n_experts_ || loss(j, e) < loss(j, best)))
            best = e;
        if (best < n_experts_) break;
      }
      if (best < n_experts_) {
        taken[best] = 1;
        add(j, best);
      } else {
        add(j, targets[j]);
        options[j].back().leaves = 1;
      }
    }
    return options;
  }
  for (std::size_t j = 0; j < top_k_; ++j) {
    for (std::size_t e = 0; e < n_experts_; ++e) {
      if (loss(j, e) == forbidden) continue;
      if (policy_.candidates == candidate_rule::local_only && !is_local(e)) continue;
      add(j, e);
    }
    if (policy_.candidates == candidate_rule::local_only && !is_local(targets[j])) {
      add(j, targets[j]);
      options[j].back().leaves = 1;
    }
  }
  return options;
}

/// Ways to run all slots that the whole budget allows, by ascending bin; dominated ones left out.
std::vector<combination> tables::combinations(const layer_facts& facts, std::size_t set,
                                              std::size_t server) const {
  const auto options = mean_options(facts, set, server);
  const bool ignores_budget = token_budget_ == unbounded_budget || is_priced() ||
                              policy_.candidates == candidate_rule::router_restricted;
  std::vector<combination> found;
  std::array<std::uint32_t, max_slots> experts{};
  const auto fill = [&](auto&& self, std::size_t slot, loss_units loss,
                        std::uint32_t leaves) -> void {
    if (slot == top_k_) {
      combination all;
      all.key = key_of(experts.data(), top_k_);
      all.leaves = leaves;
      all.quality = per_unit_ * static_cast<double>(loss);
      if (!ignores_budget) all.bin = static_cast<std::uint32_t>((loss + width_ - 1) / width_);
      found.push_back(all);
      return;
    }
    for (const auto& choice : options[slot]) {
      const auto sum = loss + choice.loss;
      // ceil(sum / width) beyond the last bin: not within the budget as the tables count it.
      if (!ignores_budget && sum > static_cast<loss_units>(n_bins_ - 1) * width_) continue;
      if (policy_.distinct && policy_.candidates != candidate_rule::router_restricted &&
          std::find(experts.begin(), experts.begin() + slot, choice.expert) !=
              experts.begin() + slot)
        continue;
      experts[slot] = choice.expert;
      self(self, slot + 1, sum, leaves + choice.leaves);
    }
  };
  fill(fill, 0, 0, 0);

  const auto order = [](const combination& x) {
    return std::tuple(x.key, x.leaves, x.bin, x.quality);
  };
  std::sort(found.begin(), found.end(),
            [&](const auto& x, const auto& y) { return order(x) < order(y); });
  std::vector<combination> kept;
  for (const auto& x : found) {
    if (!kept.empty() && kept.back().key == x.key && kept.back().leaves == x.leaves &&
        (is_monotone() ? kept.back().quality <= x.quality : kept.back().bin == x.bin))
      continue;
    kept.push_back(x);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const auto& x, const auto& y) { return x.bin < y.bin; });
  return kept;
}

/// Shortest time until all of these different experts have answered at the residence, without
/// queues.
double tables::shortest(const layer_facts& facts, const std::uint32_t* experts, std::size_t count,
                        std::size_t server, std::size_t residence) const {
  const auto only = policy_.residence == residence_choice::with_slot ? server_mask{1} << residence
                                                                     : ~server_mask{0};
  const auto time = [&](std::size_t m, double run) {
    return hidden(server, m) + run * costs_.expert_ns[m] + hidden(m, residence);
  };
  if (count <= 2) {
    // The best host of each expert, the same with both experts there, and the second best.
    std::array<double, 2> first{infinity, infinity}, second{infinity, infinity};
    std::array<std::size_t, 2> host{};
    for (std::size_t i = 0; i < count; ++i)
      for_each_server(hosts_from(facts, experts[i], server) & only, [&](std::size_t m) {
        const double t = time(m, 1);
        if (t < first[i]) {
          second[i] = first[i];
          first[i] = t;
          host[i] = m;
        } else if (t < second[i]) {
          second[i] = t;
        }
      });
    if (count == 1) return first[0];
    if (host[0] != host[1]) return std::max(first[0], first[1]);
    return std::min(time(host[0], 2), std::min(second[0], second[1]));
  }
  std::array<std::uint8_t, 64> run{};
  double best = infinity;
  const auto assign = [&](auto&& self, std::size_t i, double longest) -> void {
    if (longest >= best) return;
    if (i == count) {
      best = longest;
      return;
    }
    for_each_server(hosts_from(facts, experts[i], server) & only, [&](std::size_t m) {
      ++run[m];
      self(self, i + 1, std::max(longest, time(m, run[m])));
      --run[m];
    });
  };
  assign(assign, 0, 0);
  return best;
}

/// omega_T / d_ref * (time + later) of running each key's experts.
void tables::fill_steps(const layer_facts& facts, std::size_t server, std::size_t residence,
                        double later, std::vector<double>& steps) const {
  const double stays = hidden(server, residence);
  steps.resize(keys_.size());
  for (std::size_t key = 0; key < keys_.size(); ++key) {
    const double time = shortest(facts, keys_[key].data(), keys_[key].size(), server, residence);
    steps[key] = time == infinity ? infinity : per_ns_ * (std::max(stays, time) + later);
  }
}

/// Lowers values [leaves, bins] by the choices at one residence. onward: W at the residence, [key
/// stride] apart.
void tables::relax(const std::vector<combination>& choices, const std::vector<double>& steps,
                   const double* onward, std::size_t key_stride, std::size_t set_key,
                   double* values) const {
  const double* routed = onward + set_key * key_stride;
  double lowest = infinity;
  for (const auto& choice : choices) {
    const double cost = steps[choice.key] + choice.quality;
    const double* row = is_executed() ? onward + choice.key * key_stride : routed;
    // Without executed rows, a choice that is dearer than one of a lower bin never wins.
    if (!is_executed() && is_monotone()) {
      if (cost >= lowest) continue;
      lowest = cost;
    }
    double* out = values + choice.leaves * n_bins_ + choice.bin;
    const std::size_t count = n_bins_ - choice.bin;
    for (std::size_t b = 0; b < count; ++b) out[b] = std::min(out[b], cost + row[b]);
  }
}

/// The value of each bin: of the fewest slots that leave, the lowest cost.
void tables::settle(const double* levels, double* values) const {
  for (std::size_t b = 0; b < n_bins_; ++b) {
    values[b] = infinity;
    for (std::size_t leaves = 0; leaves <= top_k_ && values[b] == infinity; ++leaves)
      values[b] = levels[leaves * n_bins_ + b];
  }
}

void tables::build_residency(residency_tables& content) const {
  const auto& members = content.members.layers;
  const bool with_slot = policy_.residence == residence_choice::with_slot;
  const bool full = policy_.horizon == 0;
  const auto everywhere = n_servers_ == 64 ? ~server_mask{0} : (server_mask{1} << n_servers_) - 1;

  content.layers.resize(n_layers_);
  for (std::size_t l = 0; l < n_layers_; ++l) {
    auto& table = content.layers[l];
    const bool last = l + 1 == n_layers_;
    table.next_mask = !last ? members[l + 1] : with_slot ? everywhere : members[l] | members[0];
    for_each_server(table.next_mask, [&](std::size_t n) {
      table.next.push_back(static_cast<std::uint32_t>(n));
      table.later.push_back(policy_.price_attention && !last ? costs_.attention_ns[n] : 0);
    });
    table.w.assign(table.next.size() * n_bins_, 0);
  }
  if (policy_.horizon != 1) {
    // One chain of W tables for each number of steps to go that a decision's own table is made
    // from.
    const std::size_t n_chains = full ? 1 : policy_.horizon - 1;
    const std::size_t n_rounds = full && std::popcount(members[0]) > 1 ? terminal_rounds : 1;
    std::vector<double> start(n_servers_, 0);
    std::vector<double> steps, levels;
    for (std::size_t round = 0; round < n_rounds; ++round) {
      auto& end = content.layers.back();
      if (full)
        for (std::size_t i = 0; i < end.next.size(); ++i) {
          const auto n = end.next[i];
          double best = infinity;
          for_each_server(members[0], [&](std::size_t r) {
            const double attention = policy_.price_attention ? costs_.attention_ns[r] : 0;
            best = std::min(best, per_ns_ * (costs_.message(n, r) + attention) + start[r]);
          });
          const double terminal = per_ns_ * costs_.head_ns[n] + best;
          std::fill_n(end.w.begin() + static_cast<std::ptrdiff_t>(i * n_bins_), n_bins_, terminal);
        }
      // values[chain]: V of the layer at hand, [server, set, bins]; onward[chain]: W after it,
      // [key, next, bins].
      std::vector<std::vector<double>> values(n_chains), onward(n_chains + 1);
      for (std::size_t l = n_layers_; l-- > 0;) {
        auto& table = content.layers[l];
        const auto& facts = layers_[l];
        const auto n_next = table.next.size();
        const auto row_size = n_next * n_bins_;
        if (l + 1 < n_layers_) {
          const auto n_sets = layers_[l + 1].sets.size();
          for (std::size_t chain = 0; chain < n_chains; ++chain) {
            auto& w = full ? onward[0] : onward[chain + 1];
            w.assign(keys_.size() * row_size, 0);
            for (std::size_t key = 0; key < keys_.size(); ++key)
              for (std::size_t to = 0; to < n_sets; ++to) {
                const double p = facts.transition[key * n_sets + to];
                if (p == 0) continue;
                for (std::size_t i = 0; i < n_next; ++i) {
                  const double* v = values[chain].data() + (table.next[i] * n_sets + to) * n_bins_;
                  double* out = w.data() + key * row_size + i * n_bins_;
                  for (std::size_t b = 0; b < n_bins_; ++b) out[b] += p * v[b];
                }
              }
          }
          table.key_stride = row_size;
          table.w = full ? onward[0] : onward[n_chains];
        } else {
          for (auto& w : onward) w = table.w;
        }
        const std::vector<double> base(row_size, 0);
        if (l == 0 && round + 1 == n_rounds) continue;

        const auto n_sets = facts.sets.size();
        for (auto& v : values) v.assign(n_servers_ * n_sets * n_bins_, 0);
        const auto n_levels = (top_k_ + 1) * n_bins_;
        std::vector<std::vector<combination>> choices(n_sets);
        if (!is_local_rule())
          for (std::size_t set = 0; set < n_sets; ++set) choices[set] = combinations(facts, set, 0);
        for_each_server(members[l], [&](std::size_t s) {
          if (is_local_rule())
            for (std::size_t set = 0; set < n_sets; ++set)
              choices[set] = combinations(facts, set, s);
          levels.assign(n_chains * n_sets * n_levels, infinity);
          for (std::size_t i = 0; i < n_next; ++i) {
            fill_steps(facts, s, table.next[i], table.later[i], steps);
            for (std::size_t chain = 0; chain < n_chains; ++chain) {
              // Chain c (0-based) holds V with c + 1 steps to go, made from W with c.
              const bool flat = !full && chain == 0;
              const double* w = (flat ? base.data() : onward[chain].data()) + i * n_bins_;
              const std::size_t stride = flat ? 0 : table.key_stride;
              for (std::size_t set = 0; set < n_sets; ++set)
                relax(choices[set], steps, w, stride, facts.set_key[set],
                      levels.data() + (chain * n_sets + set) * n_levels);
            }
          }
          for (std::size_t chain = 0; chain < n_chains; ++chain)
            for (std::size_t set = 0; set < n_sets; ++set)
              settle(levels.data() + (chain * n_sets + set) * n_levels,
                     values[chain].data() + (s * n_sets + set) * n_bins_);
        });
      }
      if (round + 1 < n_rounds) {
        const auto n_sets = layers_[0].sets.size();
        for_each_server(members[0], [&](std::size_t r) {
          start[r] = 0;
          for (std::size_t set = 0; set < n_sets; ++set)
            start[r] +=
                start_probability_[set] * values[0][(r * n_sets + set) * n_bins_ + n_bins_ - 1];
        });
        double lowest = infinity;
        for_each_server(members[0], [&](std::size_t r) { lowest = std::min(lowest, start[r]); });
        for_each_server(members[0], [&](std::size_t r) { start[r] -= lowest; });
      }
    }
  }
  for (auto& table : content.layers) {
    const auto row_size = table.next.size() * n_bins_;
    table.low.assign(row_size, infinity);
    for (std::size_t row = 0; row < table.w.size(); row += row_size)
      for (std::size_t i = 0; i < row_size; ++i)
        table.low[i] = std::min(table.low[i], table.w[row + i]);
  }
}

double tables::value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
                     std::size_t bin) const {
  const auto& table = residencies_[residency_of_[access]].layers[layer];
  const auto& facts = layers_[layer];
  const auto choices = combinations(facts, set, server);
  std::vector<double> steps, levels((top_k_ + 1) * n_bins_, infinity), values(n_bins_);
  for (std::size_t i = 0; i < table.next.size(); ++i) {
    fill_steps(facts, server, table.next[i], table.later[i], steps);
    relax(choices, steps, table.w.data() + i * n_bins_, table.key_stride, facts.set_key[set],
          levels.data());
  }
  settle(levels.data(), values.data());
  return values[bin];
}

// ---------------------------------------------------------------------------------------------------------------
// Decisions: eq. (43)
// ---------------------------------------------------------------------------------------------------------------

void tables::slot_losses(std::size_t layer, std::uint32_t target, float gate,
                         std::span<const float> probabilities, std::span<loss_units> losses) const {
  const auto& facts = layers_[layer];
  const auto* allowed = facts.allowed.data() + target * n_experts_;
  if (policy_.metric == loss_metric::token_gate) {
    const double routed = probabilities[target];
    for (std::size_t k = 0; k < n_experts_; ++k)
      losses[k] = allowed[k]
                      ? to_units((routed - static_cast<double>(probabilities[k])) * facts.damage)
                      : forbidden;
  } else {
    for (std::size_t k = 0; k < n_experts_; ++k)
      losses[k] = allowed[k] ? to_units(predicted_loss(facts, target, k, gate)) : forbidden;
  }
  losses[target] = 0;
}

std::size_t tables::bin_of(loss_units left) const {
  if (n_bins_ == 1) return 0;
  return std::min(static_cast<std::size_t>(static_cast<std::uint64_t>(left) /
                                           static_cast<std::uint64_t>(width_)),
                  n_bins_ - 1);
}

/// W after a choice of these experts (or for these targets): [next, bins].
const double* tables::onward_row(const layer_table& table, const std::uint32_t* experts,
                                 std::size_t count) const {
  if (table.key_stride == 0) return table.w.data();
  return table.w.data() + key_of(experts, count) * table.key_stride;
}

/// The router's best experts here, one for each slot; targets that are among them keep their slot.
void tables::restrict_options(const decision_query& query, const layer_facts& facts,
                              option* options, std::size_t* counts) const {
  const auto count = query.slots.size();
  const auto here = server_mask{1} << query.server;
  const auto is_better = [&](std::size_t a, std::size_t b) {
    return query.probabilities.empty() ? query.slots[0].loss[a] < query.slots[0].loss[b]
                                       : query.probabilities[a] > query.probabilities[b];
  };
  std::array<std::uint32_t, max_slots> best{};
  std::size_t n_best = 0;
  for (std::uint32_t e = 0; e < n_experts_; ++e) {
    if ((facts.hosts[e] & here) == 0) continue;
    std::size_t at = n_best;
    while (at > 0 && is_better(e, best[at - 1])) --at;
    if (at >= count) continue;
    for (std::size_t i = std::min(n_best, count - 1); i > at; --i) best[i] = best[i - 1];
    best[at] = e;
    n_best = std::min(n_best + 1, count);
  }
  std::array<bool, max_slots> taken{};
  for (std::size_t j = 0; j < count; ++j) {
    const auto& slot = query.slots[j];
    counts[j] = 0;
    for (std::size_t i = 0; i < n_best; ++i)
      if (best[i] == slot.target) {
        taken[i] = true;
        options[j * n_experts_] = {0, here, slot.target, 0};
        counts[j] = 1;
      }
  }
  for (std::size_t j = 0; j < count; ++j) {
    if (counts[j] != 0) continue;
    const auto& slot = query.slots[j];
    counts[j] = 1;
    if (n_best == 0) {
      options[j * n_experts_] = {0, facts.hosts[slot.target], slot.target, 1};
      continue;
    }
    std::size_t i = 0;
    while (i < n_best && taken[i]) ++i;
    if (i == n_best) i = 0;
    taken[i] = true;
    options[j * n_experts_] = {slot.loss[best[i]], here, best[i], 0};
  }
}

/// Candidates of each slot, eq. (40), by ascending loss.
void tables::fill_options(const decision_query& query, const layer_facts& facts, loss_units left,
                          option* options, std::size_t* counts) const {
  const auto rule = policy_.candidates;
  for (std::size_t j = 0; j < query.slots.size(); ++j) {
    const auto& slot = query.slots[j];
    option* out = options + j * n_experts_;
    std::size_t n = 0;
    const auto here = server_mask{1} << query.server;
    const bool local_only = rule == candidate_rule::local_only;
    const auto target_hosts = facts.hosts[slot.target];
    if (local_only && (target_hosts & here) != 0)
      out[n++] = {0, here, slot.target, 0};
    else
      out[n++] = {0, target_hosts, slot.target, local_only ? 1u : 0u};
    if (rule != candidate_rule::exact)
      for (std::uint32_t e = 0; e < n_experts_; ++e) {
        const auto loss = slot.loss[e];
        if (loss > left || e == slot.target) continue;
        auto hosts = facts.hosts[e];
        if (local_only) {
          hosts &= here;
          if (hosts == 0) continue;
        }
        // Insertion by loss; experts of equal loss stay in ascending order after the target.
        std::size_t at = n++;
        for (; at > 0 && out[at - 1].loss > loss; --at) out[at] = out[at - 1];
        out[at] = {loss, hosts, e, 0};
      }
    counts[j] = n;
  }
}

/// Chooses the servers of a candidate's slots: lowest time, then lowest sum of slot times, then
/// lowest servers.
void tables::place(const step_query& step, outcome& candidate) const {
  if (candidate.placed) return;
  candidate.placed = true;
  const std::size_t n = step.table.next[candidate.position];
  const auto only =
      policy_.residence == residence_choice::with_slot ? server_mask{1} << n : ~server_mask{0};
  const double stays = hidden(step.query.server, n);
  std::array<std::uint32_t, max_slots> experts{};
  std::array<server_mask, max_slots> hosts{};
  for (std::size_t j = 0; j < step.count; ++j) {
    const auto& choice = step.at(j, candidate.choice[j], n_experts_);
    experts[j] = choice.expert;
    hosts[j] = choice.hosts & only;
  }
  double best_time = infinity, best_work = infinity;
  std::array<std::uint8_t, max_slots> servers{};
  std::array<std::uint8_t, max_slots> adds{};  // 1 where the slot's expert is new at its server.
  const auto assign = [&](auto&& self, std::size_t slot) -> void {
    if (slot == step.count) {
      double time = stays, work = 0;
      for (std::size_t j = 0; j < step.count; ++j) {
        double q = 0;
        for (std::size_t i = 0; i < step.count; ++i) q += servers[i] == servers[j] ? adds[i] : 0;
        const double t = back(step, servers[j], n, q);
        time = std::max(time, t);
        work += t;
      }
      if (time < best_time || (time == best_time && work < best_work)) {
        best_time = time;
        best_work = work;
        candidate.servers = servers;
      }
      return;
    }
    for_each_server(hosts[slot], [&](std::size_t m) {
      if (step.count > 2 && back(step, m, n, 1) > best_time) return;
      servers[slot] = static_cast<std::uint8_t>(m);
      adds[slot] = 1;
      for (std::size_t i = 0; i < slot; ++i)
        if (servers[i] == m && experts[i] == experts[slot]) adds[slot] = 0;
      self(self, slot + 1);
    });
  };
  assign(assign, 0);
  candidate.time = best_time;
  candidate.work = best_work;
}

/// Keeps the better of two candidates. The candidate's cost, loss, time and leaves are known.
void tables::offer(const step_query& step, outcome& candidate, outcome& best) const {
  const auto worth = [](const outcome& x) { return std::tie(x.leaves, x.cost, x.loss, x.time); };
  if (worth(candidate) > worth(best)) return;
  if (worth(candidate) == worth(best)) {
    place(step, candidate);
    place(step, best);
    const auto order = [&](const outcome& x) {
      std::array<std::uint32_t, 2 * max_slots> slots{};
      for (std::size_t j = 0; j < step.count; ++j) {
        slots[2 * j] = x.servers[j];
        slots[2 * j + 1] = step.at(j, x.choice[j], n_experts_).expert;
      }
      return std::tuple(x.work, x.position, slots);
    };
    if (!(order(candidate) < order(best))) return;
  }
  best = candidate;
}

void tables::search_one(const step_query& step, std::size_t position, outcome& best) const {
  const std::size_t n = step.table.next[position];
  const auto only =
      policy_.residence == residence_choice::with_slot ? server_mask{1} << n : ~server_mask{0};
  const double stays = hidden(step.query.server, n);
  const double later = step.table.later[position];
  const double* row = step.row + position * n_bins_;
  const double lowest = is_monotone() ? row[step.full] : -infinity;
  const bool executed = is_executed() && step.table.key_stride != 0;
  outcome candidate;
  candidate.position = static_cast<std::uint32_t>(position);
  for (std::size_t i = 0; i < step.counts[0]; ++i) {
    const auto& choice = step.options[i];
    double time = infinity;
    for_each_server(choice.hosts & only,
                    [&](std::size_t m) { time = std::min(time, back(step, m, n, 1)); });
    if (time == infinity) continue;
    time = std::max(stays, time);
    const double cost = per_ns_ * (time + later) + per_unit_ * static_cast<double>(choice.loss);
    if (is_monotone() && cost + lowest > best.cost) continue;
    const double* onward =
        executed ? onward_row(step.table, &choice.expert, 1) + position * n_bins_ : row;
    candidate.cost = cost + onward[bin_of(step.left - choice.loss)];
    candidate.loss = choice.loss;
    candidate.time = time;
    candidate.leaves = choice.leaves;
    candidate.placed = false;
    candidate.choice[0] = static_cast<std::uint16_t>(i);
    offer(step, candidate, best);
  }
}

void tables::search_two(const step_query& step, std::size_t position, outcome& best) const {
  struct timed {
    double first, both,
        second;  // Back from the best host alone, with two experts there, from the second best.
    loss_units loss;
    std::uint32_t expert;
    std::uint16_t host;
    std::uint16_t index;
    std::uint32_t leaves;
  };
  timed ways[max_options];
  std::size_t counts[2];
  const std::size_t n = step.table.next[position];
  const double stays = hidden(step.query.server, n);
  const double later = step.table.later[position];
  const double* row = step.row + position * n_bins_;
  const bool executed = is_executed() && step.table.key_stride != 0;
  const bool prune = is_monotone();
  const double lowest = prune ? row[step.full] : -infinity;

  timed* out = ways;
  for (std::size_t j = 0; j < 2; ++j) {
    timed* const begin = out;
    // Lowest `both` among the options of strictly lower loss, and second lowest.
    double beaten = infinity, beaten_twice = infinity;
    const timed* settled = begin;
    for (std::size_t i = 0; i < step.counts[j]; ++i) {
      const auto& choice = step.at(j, i, n_experts_);
      double first = infinity, second = infinity;
      std::size_t host = 0;
      for_each_server(choice.hosts, [&](std::size_t m) {
        const double t = back(step, m, n, 1);
        if (t < first) {
          second = first;
          first = t;
          host = m;
        } else if (t < second) {
          second = t;
        }
      });
      if (prune && !executed) {
        for (; settled != out && settled->loss < choice.loss; ++settled) {
          if (settled->both < beaten) {
            beaten_twice = beaten;
            beaten = settled->both;
          } else if (settled->both < beaten_twice) {
            beaten_twice = settled->both;
          }
        }
        // A cheaper option is back before this one even when it shares its server: this one never
        // wins.
        if ((policy_.distinct ? beaten_twice : beaten) <= first) continue;
      }
      *out++ = {first,
                back(step, host, n, 2),
                second,
                choice.loss,
                choice.expert,
                static_cast<std::uint16_t>(host),
                static_cast<std::uint16_t>(i),
                choice.leaves};
    }
    counts[j] = static_cast<std::size_t>(out - begin);
  }

  const timed* const others = ways + counts[0];
  double soonest = infinity;
  for (std::size_t i = 0; i < counts[1]; ++i) soonest = std::min(soonest, others[i].first);
  outcome candidate;
  candidate.position = static_cast<std::uint32_t>(position);
  for (std::size_t i = 0; i < counts[0]; ++i) {
    const timed& a = ways[i];
    if (prune) {
      const double bound = per_ns_ * (std::max(stays, std::max(a.first, soonest)) + later) +
                           per_unit_ * static_cast<double>(a.loss + others[0].loss) + lowest;
      if (bound > best.cost) continue;
    }
    for (std::size_t k = 0; k < counts[1]; ++k) {
      const timed& b = others[k];
      const auto loss = a.loss + b.loss;
      if (loss > step.left) break;
      double time;
      if (a.expert == b.expert) {
        if (policy_.distinct && policy_.candidates != candidate_rule::router_restricted) continue;
        time = a.first;
      } else if (a.host != b.host) {
        time = std::max(a.first, b.first);
      } else {
        time = std::min(a.both, std::min(a.second, b.second));
      }
      time = std::max(stays, time);
      const double cost = per_ns_ * (time + later) + per_unit_ * static_cast<double>(loss);
      if (prune && cost + lowest > best.cost) continue;
      const double* onward = row;
      if (executed) {
        const std::array<std::uint32_t, 2> experts{a.expert, b.expert};
        onward = onward_row(step.table, experts.data(), 2) + position * n_bins_;
      }
      candidate.cost = cost + onward[bin_of(step.left - loss)];
      candidate.loss = loss;
      candidate.time = time;
      candidate.leaves = a.leaves + b.leaves;
      candidate.placed = false;
      candidate.choice[0] = a.index;
      candidate.choice[1] = b.index;
      offer(step, candidate, best);
    }
  }
}

void tables::search_many(const step_query& step, std::size_t position, outcome& best) const {
  const std::size_t n = step.table.next[position];
  const double stays = hidden(step.query.server, n);
  const double later = step.table.later[position];
  const double* row = step.row + position * n_bins_;
  const bool executed = is_executed() && step.table.key_stride != 0;
  const double lowest = is_monotone() ? row[step.full] : -infinity;
  outcome candidate;
  candidate.position = static_cast<std::uint32_t>(position);
  std::array<std::uint32_t, max_slots> experts{};
  const auto fill = [&](auto&& self, std::size_t slot, loss_units loss, double time,
                        std::uint32_t leaves) -> void {
    const double partial = per_ns_ * (time + later) + per_unit_ * static_cast<double>(loss);
    if (is_monotone() && partial + lowest > best.cost) return;
    if (slot == step.count) {
      outcome whole = candidate;
      whole.loss = loss;
      whole.leaves = leaves;
      place(step, whole);
      const double* onward =
          executed ? onward_row(step.table, experts.data(), step.count) + position * n_bins_ : row;
      whole.cost = per_ns_ * (whole.time + later) + per_unit_ * static_cast<double>(loss) +
                   onward[bin_of(step.left - loss)];
      offer(step, whole, best);
      return;
    }
    for (std::size_t i = 0; i < step.counts[slot]; ++i) {
      const auto& choice = step.at(slot, i, n_experts_);
      if (loss + choice.loss > step.left) break;
      if (policy_.distinct && policy_.candidates != candidate_rule::router_restricted &&
          std::find(experts.begin(), experts.begin() + slot, choice.expert) !=
              experts.begin() + slot)
        continue;
      double first = infinity;
      for_each_server(choice.hosts,
                      [&](std::size_t m) { first = std::min(first, back(step, m, n, 1)); });
      experts[slot] = choice.expert;
      candidate.choice[slot] = static_cast<std::uint16_t>(i);
      self(self, slot + 1, loss + choice.loss, std::max(time, first), leaves + choice.leaves);
    }
  };
  fill(fill, 0, 0, stays, 0);
}

void tables::search(const step_query& step, server_mask residences, outcome& best) const {
  const auto& next = step.table.next;
  const auto search_at = [&](std::size_t position) {
    if (step.count == 1)
      search_one(step, position, best);
    else if (step.count == 2)
      search_two(step, position, best);
    else
      search_many(step, position, best);
  };
  // The residence that could be the cheapest goes first, so that most others need no look.
  std::array<double, 64> bound;
  std::size_t first = next.size();
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (((residences >> next[i]) & 1u) == 0) continue;
    bound[i] = per_ns_ * (hidden(step.query.server, next[i]) + step.table.later[i]) +
               step.row[i * n_bins_ + step.full];
    if (first == next.size() || bound[i] < bound[first]) first = i;
  }
  if (first == next.size()) return;
  search_at(first);
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (i == first || ((residences >> next[i]) & 1u) == 0) continue;
    if (is_monotone() && bound[i] > best.cost) continue;
    search_at(i);
  }
}

decision tables::select(const decision_query& query) const {
  const auto count = query.slots.size();
  ORDERMOE_CHECK(count >= 1 && count <= top_k_,
                 fmt::format("a decision was asked for {} slots of a top-{} model", count, top_k_));
  ORDERMOE_CHECK(
      query.layer < n_layers_ && query.server < n_servers_ && query.access < n_servers_ &&
          (query.wait_ns.empty() || query.wait_ns.size() == n_servers_),
      fmt::format("a decision was asked for layer {}, server {} and access server {} with {} waits",
                  query.layer, query.server, query.access, query.wait_ns.size()));
  const auto rule = policy_.candidates;
  for (const auto& slot : query.slots)
    ORDERMOE_CHECK(slot.target < n_experts_ &&
                       (slot.loss.size() == n_experts_ || rule == candidate_rule::exact),
                   fmt::format("a slot has target {} and {} losses, the layer {} experts",
                               slot.target, slot.loss.size(), n_experts_));
  const auto& facts = layers_[query.layer];
  const auto& table = residencies_[residency_of_[query.access]].layers[query.layer];

  option options[max_options];
  std::array<std::size_t, max_slots> counts;
  loss_units left = std::max<loss_units>(0, query.budget_left);
  if (token_budget_ == 0) left = 0;
  if (rule == candidate_rule::router_restricted) {
    left = unbounded_budget;
    restrict_options(query, facts, options, counts.data());
  } else {
    fill_options(query, facts, left, options, counts.data());
  }

  const double* row = table.low.data();
  if (!is_executed()) {
    std::array<std::uint32_t, max_slots> targets;
    for (std::size_t j = 0; j < count; ++j) targets[j] = query.slots[j].target;
    row = onward_row(table, targets.data(), count);
  }
  std::array<double, 64> ready;
  const bool waits = policy_.price_waits && !query.wait_ns.empty();
  for (std::size_t m = 0; m < n_servers_; ++m)
    ready[m] = hidden(query.server, m) + (waits ? static_cast<double>(query.wait_ns[m]) : 0);
  const step_query step{query,         facts, table, count,        options,
                        counts.data(), left,  row,   bin_of(left), ready.data()};

  outcome best;
  const auto asked = table.next_mask & query.residences;
  search(step, asked != 0 ? asked : table.next_mask, best);
  if (best.cost == infinity) search(step, table.next_mask, best);
  ORDERMOE_CHECK(best.cost < infinity,
                 fmt::format("no server can run layer {} for a token at server {}", query.layer,
                             query.server));
  place(step, best);

  decision made;
  made.residence = table.next[best.position];
  made.n_slots = static_cast<std::uint32_t>(count);
  for (std::size_t j = 0; j < count; ++j) {
    const auto& choice = step.at(j, best.choice[j], n_experts_);
    made.slots[j] = {best.servers[j], choice.expert, choice.loss};
  }
  made.time_ns = best.time;
  made.cost = best.cost;
  return made;
}

}  // namespace

result<std::shared_ptr<const selection_tables>> selection_tables::build(
    const profile& experts, const plan& placed, const cost_model& costs,
    const selection_policy& policy, loss_units token_budget) {
  return tables::make(experts, placed, costs, policy, token_budget);
}

const char* to_string(candidate_rule rule) {
  switch (rule) {
    case candidate_rule::exact:
      return "exact";
    case candidate_rule::local_only:
      return "local-only";
    case candidate_rule::router_restricted:
      return "router-restricted";
    case candidate_rule::group:
      return "group";
    case candidate_rule::any:
      return "any";
  }
  return "unknown";
}

selection_weights adapt_weights(double omega_quality, double kappa, double mean_budget_use,
                                double mean_normalised_delay) {
  const double moved =
      std::clamp(omega_quality + kappa * (mean_budget_use - mean_normalised_delay), 0.0, 1.0);
  return {1 - moved, moved};
}

}  // namespace ordermoe::planning
