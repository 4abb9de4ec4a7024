#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <tuple>
#include <utility>

#include "planning/selection/selector_tables.hpp"

/// Decisions that may leave slots out, where that is not found together with what the others run (tables::leaves_with_the_rest): by the rules
/// local_skip and drop, and with three slots and more where sets are keys.
namespace ordermoe::planning::selection {

namespace {

/// Up to here every set of slots is tried.
constexpr std::size_t most_slots_in_any_set = 3;

}  // namespace

/// One such decision while it is made: which slots run, and the decision of those alone.
class tables::leaving_decision {
 public:
  leaving_decision(const tables& of, const decision_query& query)
      : of_(of),
        query_(query),
        facts_(of.layers_[query.layer]),
        table_(of.residencies_[of.residency_of_[query.access]].layers[query.layer]),
        count_(query.slots.size()),
        left_(of.ignores_budgets()    ? unbounded_budget
              : of.token_budget_ == 0 ? 0
                                      : std::max<loss_units>(0, query.budget_left)),
        per_unit_(of.per_unit_ * query.price_scale) {}

  decision make() {
    if (of_.policy_.candidates == candidate_rule::local_skip)
      keep_local();
    else if (of_.policy_.candidates == candidate_rule::drop)
      drop_sets();
    else
      weigh_beside_the_rule();
    return best_;
  }

 private:
  /// A way to fill the slots: an expert and what it loses, or left_out.
  struct filled_slot {
    std::uint32_t expert = left_out;
    loss_units loss = 0;
  };
  using filling = std::array<filled_slot, max_slots>;

  bool is_here(std::uint32_t expert) const {
    return ((facts_.hosts[expert] >> query_.server) & 1u) != 0;
  }

  loss_units loss_without(const slot_query& slot) const {
    return of_.loss_left_out(query_.layer, slot, query_.probabilities);
  }

  /// Each slot's target where it is here, else the candidate here that loses least and that no other slot
  /// has, else nothing.
  void keep_local() {
    filling chosen;
    for (std::size_t j = 0; j < count_; ++j)
      if (is_here(query_.slots[j].target)) chosen[j] = {query_.slots[j].target, 0};
    for (std::size_t j = 0; j < count_; ++j) {
      if (chosen[j].expert != left_out) continue;
      const auto& slot = query_.slots[j];
      filled_slot least{left_out, forbidden};
      for (std::uint32_t e = 0; e < of_.n_experts_; ++e)
        if (is_here(e) && slot.loss[e] < least.loss && !is_taken(chosen, e))
          least = {e, slot.loss[e]};
      chosen[j] = least.expert == left_out ? filled_slot{left_out, loss_without(slot)} : least;
    }
    offer(chosen);
  }
  bool is_taken(const filling& chosen, std::uint32_t expert) const {
    for (std::size_t j = 0; j < count_; ++j)
      if (chosen[j].expert == expert) return true;
    return false;
  }

  bool is_dropping() const { return of_.policy_.candidates == candidate_rule::drop; }
  /// Every target that is at the token's server runs, or, where slots are weighed, one of all.
  bool may_leave(std::size_t j) const { return !is_dropping() || !is_here(query_.slots[j].target); }

  /// When a slot's target could answer at the token's server, alone.
  double alone_ns(std::size_t j) const {
    const auto* links = of_.links_of(query_);
    const auto n = of_.n_servers_;
    double soonest = infinity;
    for_each_server(facts_.hosts[query_.slots[j].target], [&](std::size_t m) {
      const double wait = query_.wait_ns.empty() ? 0 : static_cast<double>(query_.wait_ns[m]);
      soonest = std::min(soonest, links[m * n + query_.server] + wait + of_.costs_.expert_ns[m] +
                                      links[query_.server * n + m]);
    });
    return soonest;
  }

