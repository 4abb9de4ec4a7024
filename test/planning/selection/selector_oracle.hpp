#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "planning/selection/selector.hpp"

/// The selector as its definition reads: every residence, every server and every expert of every
/// slot is tried, and the look-ahead expands eq. (42) forwards, choice by choice. Shares data types
/// with the selector and nothing else.
namespace ordermoe::planning {

class selection_oracle {
 public:
  /// With `remembers`, equal subproblems of the recursion are solved once; the expansion is the
  /// same. `keys`: sets, or experts whose rows are averaged.
  selection_oracle(const profile& experts, const plan& placed, const cost_model& costs,
                   const selection_policy& policy, loss_units token_budget, bool remembers,
                   look_ahead_keys keys = look_ahead_keys::sets)
      : profile_(experts),
        plan_(placed),
        costs_(costs),
        policy_(policy),
        budget_(token_budget),
        remembers_(remembers),
        by_expert_(keys == look_ahead_keys::experts) {
    double sum = 0;
    for (double c : costs.expert_ns) sum += c;
    const double d_ref = sum / static_cast<double>(costs.expert_ns.size());
    time_weight_ = policy.omega_time / d_ref;
    free_ = budget_ == unbounded_budget || policy.candidates == candidate_rule::router_restricted;
    if (!free_ && budget_ > 0) {
      loss_weight_ = policy.omega_quality / static_cast<double>(budget_);
      bins_ = policy.budget_bins;
      if (bins_ > 1) width_ = std::max<loss_units>(1, budget_ / static_cast<loss_units>(bins_ - 1));
    }
    hosts_.resize(profile_.n_layers);
    for (auto& layer : hosts_) layer.resize(profile_.n_experts);
    // Coarser copies run where any expert may, with losses in nats, and nowhere else.
    copies_ = policy_.candidates == candidate_rule::any && policy_.calibrated;
    for (const auto& item : plan_.experts)
      if (copies_ || kept_at(item.server.index()) == precision::stored)
        hosts_[item.layer.index()][item.expert.index()].insert(item.server.index());
  }

  std::size_t bins() const { return bins_; }
  loss_units width() const { return width_; }

  loss_units slot_loss(std::size_t layer, std::size_t target, std::size_t expert, double gate,
                       const std::vector<float>& probabilities) const {
    if (expert == target) return 0;
    if (!is_candidate(layer, target, expert)) return forbidden;
    // What is not the target itself loses a unit at least.
    if (policy_.metric == loss_metric::token_gate)
      return std::max<loss_units>(1, units(static_cast<double>(probabilities[target]) -
                                               static_cast<double>(probabilities[expert]),
                                           layer));
    return std::max<loss_units>(1, mean_loss(layer, target, expert, gate));
  }

  decision decide(const decision_query& query) {
    const auto all = choices(query.access, query.layer, query.server, slots_of(query),
                             free_          ? unbounded_budget
                             : budget_ == 0 ? 0
                                            : query.budget_left);
    std::vector<std::size_t> targets;
    for (const auto& slot : query.slots) targets.push_back(slot.target);
    std::sort(targets.begin(), targets.end());

    for (const bool restricted : {true, false}) {
      std::optional<decision> best;
      std::optional<order> best_order;
      for (const auto& choice : all) {
        if (restricted && ((query.residences >> choice.residence) & 1u) == 0) continue;
        decision made;
        double time = 0, work = 0;
        tie(query, choice, time, work);
        made.residence = static_cast<std::uint32_t>(choice.residence);
        made.n_slots = static_cast<std::uint32_t>(choice.slots.size());
        std::vector<std::size_t> lexicographic;
        for (std::size_t j = 0; j < choice.slots.size(); ++j) {
          made.slots[j] = {static_cast<std::uint32_t>(choice.slots[j].server),
                           static_cast<std::uint32_t>(choice.slots[j].expert),
                           choice.slots[j].loss};
          lexicographic.push_back(choice.slots[j].server);
          lexicographic.push_back(choice.slots[j].expert);
        }
        made.time_ns = time;
        std::size_t bin = 0;
        if (bins_ > 1)
          bin = std::min<std::size_t>(
              bins_ - 1, static_cast<std::size_t>((query.budget_left - choice.loss) / width_));
        made.cost = step_cost(query.layer, choice.residence, time, choice.loss, query.price_scale) +
                    ahead(query.access, query.layer, choice.residence, executed(choice), bin,
                          steps_to_go(query.layer) - 1);
        order rank(choice.leaves, made.cost, choice.loss, time, work, choice.residence,
                   lexicographic);
        if (!best_order || rank < *best_order) {
          best = made;
          best_order = rank;
        }
      }
      if (best) return *best;
    }
    return {};
  }

