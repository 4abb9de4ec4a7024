#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "planning/selection/selector.hpp"
#include "planning/selection/slot_sweep.hpp"
#include "planning/target_sets.hpp"

/// How selection is done behind selector.hpp; nothing outside planning/selection/ includes this.
///
///   selector_tables.cpp             checks profile, plan and policy and builds tables for them
///   selector_layers.cpp             what each layer needs, whatever the residency
///   selector_lookahead.cpp          W, filled backwards, eq. (42)
///   selector_lookahead_sets.cpp     what it ranges over where sets of experts are keys,
///   selector_lookahead_experts.cpp  and where single experts are
///   selector_options.cpp            which experts a slot may run, and where, under each rule
///   selector_decisions.cpp          what every decision, eq. (43), begins with, and who makes it:
///   selector_one_slot.cpp             one slot, whatever the number of experts
///   selector_two_slots.cpp            two slots where sets are keys
///   selector_any_slots.cpp            more of them, and rules that are kept local, by trying all ways
///   selector_many_decisions.cpp       slots where experts are keys
///   selector_left_out.cpp             rules that may leave slots out
///
/// What a decision calls in its inner loops is defined here, so that it is inlined there.
namespace ordermoe::planning::selection {

/// A bound that is summed in another order than a cost is held below it by more than rounding can make up for, a few
/// units of 2^-53 where nothing summed is negative: what a bound above `best` leaves out could not have won.
inline double with_slack(double best) {
  return best * (1 + 1e-12);
}

/// Options of all slots of one decision, on the stack.
inline constexpr std::size_t max_options = 2048;

/// A way to run one slot: an expert and the servers where it may run, which keep it in the same
/// precision.
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
  std::uint32_t step = 0;  ///< Of the ways, as `key` is of the experts.
  std::uint32_t bin = 0;   ///< ceil(loss / width)
  std::uint32_t leaves = 0;
};

/// What a layer's decisions need, whatever the residency.
struct layer_facts {
  std::vector<server_mask> hosts;          ///< [E]
  std::vector<server_mask> way_hosts;      ///< [precisions, E] in tables::precisions_
  std::vector<server_mask> host_sets;      ///< The different ones of way_hosts.
  std::vector<std::uint32_t> host_set_of;  ///< [precisions, E] index into host_sets
  std::vector<double> copy_loss;  ///< [precisions, E] per squared gate; 0 as the model has them
  std::vector<double> distance;   ///< [E, E] from target to substitute
  bool allows_all = false;        ///< Every expert in place of every other.
  /// Where not: the experts that may run in place of each target, itself among them, ascending.
  std::vector<std::uint32_t> candidates, first_candidate;  ///< [E + 1] into candidates
  std::vector<double> candidate_distance;  ///< [candidates] as distance has it, beside each other
  double damage = 1;
  std::optional<double> left_out_damage;         ///< Per squared gate, where it was measured.
  std::vector<std::vector<std::uint32_t>> sets;  ///< [sets][top_k]
  std::vector<loss_units> mean_loss;             ///< [sets, top_k, E]
  std::vector<double> mean_gates;                ///< [sets, top_k]
  std::vector<double> transition;  ///< [keys, sets at the next layer]; empty at the last layer
  /// [n_servers] what each hosts, ascending; where keys are experts
  std::vector<std::vector<std::uint32_t>> experts_at;

  /// Where not every expert is one.
  std::span<const std::uint32_t> candidates_of(std::size_t target) const {
    const auto first = first_candidate[target];
    return std::span(candidates).subspan(first, first_candidate[target + 1] - first);
  }
  const double* candidate_distances_of(std::size_t target) const {
    return candidate_distance.data() + first_candidate[target];
  }
};

/// Ways to run the slots of each set between each pair of servers that may be the best for some
/// budget, where keys are experts.
struct step_fronts {
  struct point {
    double cost;        ///< Of the step: time and loss.
    std::uint32_t bin;  ///< ceil(loss / width)
    std::uint32_t leaves;
  };
  std::vector<std::uint32_t> first;  ///< [from, next, sets + 1] into points
  std::vector<point> points;
  std::vector<std::uint32_t> experts;  ///< [points, top_k] executed; empty unless W depends on them
};

/// W of one layer and residency. Residences are innermost: a decision compares them side by side.
struct layer_table {
  std::vector<std::uint32_t> next;  ///< Residences after the layer, ascending.
  server_mask next_mask = 0;
  std::vector<double> later;   ///< [next] attention at n, where it is priced.
  std::size_t key_stride = 0;  ///< 0 where W does not depend on the target set.
  std::vector<double> w;       ///< [keys or 1, bins, next]
  std::vector<double> low;     ///< [bins, next] minimum of w over the keys
  std::vector<double> over;    ///< [keys] the least by which a key's w is over low, anywhere
};