  /// Every set where slots are few, else those away one after the other, who would answer last first.
  void drop_sets() {
    if (count_ <= most_slots_in_any_set) {
      for (std::uint32_t out = 0; out < (1u << count_); ++out) leave(out);
      return;
    }
    std::array<std::size_t, max_slots> order;
    std::array<double, max_slots> ns;
    std::size_t n = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      if (!may_leave(j)) continue;
      ns[j] = alone_ns(j);
      order[n++] = j;
    }
    std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n),
                     [&](auto a, auto b) { return ns[a] > ns[b]; });
    std::uint32_t out = 0;
    leave(out);
    for (std::size_t i = 0; i < n; ++i) leave(out |= 1u << order[i]);
  }

  /// With the others on what the rule lets them run: every set where slots are few, else one slot more as long as that helps.
  void weigh_beside_the_rule() {
    leave(0);
    if (left_ == 0 || count_ == 1) return;
    // Whatever is left out, the token goes on somewhere.
    const double least = onward(query_, asked_of(query_)).cost;
    std::array<loss_units, max_slots> lost{};
    for (std::size_t j = 0; j < count_; ++j) lost[j] = loss_without(query_.slots[j]);
    const auto may_gain = [&](std::uint32_t out) {
      loss_units loss = 0;
      for (std::size_t j = 0; j < count_; ++j)
        if (((out >> j) & 1u) != 0) loss += lost[j];
      return loss <= left_ && least + per_unit_ * static_cast<double>(loss) < best_.cost;
    };
    if (count_ <= most_slots_in_any_set) {
      for (std::uint32_t out = 1; out + 1 < (1u << count_); ++out)
        if (may_gain(out)) leave(out);
      return;
    }
    std::uint32_t out = 0;
    for (std::size_t n_out = 1; n_out < count_; ++n_out) {
      const auto j = least_of_the_last(lost);
      out |= 1u << j;
      if (!may_gain(out)) return;
      leave(out);
      if (best_.slots[j].expert != left_out) return;
    }
  }

  /// Of the best way so far the slot that loses least, left out, of those at the server that answers last.
  std::size_t least_of_the_last(std::span<const loss_units> lost) const {
    const auto* links = of_.links_of(query_);
    const auto n = of_.n_servers_;
    const auto runs = [&](std::size_t j) { return best_.slots[j].expert != left_out; };
    const auto answers_ns = [&](std::size_t m) {
      const double wait = query_.wait_ns.empty() ? 0 : static_cast<double>(query_.wait_ns[m]);
      double ns = links[m * n + query_.server] + wait + links[best_.residence * n + m];
      for (std::size_t j = 0; j < count_; ++j)
        if (runs(j) && best_.slots[j].server == m) ns += of_.costs_.expert_ns[m];
      return ns;
    };
    std::size_t last = count_;
    double last_ns = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      if (!runs(j)) continue;
      const double ns = answers_ns(best_.slots[j].server);
      if (last != count_ && std::pair(-ns, lost[j]) >= std::pair(-last_ns, lost[last])) continue;
      last = j;
      last_ns = ns;
    }
    return last;
  }

  /// With the slots of this mask left out, where they may be.
  void leave(std::uint32_t out) {
    const bool is_all = static_cast<std::size_t>(std::popcount(out)) == count_;
    if (is_all && !is_dropping()) return;
    filling chosen;
    loss_units total = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      const bool leaves = ((out >> j) & 1u) != 0;
      if (leaves && !may_leave(j)) return;
      if (leaves)
        chosen[j].loss = loss_without(query_.slots[j]);
      else
        chosen[j].expert = query_.slots[j].target;
      total += chosen[j].loss;
    }
    if (total <= left_) offer(chosen);
  }

  /// Keeps the better of this and the best way so far: the lower cost, then loss, then time; of equals the
  /// earlier one.
  void offer(const filling& chosen) {
    std::array<slot_query, max_slots> kept;
    std::array<std::size_t, max_slots> place;
    std::size_t n = 0;
    loss_units loss = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      loss += chosen[j].loss;
      if (chosen[j].expert == left_out) continue;
      // What else a slot may run is for the rule to say.
      kept[n] = of_.policy_.may_leave_out ? query_.slots[j]
                                          : slot_query{chosen[j].expert, query_.slots[j].gate, {}};
      place[n++] = j;
    }
    auto query = query_;
    query.slots = std::span(kept).first(n);
    query.budget_left = std::max<loss_units>(0, left_ - loss);
    const auto ran = n > 0 ? of_.select_all(query) : rest(query);
    decision made = ran;
    made.n_slots = static_cast<std::uint32_t>(count_);
    for (std::size_t j = 0; j < count_; ++j)
      made.slots[j] = {static_cast<std::uint32_t>(query_.server), left_out, chosen[j].loss};
    made.cost += per_unit_ * static_cast<double>(loss);
    for (std::size_t i = 0; i < n; ++i) {
      made.slots[place[i]] = ran.slots[i];
      made.slots[place[i]].loss += chosen[place[i]].loss;
      loss += ran.slots[i].loss;
    }
    if (is_known_ && std::tuple(best_.cost, best_loss_, best_.time_ns) <=
                         std::tuple(made.cost, loss, made.time_ns))
      return;
    best_ = made;
    best_loss_ = loss;
    is_known_ = true;
  }

  /// Where the token goes on where nothing runs: behind the last layer it stays, unless it may not.
  decision rest(const decision_query& query) const {
    auto residences = asked_of(query);
    const auto here = server_bit(query.server);
    if (query.layer + 1 == of_.n_layers_ && (residences & here) != 0) residences = here;
    return onward(query, residences);
  }

  server_mask asked_of(const decision_query& query) const {
    const auto asked = table_.next_mask & query.residences;
    return asked != 0 ? asked : table_.next_mask;
  }

  /// The cheapest way on to one of these where nothing runs.
  decision onward(const decision_query& query, server_mask residences) const {
    const auto* links = of_.links_of(query);
    decision made;
    made.cost = infinity;
    for (std::size_t i = 0; i < table_.next.size(); ++i) {
      const auto n = table_.next[i];
      if (((residences >> n) & 1u) == 0) continue;
      const double time = links[n * of_.n_servers_ + query.server];
      const double cost = of_.per_ns_ * (time + table_.later[i]) +
                          table_.low[of_.bin_of(query.budget_left) * table_.next.size() + i];
      if (std::tie(made.cost, made.time_ns) <= std::tie(cost, time)) continue;
      made.residence = n;
      made.time_ns = time;
      made.cost = cost;
    }
    return made;
  }

  const tables& of_;
  const decision_query& query_;
  const layer_facts& facts_;
  const layer_table& table_;
  std::size_t count_;
  loss_units left_;
  double per_unit_;  ///< Cost of a unit of loss in this decision.
  decision best_;
  loss_units best_loss_ = 0;
  bool is_known_ = false;
};

loss_units tables::loss_left_out(std::size_t layer, const slot_query& slot,
                                 std::span<const float> probabilities) const {
  const auto& facts = layers_[layer];
  const auto gate = static_cast<double>(slot.gate);
  if (facts.left_out_damage) return to_substitute_units(gate * gate * *facts.left_out_damage);
  const bool by_router =
      policy_.metric == loss_metric::token_gate && probabilities.size() == n_experts_;
  return to_substitute_units((by_router ? static_cast<double>(probabilities[slot.target]) : gate) *
                             facts.damage);
}

decision tables::select_leaving(const decision_query& query) const {
  return leaving_decision(*this, query).make();
}

}  // namespace ordermoe::planning::selection