  double value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
               std::size_t bin) {
    return expected(access, layer, server, set, bin, steps_to_go(layer));
  }

 private:
  struct placed_slot {
    std::size_t server = 0, expert = 0;
    loss_units loss = 0;
    std::size_t leaves = 0;
  };
  struct choice {
    std::size_t residence = 0;
    std::vector<placed_slot> slots;
    loss_units loss = 0;
    std::size_t leaves = 0;
  };
  struct wanted {
    std::size_t target = 0;
    double gate = 0;
    std::vector<loss_units> loss;  ///< [E]
  };
  using order = std::tuple<std::size_t, double, loss_units, double, double, std::size_t,
                           std::vector<std::size_t>>;

  bool is_candidate(std::size_t layer, std::size_t target, std::size_t expert) const {
    const auto grouped = [&] {
      const auto& similarity = profile_.layers[layer].router_logit;
      for (const auto& group : plan_.grouping[layer].groups) {
        const auto has = [&](std::size_t e) {
          return std::count(group.members.begin(), group.members.end(), e) > 0;
        };
        if (has(target) && has(expert))
          return similarity(target, expert) >= plan_.grouping[layer].threshold;
      }
      return false;
    };
    switch (policy_.candidates) {
      case candidate_rule::exact:
        return false;
      case candidate_rule::group:
        return grouped();
      case candidate_rule::local_only:
        return plan_.grouping.empty() || grouped();
      default:
        return true;
    }
  }

  loss_units units(double loss, std::size_t layer) const {
    double damage = 1;
    if (policy_.calibrated)
      damage =
          std::max(1e-6, profile_.layers[layer].damage[static_cast<std::size_t>(policy_.metric)]);
    return static_cast<loss_units>(std::ceil(std::max(0.0, loss * damage * units_per_loss)));
  }

  loss_units mean_loss(std::size_t layer, std::size_t target, std::size_t expert,
                       double gate) const {
    const auto& here = profile_.layers[layer];
    const double weight = profile_.top_k == 1 ? 1.0 : gate;
    switch (policy_.metric) {
      case loss_metric::router_logit:
        return units(weight * ((1 - here.router_logit(target, expert)) / 2), layer);
      case loss_metric::token_gate:
        return units(here.token_gate_regret(target, expert), layer);
    }
    return 0;
  }

  precision kept_at(std::size_t m) const {
    return costs_.expert_precision.empty() ? precision::stored : costs_.expert_precision[m];
  }

  loss_units copy_loss(std::size_t layer, std::size_t m, std::size_t expert, double gate) const {
    if (!copies_ || kept_at(m) == precision::stored) return 0;
    for (const auto& copy : profile_.layers[layer].copies)
      if (copy.kept == kept_at(m)) {
        const double d = copy.distance[expert];
        return std::max<loss_units>(
            1, static_cast<loss_units>(
                   std::ceil(std::max(1e-6, copy.damage) * d * d * gate * gate * units_per_loss)));
      }
    return forbidden;
  }

  std::size_t steps_to_go(std::size_t layer) const {
    const auto left = profile_.n_layers - layer;
    return policy_.horizon == 0 ? left : std::min(left, policy_.horizon);
  }

  std::vector<std::size_t> residences(std::size_t access, std::size_t layer) const {
    const auto& members = plan_.residence[access].layers;
    std::vector<std::size_t> found;
    for (std::size_t n = 0; n < plan_.n_servers; ++n) {
      const auto in = [&](std::size_t l) { return ((members[l] >> n) & 1u) != 0; };
      if (layer + 1 < profile_.n_layers
              ? in(layer + 1)
              : policy_.residence == residence_choice::with_slot || in(layer) || in(0))
        found.push_back(n);
    }
    return found;
  }

  std::vector<wanted> slots_of(const decision_query& query) const {
    std::vector<wanted> slots;
    for (const auto& slot : query.slots) {
      wanted w{slot.target, slot.gate, {slot.loss.begin(), slot.loss.end()}};
      slots.push_back(w);
    }
    if (policy_.candidates == candidate_rule::router_restricted) restrict(query, slots);
    return slots;
  }

