#include <tuple>

#include "planning/selection/selector_lanes.hpp"

/// Decisions of one slot, eq. (43), whatever the number of experts.
///
/// An expert k at the servers M_k costs at least
///
///   min_{m in M_k} min_n [ f(m, n) + low(n) ]  +  per_unit * loss_k  +  min_n [ W(n, k) - low(n) ]
///
/// where low(n) is the least W(n, .). The first term is one of few, since few sets of servers differ, and the last one
/// stands in the tables, so that a decision adds three numbers for each expert and looks closer only where the sum is not
/// above the best cost.
namespace ordermoe::planning::selection {

/// One such decision while it is made.
class tables::one_slot_decision {
 public:
  one_slot_decision(const tables& of, const situation& now)
      : of_(of), now_(now), slot_(now.query.slots.front()), here_(server_bit(now.query.server)) {}

  decision make(server_mask residences) {
    search(residences);
    if (best_.cost == infinity) search(now_.table.next_mask);
    check_found(now_.query, best_.cost);
    decision made;
    made.residence = now_.table.next[best_.position];
    made.n_slots = 1;
    made.slots[0] = {best_.server, best_.expert, best_.loss};
    made.time_ns = best_.time;
    made.cost = best_.cost;
    return made;
  }

 private:
  /// Compared member by member: how ties are decided.
  struct outcome {
    double cost = infinity;
    loss_units loss = 0;
    double time = 0;
    double work = 0;
    std::uint32_t position = 0, server = 0, expert = 0;
    auto tied() const { return std::tie(cost, loss, time, work, position, server, expert); }
  };
  struct way {
    loss_units loss;
    server_mask hosts;
    std::uint32_t expert;
  };

  void search(server_mask residences) {
    for (std::size_t first = 0; first < now_.table.next.size(); first += n_lanes) {
      const residence_block block(of_, now_, residences, first);
      offer(block, {0, now_.facts.way_hosts[slot_.target], slot_.target});
      if (of_.substitutes()) now_.facts.allows_all ? offer_all(block) : offer_candidates(block);
      for (std::size_t kept = 1; of_.substitutes() && kept < of_.precisions_.size(); ++kept)
        offer_copies(block, kept);
    }
  }

  server_mask hosts_of(std::size_t expert) const {
    const auto hosts = now_.facts.way_hosts[expert];
    return of_.keeps_substitutes() ? hosts & here_ : hosts;
  }

  void offer_candidates(const residence_block& block) {
    for (const auto e : now_.facts.candidates_of(slot_.target)) {
      const auto loss = slot_.loss[e];
      if (loss > now_.left || e == slot_.target) continue;
      const auto hosts = hosts_of(e);
      if (block.least_at(hosts) + now_.table.over[e] + now_.lost(loss) <= limit_)
        offer(block, {loss, hosts, e});
    }
  }

  /// Every expert. The one of the lowest bound goes first, so that most others need no look.
  void offer_all(const residence_block& block) {
    const auto& facts = now_.facts;
    std::array<double, max_options> least, bound;
    for (std::size_t set = 0; set < facts.host_sets.size(); ++set)
      least[set] = block.least_at(of_.keeps_substitutes() ? facts.host_sets[set] & here_
                                                          : facts.host_sets[set]);
    std::size_t first = 0;
    double lowest = infinity;
    for (std::size_t e = 0; e < of_.n_experts_; ++e) {
      const auto loss = slot_.loss[e];
      bound[e] = least[facts.host_set_of[e]] + now_.table.over[e] + now_.lost(loss);
      if (loss > now_.left || e == slot_.target) bound[e] = infinity;
      if (bound[e] >= lowest) continue;
      lowest = bound[e];
      first = e;
    }
    const auto offer_expert = [&](std::size_t e) {
      offer(block, {slot_.loss[e], hosts_of(e), static_cast<std::uint32_t>(e)});
    };
    if (!(lowest <= limit_) || lowest == infinity) return;
    offer_expert(first);
    for (std::size_t e = 0; e < of_.n_experts_; ++e)
      if (bound[e] <= limit_ && e != first && bound[e] < infinity) offer_expert(e);
  }

  /// Experts as servers keep them that do not keep them as the model has them.
  void offer_copies(const residence_block& block, std::size_t kept) {
    for (std::uint32_t e = 0; e < of_.n_experts_; ++e) {
      const auto hosts = now_.facts.way_hosts[kept * of_.n_experts_ + e];
      if (hosts == 0 || slot_.loss[e] > now_.left) continue;
      const auto loss = slot_.loss[e] + of_.copy_units(now_.facts, kept, e, slot_.gate);
      if (loss <= now_.left) offer(block, {loss, hosts, e});
    }
  }

  void offer(const residence_block& block, const way& made) {
    const double* onward = of_.onward_rows(now_.table, &made.expert, 1) +
                           of_.bin_of(now_.left - made.loss) * now_.table.next.size();
    const auto cost = block.total(block.cost_at(made.hosts), now_.lost(made.loss), onward);
    if (!(cost.least() <= best_.cost)) return;
    for (std::size_t i = 0; i < block.count(); ++i)
      if (cost.at[i] <= best_.cost && cost.at[i] < infinity)
        offer_at(block.first() + i, made, cost.at[i]);
  }

  void offer_at(std::size_t position, const way& made, double cost) {
    const std::size_t n = now_.table.next[position];
    const auto allowed =
        of_.policy_.residence == residence_choice::with_slot ? server_bit(n) : ~server_mask{0};
    outcome found{cost, made.loss,  0, infinity, static_cast<std::uint32_t>(position),
                  0,    made.expert};
    for_each_server(made.hosts & allowed, [&](std::size_t m) {
      const double t = of_.back(now_, m, n, 1);
      if (t >= found.work) return;
      found.work = t;
      found.server = static_cast<std::uint32_t>(m);
    });
    found.time = std::max(of_.way_to(now_, n), found.work);
    if (found.tied() >= best_.tied()) return;
    best_ = found;
    limit_ = with_slack(best_.cost);
  }

  const tables& of_;
  const situation& now_;
  const slot_query& slot_;
  server_mask here_;
  outcome best_;
  double limit_ = infinity;  ///< What bounds are held against.
};

decision tables::select_one(const situation& now, server_mask residences) const {
  return one_slot_decision(*this, now).make(residences);
}

}  // namespace ordermoe::planning::selection
