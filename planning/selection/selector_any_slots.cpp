#include <tuple>

#include "planning/selection/selector_tables.hpp"

/// Decisions of any number of slots where sets are keys, by trying every way to fill them. Fewer slots have files of
/// their own, which try less; rules that are kept local always come here, since their cost is not what comes first.
namespace ordermoe::planning::selection {

/// One such decision while it is made.
class tables::any_slot_decision {
 public:
  any_slot_decision(const tables& of, const situation& now)
      : of_(of),
        now_(now),
        count_(now.query.slots.size()),
        apart_(of.runs_apart()),
        low_(now.table.low.data() + of.bin_of(now.left) * now.table.next.size()) {
    of.fill_options(now, options_, counts_.data());
  }

  decision make(server_mask residences) {
    search(residences);
    if (best_.cost == infinity) search(now_.table.next_mask);
    check_found(now_.query, best_.cost);
    place(best_);
    decision made;
    made.residence = now_.table.next[best_.position];
    made.n_slots = static_cast<std::uint32_t>(count_);
    for (std::size_t j = 0; j < count_; ++j) {
      const auto& choice = at(j, best_.choice[j]);
      made.slots[j] = {best_.servers[j], choice.expert, choice.loss};
    }
    made.time_ns = best_.time;
    made.cost = best_.cost;
    return made;
  }

 private:
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

  const option& at(std::size_t slot, std::size_t index) const {
    return options_[slot * of_.n_ways_ + index];
  }
  /// Where slots may run for a token that goes on at the residence.
  server_mask allowed(std::size_t residence) const {
    return of_.policy_.residence == residence_choice::with_slot ? server_bit(residence)
                                                                : ~server_mask{0};
  }

  /// The residence that could be the cheapest goes first, so that most others need no look.
  void search(server_mask residences) {
    const auto& next = now_.table.next;
    std::array<double, 64> bound;
    std::size_t first = next.size();
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (((residences >> next[i]) & 1u) == 0) continue;
      bound[i] = of_.per_ns_ * (of_.way_to(now_, next[i]) + now_.table.later[i]) + low_[i];
      if (first == next.size() || bound[i] < bound[first]) first = i;
    }
    if (first == next.size()) return;
    search_at(first);
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (i == first || ((residences >> next[i]) & 1u) == 0) continue;
      if (of_.is_monotone() && bound[i] > best_.cost) continue;
      search_at(i);
    }
  }

  void search_at(std::size_t position) {
    stays_ = of_.way_to(now_, now_.table.next[position]);
    later_ = now_.table.later[position];
    candidate_.position = static_cast<std::uint32_t>(position);
    fill(0, 0, stays_, 0);
  }

  double step_cost(double time, loss_units loss) const {
    return of_.per_ns_ * (time + later_) + now_.lost(loss);
  }

  /// time: when the slots before are back where each has a server to itself.
  void fill(std::size_t slot, loss_units loss, double time, std::uint32_t leaves) {
    const auto position = candidate_.position;
    if (of_.is_monotone() && step_cost(time, loss) + low_[position] > best_.cost) return;
    if (slot == count_) {
      candidate_.loss = loss;
      candidate_.leaves = leaves;
      candidate_.placed = false;
      place(candidate_);
      const double* onward = of_.onward_rows(now_.table, experts_.data(), count_);
      const auto bin = of_.bin_of(now_.left - loss);
      candidate_.cost =
          step_cost(candidate_.time, loss) + onward[bin * now_.table.next.size() + position];
      offer();
      return;
    }
    const std::size_t n = now_.table.next[position];
    for (std::size_t i = 0; i < counts_[slot]; ++i) {
      const auto& choice = at(slot, i);
      if (loss + choice.loss > now_.left) break;
      if (apart_ && std::find(experts_.begin(), experts_.begin() + slot, choice.expert) !=
                        experts_.begin() + slot)
        continue;
      double first = infinity;
      for_each_server(choice.hosts & allowed(n),
                      [&](std::size_t m) { first = std::min(first, of_.back(now_, m, n, 1)); });
      if (first == infinity) continue;
      experts_[slot] = choice.expert;
      candidate_.choice[slot] = static_cast<std::uint16_t>(i);
      fill(slot + 1, loss + choice.loss, std::max(time, first), leaves + choice.leaves);
    }
  }

  /// Chooses the servers of an outcome's slots: lowest time, then lowest sum of slot times, then
  /// lowest servers.
  void place(outcome& made) {
    if (made.placed) return;
    made.placed = true;
    made.time = made.work = infinity;
    assign(made, 0);
  }
  void assign(outcome& made, std::size_t slot) {
    if (slot == count_) {
      weigh(made);
      return;
    }
    const std::size_t n = now_.table.next[made.position];
    const auto& choice = at(slot, made.choice[slot]);
    for_each_server(choice.hosts & allowed(n), [&](std::size_t m) {
      if (count_ > 2 && of_.back(now_, m, n, 1) > made.time) return;
      servers_[slot] = static_cast<std::uint8_t>(m);
      adds_[slot] = 1;
      for (std::size_t i = 0; i < slot; ++i)
        if (servers_[i] == m && at(i, made.choice[i]).expert == choice.expert) adds_[slot] = 0;
      assign(made, slot + 1);
    });
  }
  void weigh(outcome& made) const {
    const std::size_t n = now_.table.next[made.position];
    double time = of_.way_to(now_, n), work = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      double q = 0;
      for (std::size_t i = 0; i < count_; ++i) q += servers_[i] == servers_[j] ? adds_[i] : 0;
      const double t = of_.back(now_, servers_[j], n, q);
      time = std::max(time, t);
      work += t;
    }
    if (std::tie(time, work) >= std::tie(made.time, made.work)) return;
    made.time = time;
    made.work = work;
    made.servers = servers_;
  }

  /// Of equal worth.
  auto order(const outcome& x) const {
    std::array<std::uint32_t, 2 * max_slots> slots{};
    for (std::size_t j = 0; j < count_; ++j) {
      slots[2 * j] = x.servers[j];
      slots[2 * j + 1] = at(j, x.choice[j]).expert;
    }
    return std::tuple(x.work, x.position, slots);
  }
  /// Keeps the better of the candidate and the best.
  void offer() {
    const auto worth = [](const outcome& x) { return std::tie(x.leaves, x.cost, x.loss, x.time); };
    if (worth(candidate_) > worth(best_)) return;
    if (worth(candidate_) == worth(best_) && !(order(candidate_) < order(best_))) return;
    best_ = candidate_;
  }
  const tables& of_;
  const situation& now_;
  std::size_t count_;  ///< Slots.
  bool apart_;         ///< No two slots run the same expert.
  const double* low_;  ///< [next] the least that follows.
  option options_[max_options];
  std::array<std::size_t, max_slots> counts_;
  // Of the residence and the slots filled so far.
  double stays_ = 0, later_ = 0;
  std::array<std::uint32_t, max_slots> experts_{};
  std::array<std::uint8_t, max_slots> servers_{},
      adds_{};  ///< adds: 1 where its expert is new there.
  outcome candidate_, best_;
};

decision tables::select_any(const situation& now, server_mask residences) const {
  return any_slot_decision(*this, now).make(residences);
}

}  // namespace ordermoe::planning::selection