  /// Leaves each slot the one expert that the router would take among those of the server.
  void restrict(const decision_query& query, std::vector<wanted>& slots) const {
    std::vector<std::size_t> local;
    for (std::size_t e = 0; e < profile_.n_experts; ++e)
      if (hosts_[query.layer][e].count(query.server) > 0) local.push_back(e);
    if (local.empty()) return;
    std::stable_sort(local.begin(), local.end(), [&](std::size_t a, std::size_t b) {
      return query.probabilities[a] > query.probabilities[b];
    });
    if (local.size() > slots.size()) local.resize(slots.size());
    auto rest = local;
    for (const auto& slot : slots)
      rest.erase(std::remove(rest.begin(), rest.end(), slot.target), rest.end());
    for (auto& slot : slots) {
      auto taken = slot.target;
      if (std::count(local.begin(), local.end(), slot.target) == 0) {
        taken = rest.empty() ? local.front() : rest.front();
        if (!rest.empty()) rest.erase(rest.begin());
      }
      keep_only(slot, taken);
    }
  }

  static void keep_only(wanted& slot, std::size_t expert) {
    for (std::size_t e = 0; e < slot.loss.size(); ++e)
      if (e != expert) slot.loss[e] = forbidden;
  }

  std::vector<wanted> slots_of_set(std::size_t layer, std::size_t server, std::size_t set) const {
    const auto& content = profile_.layers[layer].sets[set];
    std::vector<wanted> slots;
    for (std::size_t j = 0; j < content.experts.size(); ++j) {
      wanted w{content.experts[j], content.mean_gate[j], {}};
      for (std::size_t e = 0; e < profile_.n_experts; ++e)
        w.loss.push_back(e == w.target ? 0
                         : is_candidate(layer, w.target, e)
                             ? mean_loss(layer, w.target, e, content.mean_gate[j])
                             : forbidden);
      slots.push_back(w);
    }
    if (policy_.candidates != candidate_rule::router_restricted) return slots;
    // Targets that are here stay; the others take the free local expert of least mean loss.
    std::set<std::size_t> local, rest;
    for (std::size_t e = 0; e < profile_.n_experts; ++e)
      if (hosts_[layer][e].count(server) > 0) local.insert(e);
    if (local.empty()) return slots;
    rest = local;
    for (const auto& slot : slots) rest.erase(slot.target);
    for (auto& slot : slots) {
      auto taken = slot.target;
      if (local.count(slot.target) == 0) {
        const auto& from = rest.empty() ? local : rest;
        taken = *from.begin();
        for (const auto e : from)
          if (slot.loss[e] < slot.loss[taken]) taken = e;
        rest.erase(taken);
      }
      keep_only(slot, taken);
    }
    return slots;
  }

  /// Every way to run the layer within the budget.
  std::vector<choice> choices(std::size_t access, std::size_t layer, std::size_t server,
                              const std::vector<wanted>& slots, loss_units budget) const {
    std::vector<choice> found;
    for (const auto n : residences(access, layer)) {
      choice start;
      start.residence = n;
      extend(layer, server, slots, budget, start, found);
    }
    return found;
  }

  void extend(std::size_t layer, std::size_t server, const std::vector<wanted>& slots,
              loss_units budget, const choice& so_far, std::vector<choice>& found) const {
    const auto j = so_far.slots.size();
    if (j == slots.size()) {
      found.push_back(so_far);
      return;
    }
    const bool restricted = policy_.candidates == candidate_rule::router_restricted;
    const bool keeps_local = policy_.candidates == candidate_rule::local_only || restricted;
    for (std::size_t k = 0; k < profile_.n_experts; ++k) {
      const auto loss =
          slots[j].loss.empty() ? (k == slots[j].target ? 0 : forbidden) : slots[j].loss[k];
      if (loss >= forbidden || so_far.loss + loss > budget) continue;
      if (policy_.distinct && !restricted &&
          std::any_of(so_far.slots.begin(), so_far.slots.end(),
                      [&](const auto& other) { return other.expert == k; }))
        continue;
      for (const auto m : hosts_[layer][k]) {
        const auto all = loss + copy_loss(layer, m, k, slots[j].gate);
        if (so_far.loss + all > budget) continue;
        if (policy_.residence == residence_choice::with_slot && m != so_far.residence) continue;
        std::size_t leaves = 0;
        if (keeps_local && m != server) {
          // Only the target may run elsewhere, and only where the server does not host it.
          if (k != slots[j].target || hosts_[layer][k].count(server) > 0) continue;
          leaves = 1;
        }
        auto longer = so_far;
        longer.slots.push_back({m, k, all, leaves});
        longer.loss += all;
        longer.leaves += leaves;
        extend(layer, server, slots, budget, longer, found);
      }
    }
  }