/// Access servers with the same residency share tables.
struct residency_tables {
  residency members;
  std::vector<layer_table> layers;
};

inline error mismatch(std::string what) {
  return {errc::mismatch, "selection tables: " + std::move(what)};
}

class tables final : public selection_tables {
 public:
  static result<std::shared_ptr<const selection_tables>> make(
      const profile& profile, const plan& placed, const cost_model& costs,
      const selection_policy& policy, loss_units token_budget, look_ahead_keys keys);

  void slot_losses(std::size_t layer, std::uint32_t target, float gate,
                   std::span<const float> probabilities,
                   std::span<loss_units> losses) const override;
  bool reads_losses() const override {
    return policy_.candidates != candidate_rule::exact && !ranks_alike();
  }
  decision select(const decision_query& query) const override;
  std::span<const double> link_ns() const override { return hidden_to_; }
  std::span<const std::uint8_t> pruned(std::size_t access, std::size_t layer) const override {
    return pruned_.empty() ? std::span<const std::uint8_t>()
                           : std::span(pruned_[access * n_layers_ + layer]);
  }
  double position_damage(std::size_t position, std::size_t unread_before) const override {
    return position < unread_before ? between_buckets(unread_damage_, unread_before)
                                    : at_position(position_damage_, position);
  }
  loss_units pruned_loss(std::size_t layer, double regret) const override {
    return to_substitute_units(regret * layers_[layer].damage);
  }
  loss_units loss_left_out(std::size_t layer, const slot_query& slot,
                           std::span<const float> probabilities) const override;
  double value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
               std::size_t bin) const override;
  std::size_t bins() const override { return n_bins_; }
  loss_units bin_width() const override { return width_; }
  loss_units token_budget() const override { return token_budget_; }
  const selection_policy& policy() const override { return policy_; }
  look_ahead_keys keys() const override { return kind_; }

 private:
  /// What every decision is made from: what waits, what may be lost and what follows.
  struct situation {
    const decision_query& query;
    const layer_facts& facts;
    const layer_table& table;
    loss_units left;
    double per_unit;               ///< Cost of a unit of loss in this decision.
    const double* links;           ///< [to, from] d as the snapshot has it.
    std::array<double, 64> ready;  ///< [server] d(s, m) + wait(m)

    /// As cost.
    double lost(loss_units loss) const { return per_unit * static_cast<double>(loss); }
  };

  void set_budget(loss_units token_budget);
  /// Whether losses cost time instead of a share of an indexed budget.
  bool is_priced() const {
    return policy_.price_ns_per_loss > 0 && token_budget_ > 0 && !ignores_budgets();
  }
  result<void> set_costs(const cost_model& costs);
  result<void> set_layers(const profile& profile, const plan& placed);
  result<void> set_hosts(std::size_t layer, const layer_profile& here,
                         const placement_index& placement, layer_facts& facts) const;
  void set_distances(const layer_profile& here, layer_facts& facts) const;
  void set_candidates(const layer_profile& here, const layer_grouping* groups,
                      layer_facts& facts) const;
  void set_target_sets(const layer_profile& here, const representatives& kept,
                       layer_facts& facts) const;
  result<void> set_residencies(const plan& placed);
  result<void> set_pruned(const plan& placed);
  void set_precisions(const cost_model& costs);
  void set_keys();
  std::uint32_t key_of(const std::uint32_t* experts, std::size_t count) const;
  void fill_transition(const layer_profile& here, const layer_profile* next, layer_facts& facts);
  void fill_expert_transition(const layer_profile& here, const layer_profile& next,
                              layer_facts& facts);
  double predicted_loss(const layer_facts& facts, std::size_t target, std::size_t expert,
                        double gate) const;
  double loss_at(const layer_facts& facts, double distance, double gate) const;
  /// What running an expert at one of the precisions in use loses besides.
  loss_units copy_units(const layer_facts& facts, std::size_t kept, std::size_t expert,
                        double gate) const {
    return kept == 0
               ? 0
               : to_substitute_units(facts.copy_loss[kept * n_experts_ + expert] * gate * gate);
  }

  /// A slot may run another expert than its target.
  bool substitutes() const {
    return policy_.candidates != candidate_rule::exact && !leaves_out(policy_.candidates);
  }
  /// What is at the token's server runs there.
  bool is_local_rule() const {
    return keeps_substitutes() || policy_.candidates == candidate_rule::router_restricted;
  }
  /// Only targets run elsewhere.
  bool keeps_substitutes() const {
    return is_kept_local() || policy_.candidates == candidate_rule::here_or_target;
  }
  /// Likewise, and those only where it cannot be helped, whatever the cost.
  bool is_kept_local() const {
    return policy_.candidates == candidate_rule::local_only ||
           policy_.candidates == candidate_rule::local_skip;
  }
  /// Budgets are not kept.
  bool ignores_budgets() const {
    return policy_.candidates == candidate_rule::router_restricted ||
           policy_.candidates == candidate_rule::local_skip;
  }
  /// No two slots run the same expert.
  bool runs_apart() const {
    return policy_.distinct && policy_.candidates != candidate_rule::router_restricted;
  }
  /// Every slot ranks the experts at a server by the router's score, which its losses are made of.
  bool ranks_alike() const {
    return has_expert_keys() && policy_.candidates == candidate_rule::any &&
           policy_.metric == loss_metric::token_gate && runs_apart() && keeps_as_stored();
  }
  /// Experts are as the model has them on all servers.
  bool keeps_as_stored() const { return precisions_.size() == 1; }
  /// More budget, less loss or another expert never hurts; local_only is forced to substitute, so
  /// there it may.
  bool is_monotone() const { return !is_kept_local(); }
  double hidden(std::size_t from, std::size_t to) const {
    return hidden_to_[to * n_servers_ + from];
  }
  server_mask hosts_from(const layer_facts& facts, std::size_t way, std::size_t server) const {
    const auto hosts = facts.way_hosts[way];
    return is_local_rule() && ((hosts >> server) & 1u) ? server_bit(server) : hosts;
  }

  // Look-ahead tables.
  class look_ahead;
  void build_residency(residency_tables& content) const;
  void lay_out(layer_table& table) const;
  std::vector<double> rows_by_residence(const layer_table& table) const;
  /// No budget is indexed, and which slots leave a server is not what comes first.
  bool is_unindexed() const {
    return n_bins_ == 1 && is_monotone() && policy_.candidates != candidate_rule::router_restricted;
  }
  template <class Visit>
  void for_each_combination(const layer_facts& facts, std::size_t set, std::size_t server,
                            const Visit& visit) const;
  std::vector<combination> combinations(const layer_facts& facts, std::size_t set,
                                        std::size_t server) const;
  void fill_qualities(const layer_facts& facts, std::size_t set, std::size_t server,
                      std::span<double> qualities) const;
  std::size_t n_steps() const { return steps_.empty() ? keys_.size() : steps_.size(); }
  std::size_t key_of_step(std::size_t step) const {
    return steps_.empty() ? step : keys_of_steps_[step];
  }
  /// As the model has them.
  std::size_t step_of_targets(const std::vector<std::uint32_t>& targets) const {
    return (steps_.empty() ? key_index_ : step_index_)(targets.data(), targets.size());
  }
  std::vector<std::vector<option>> mean_options(const layer_facts& facts, std::size_t set,
                                                std::size_t server) const;
  void fill_steps(const layer_facts& facts, std::size_t server, std::size_t residence, double later,
                  std::vector<double>& steps) const;
  double shortest(const layer_facts& facts, const std::uint32_t* ways, std::size_t count,
                  std::size_t server, std::size_t residence) const;
  void relax(const std::vector<combination>& choices, const std::vector<double>& steps,
             const double* onward, std::size_t key_stride, double* values) const;
  void settle(const double* levels, double* values) const;

  // Both where keys are experts.
  bool has_expert_keys() const { return kind_ == look_ahead_keys::experts; }
  class front_maker;
  class front_values;
  step_fronts fronts(const layer_facts& facts, const layer_table& table, server_mask from) const;
  void values_of(const step_fronts& choices, const layer_facts& facts, const layer_table& table,
                 server_mask from, const double* onward, std::size_t key_stride,
                 double* values) const;
  class many_decision;
  decision select_many(const decision_query& query) const;

  // Slots that may be left out.
  class leaving_decision;
  decision select_leaving(const decision_query& query) const;
  /// Which slots are left out is found together with what the others run.
  bool leaves_with_the_rest() const {
    return (has_expert_keys() || top_k_ == 2) &&
           (policy_.candidates == candidate_rule::weigh || policy_.may_leave_out) &&
           is_monotone() && policy_.candidates != candidate_rule::router_restricted;
  }
  /// Every slot runs.
  decision select_all(const decision_query& query) const;

  // Decisions.
  situation situation_of(const decision_query& query) const;
  /// cost: of the best way that was found; infinity breaks the promise that a plan can run every layer for everybody.
  static void check_found(const decision_query& query, double cost);
  std::size_t bin_of(loss_units left) const {
    if (n_bins_ == 1) return 0;
    return std::min(static_cast<std::size_t>(static_cast<std::uint64_t>(left) /
                                             static_cast<std::uint64_t>(width_)),
                    n_bins_ - 1);
  }
  void fill_options(const situation& now, option* options, std::size_t* counts) const;
  void restrict_options(const decision_query& query, const layer_facts& facts, option* options,
                        std::size_t stride, std::size_t* counts) const;
  class residence_block;
  class one_slot_decision;
  class two_slot_decision;
  class any_slot_decision;
  decision select_one(const situation& now, server_mask residences) const;
  decision select_two(const situation& now, server_mask residences) const;
  decision select_any(const situation& now, server_mask residences) const;
  /// W after a choice of these experts (or for these targets): [bins, next].
  const double* onward_rows(const layer_table& table, const std::uint32_t* experts,
                            std::size_t count) const {
    return table.w.data() + (table.key_stride == 0 ? 0 : key_of(experts, count) * table.key_stride);
  }
  /// When slot work that is run as the q-th and last expert at m is back at the residence n.
  double back(const situation& now, std::size_t m, std::size_t n, double q) const {
    return now.ready[m] + q * costs_.expert_ns[m] + now.links[n * n_servers_ + m];
  }
  /// d(s, n) as the snapshot has it.
  double way_to(const situation& now, std::size_t n) const {
    return now.links[n * n_servers_ + now.query.server];
  }
  /// What a decision pays for links: [to, from].
  const double* links_of(const decision_query& query) const {
    return query.link_ns.empty() ? hidden_to_.data() : query.link_ns.data();
  }

  selection_policy policy_;
  look_ahead_keys kind_ = look_ahead_keys::sets;
  std::size_t n_kept_sets_ = 0;  ///< Of a layer at most, where keys are experts.
  loss_units token_budget_ = 0;
  loss_units width_ = 1;
  std::size_t n_bins_ = 1;
  double per_ns_ = 0;    ///< omega_T / d_ref
  double per_unit_ = 0;  ///< omega_Q / budget; 0 where the budget is none or without limit

  std::size_t n_layers_ = 0, n_experts_ = 0, n_servers_ = 0, top_k_ = 0;
  /// Ways to keep an expert that the servers in use have, and the servers of each: as the model has
  /// them first.
  std::vector<precision> precisions_;
  std::vector<server_mask> servers_at_;
  std::vector<std::uint8_t> precision_at_;  ///< [n_servers] index into precisions_
  std::size_t n_ways_ = 0;                  ///< Experts at any of them: way = kept * E + expert.
  cost_model costs_;
  std::vector<double> hidden_to_;  ///< [to, from]
  /// Sets of 1 to top_k experts, ascending; of 1 where keys are experts.
  std::vector<std::vector<std::uint32_t>> keys_;
  std::vector<std::vector<std::uint32_t>> steps_;  ///< The same of ways; empty where keys_ are.
  std::vector<std::uint32_t> keys_of_steps_;       ///< The keys of their experts.
  /// From the members of a set to its place in a list.
  struct set_index {
    std::size_t n = 0;                                           ///< Members to choose from.
    std::vector<std::uint32_t> pairs;                            ///< [n, n], where top_k is 2
    std::vector<std::pair<std::uint64_t, std::uint32_t>> masks;  ///< Sorted, where top_k >= 3

    std::uint32_t operator()(const std::uint32_t* members, std::size_t count) const;
  };
  void list_sets(std::size_t n, std::vector<std::vector<std::uint32_t>>& sets,
                 set_index& index) const;
  set_index key_index_, step_index_;
  std::vector<layer_facts> layers_;
  std::vector<double> start_probability_;  ///< [sets of the first layer]
  std::vector<double> position_damage_;    ///< As profile has it; empty: 1 everywhere.
  std::vector<double> unread_damage_;      ///< Likewise.
  std::vector<std::vector<std::uint8_t>>
      pruned_;  ///< [n_servers, n_layers] of [n_experts]; empty: none
  std::vector<residency_tables> residencies_;
  std::vector<std::uint32_t> residency_of_;  ///< [n_servers], by access server
};

inline std::uint32_t tables::set_index::operator()(const std::uint32_t* members,
                                                   std::size_t count) const {
  if (count == 1) return members[0];
  if (!pairs.empty()) return pairs[members[0] * n + members[1]];
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < count; ++i) mask |= std::uint64_t{1} << members[i];
  return std::lower_bound(masks.begin(), masks.end(), std::pair{mask, std::uint32_t{0}})->second;
}

/// The key of the set of these experts; an expert may be named twice.
inline std::uint32_t tables::key_of(const std::uint32_t* experts, std::size_t count) const {
  return key_index_(experts, count);
}

inline double tables::predicted_loss(const layer_facts& facts, std::size_t target,
                                     std::size_t expert, double gate) const {
  return loss_at(facts, facts.distance[target * n_experts_ + expert], gate);
}

inline double tables::loss_at(const layer_facts& facts, double distance, double gate) const {
  const double weight = policy_.metric == loss_metric::router_logit && top_k_ > 1 ? gate : 1;
  return weight * distance * facts.damage;
}

}  // namespace ordermoe::planning::selection