  void durations(std::size_t server, const choice& made, const std::vector<double>& waits,
                 std::span<const double> links, double& time, double& work) const {
    const auto n = made.residence;
    const auto link = [&](std::size_t from, std::size_t to) {
      return links.empty() ? costs_.hidden(from, to) : links[to * costs_.n_servers + from];
    };
    time = link(server, n);
    work = 0;
    for (const auto& slot : made.slots) {
      std::set<std::size_t> run;
      for (const auto& other : made.slots)
        if (other.server == slot.server) run.insert(other.expert);
      const auto m = slot.server;
      const double back = link(server, m) + (waits.empty() ? 0.0 : waits[m]) +
                          static_cast<double>(run.size()) * costs_.expert_ns[m] + link(m, n);
      time = std::max(time, back);
      work += back;
    }
  }

  void tie(const decision_query& query, const choice& made, double& time, double& work) const {
    std::vector<double> waits;
    for (const auto wait : query.wait_ns) waits.push_back(static_cast<double>(wait));
    durations(query.server, made, waits, query.link_ns, time, work);
  }

  double step_cost(std::size_t layer, std::size_t n, double time, loss_units loss,
                   double price_scale = 1) const {
    const double later =
        policy_.price_attention && layer + 1 < profile_.n_layers ? costs_.attention_ns[n] : 0.0;
    return time_weight_ * (time + later) + price_scale * loss_weight_ * static_cast<double>(loss);
  }

  std::vector<std::size_t> executed(const choice& made) const {
    if (by_expert_) {
      std::vector<std::size_t> each;
      for (const auto& slot : made.slots) each.push_back(slot.expert);
      return each;
    }
    std::set<std::size_t> set;
    for (const auto& slot : made.slots) set.insert(slot.expert);
    return {set.begin(), set.end()};
  }

  std::vector<double> row(std::size_t layer, const std::vector<std::size_t>& experts) const {
    const auto& here = profile_.layers[layer];
    const auto& next = profile_.layers[layer + 1];
    std::vector<double> p(next.sets.size(), 0);
    for (std::size_t set = 0; set < here.sets.size(); ++set)
      if (std::vector<std::size_t>(here.sets[set].experts.begin(), here.sets[set].experts.end()) ==
          experts) {
        for (std::size_t to = 0; to < p.size(); ++to) p[to] = here.set_transition(set, to);
        return p;
      }
    double weight = 0;
    for (std::size_t set = 0; set < here.sets.size(); ++set) {
      bool shares = false;
      for (const auto e : here.sets[set].experts)
        shares = shares || std::count(experts.begin(), experts.end(), e) > 0;
      if (!shares) continue;
      weight += here.sets[set].probability;
      for (std::size_t to = 0; to < p.size(); ++to)
        p[to] += here.sets[set].probability * here.set_transition(set, to);
    }
    for (std::size_t to = 0; to < p.size(); ++to)
      p[to] = weight > 0 ? p[to] / weight : next.sets[to].probability;
    return p;
  }

  // Eq. (42): the expected cost of `steps` layers after `layer`, from server n.
  double ahead(std::size_t access, std::size_t layer, std::size_t n,
               const std::vector<std::size_t>& given, std::size_t bin, std::size_t steps) {
    if (layer + 1 == profile_.n_layers) return policy_.horizon == 0 ? end(access, n) : 0.0;
    if (steps == 0) return 0;
    if (by_expert_ && given.size() > 1) {
      double mean = 0;
      for (const auto e : given)
        mean += ahead(access, layer, n, {e}, bin, steps) / static_cast<double>(given.size());
      return mean;
    }
    const key_type key(access, layer, n, given, bin, steps, round_);
    if (remembers_)
      if (const auto known = known_.find(key); known != known_.end()) return known->second;
    const auto p = row(layer, given);
    double sum = 0;
    for (std::size_t set = 0; set < p.size(); ++set)
      if (p[set] != 0) sum += p[set] * expected(access, layer + 1, n, set, bin, steps);
    if (remembers_) known_.emplace(key, sum);
    return sum;
  }

  /// V: the inner minimum of eq. (42) with `steps` layers to go, this one included.
  double expected(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
                  std::size_t bin, std::size_t steps) {
    std::vector<std::size_t> targets(profile_.layers[layer].sets[set].experts.begin(),
                                     profile_.layers[layer].sets[set].experts.end());
    const auto budget =
        free_ ? unbounded_budget : static_cast<loss_units>(bin) * width_;  // Whole bins.
    std::size_t fewest = std::numeric_limits<std::size_t>::max();
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& made :
         choices(access, layer, server, slots_of_set(layer, server, set), budget)) {
      const auto used = free_ ? 0 : (made.loss + width_ - 1) / width_;
      double time = 0, work = 0;
      durations(server, made, {}, {}, time, work);
      if (made.leaves > fewest) continue;
      const double cost = step_cost(layer, made.residence, time, made.loss) +
                          ahead(access, layer, made.residence, executed(made),
                                bin - static_cast<std::size_t>(used), steps - 1);
      if (made.leaves < fewest) lowest = std::numeric_limits<double>::infinity();
      fewest = made.leaves;
      lowest = std::min(lowest, cost);
    }
    return lowest;
  }

  /// After the last layer: output projection at n, and the next position's start at the best member
  /// of R_0.
  double end(std::size_t access, std::size_t n) {
    const auto members = plan_.residence[access].layers[0];
    const auto start = starts(access, round_);
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t r = 0; r < plan_.n_servers; ++r) {
      if (((members >> r) & 1u) == 0) continue;
      const double attention = policy_.price_attention ? costs_.attention_ns[r] : 0.0;
      best = std::min(best, time_weight_ * (costs_.message(n, r) + attention) + start[r]);
    }
    return time_weight_ * costs_.head_ns[n] + best;
  }

  /// What starting at each member of R_0 costs more than at the best one, after `round` passes from
  /// zero.
  std::vector<double> starts(std::size_t access, std::size_t round) {
    const auto members = plan_.residence[access].layers[0];
    std::size_t size = 0;
    for (std::size_t r = 0; r < 64; ++r) size += (members >> r) & 1u;
    const std::size_t last = size > 1 ? terminal_rounds - 1 : 0;
    const std::size_t passes = std::min(round, last);
    std::vector<double> start(plan_.n_servers, 0);
    if (passes == 0) return start;
    if (const auto known = starts_.find({access, passes}); known != starts_.end())
      return known->second;
    const auto outer = round_;
    round_ = passes - 1;
    double lowest = std::numeric_limits<double>::infinity();
    for (std::size_t r = 0; r < plan_.n_servers; ++r) {
      if (((members >> r) & 1u) == 0) continue;
      for (std::size_t set = 0; set < profile_.layers[0].sets.size(); ++set)
        start[r] += profile_.layers[0].sets[set].probability *
                    expected(access, 0, r, set, bins_ - 1, profile_.n_layers);
      lowest = std::min(lowest, start[r]);
    }
    for (std::size_t r = 0; r < plan_.n_servers; ++r)
      if ((members >> r) & 1u) start[r] -= lowest;
    round_ = outer;
    starts_[{access, passes}] = start;
    return start;
  }

  using key_type = std::tuple<std::size_t, std::size_t, std::size_t, std::vector<std::size_t>,
                              std::size_t, std::size_t, std::size_t>;

  const profile& profile_;
  const plan& plan_;
  const cost_model& costs_;
  selection_policy policy_;
  loss_units budget_;
  bool remembers_;
  bool copies_ = false;
  bool by_expert_;
  double time_weight_ = 0, loss_weight_ = 0;
  bool free_ = false;
  std::size_t bins_ = 1;
  loss_units width_ = 1;
  std::size_t round_ = terminal_rounds;  ///< The pass at hand; a decision uses the last.
  std::vector<std::vector<std::set<std::size_t>>> hosts_;
  std::map<key_type, double> known_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<double>> starts_;
};

}  // namespace ordermoe::planning
