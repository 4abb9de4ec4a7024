#include <tuple>

#include "planning/selection/selector_lanes.hpp"

/// Decisions of two slots where sets are keys.
///
/// Two ways a and b cost, at the residence n, at least
///
///   max( f(a, n), f(b, n) ) + per_unit * (loss_a + loss_b) + W(n, a, b)
///
/// which is what they cost where they run at different servers. Before that is told for all residences, the pair is left out where
///
///   max( least(a), least(b) ) + per_unit * (loss_a + loss_b) + min_n [ W(n, a, b) - low(n) ]
///
/// is above the best cost; least is that of residence_block. Ways come by ascending loss, so that the first pair is that
/// of the targets and most others end at once. Where slots may be left out, each way may run alone, too.
namespace ordermoe::planning::selection {

/// One such decision while it is made.
class tables::two_slot_decision {
 public:
  two_slot_decision(const tables& of, const situation& now)
      : of_(of), now_(now), apart_(of.runs_apart()) {
    of.fill_options(now, options_, counts_.data());
    leaves_ = of.leaves_with_the_rest() && now.left > 0;
    for (std::size_t j = 0; leaves_ && j < 2; ++j)
      without_[j] = of.loss_left_out(now.query.layer, now.query.slots[j], now.query.probabilities);
  }

  decision make(server_mask residences) {
    search(residences);
    if (best_.cost == infinity) search(now_.table.next_mask);
    check_found(now_.query, best_.cost);
    place(best_);
    decision made;
    made.residence = now_.table.next[best_.position];
    made.n_slots = 2;
    for (std::size_t j = 0; j < 2; ++j)
      made.slots[j] =
          best_.ways[j] != nullptr
              ? slot_choice{best_.servers[j], best_.ways[j]->expert, best_.ways[j]->loss}
              : slot_choice{static_cast<std::uint32_t>(now_.query.server), left_out, without_[j]};
    made.time_ns = best_.time;
    made.cost = best_.cost;
    return made;
  }

 private:
  struct outcome {
    double cost = infinity;
    loss_units loss = 0;
    double time = 0;
    std::uint32_t position = 0;
    std::array<const option*, 2> ways{};  ///< Null: left out.
    // Known once it is placed.
    bool placed = false;
    double work = 0;
    std::array<std::uint32_t, 2> servers{};

    auto worth() const { return std::tie(cost, loss, time); }
    auto order() const {
      return std::tuple(work, position, servers[0], expert(0), servers[1], expert(1));
    }
    /// The way that runs alone, or null.
    const option* only() const {
      return ways[0] == nullptr ? ways[1] : ways[1] == nullptr ? ways[0] : nullptr;
    }
    std::uint32_t expert(std::size_t slot) const {
      return ways[slot] != nullptr ? ways[slot]->expert : left_out;
    }
  };
  /// When a way is back at one residence: from its best host, with two experts there, from the second best.
  struct timed {
    double first = infinity, both = infinity, second = infinity;
    std::size_t host = 0;
  };

  const option* options(std::size_t slot) const { return options_ + slot * of_.n_ways_; }

  void search(server_mask residences) {
    for (std::size_t first = 0; first < now_.table.next.size(); first += n_lanes) {
      const residence_block block(of_, now_, residences, first);
      search_block(block);
    }
  }

  void search_block(const residence_block& block) {
    double least[2] = {infinity, infinity};
    for (std::size_t j = 0, at = 0; j < 2; ++j)
      for (std::size_t i = 0; i < counts_[j]; ++i, ++at) {
        const auto hosts = options(j)[i].hosts;
        costs_[at] = block.cost_at(hosts);
        least_[at] = block.least_at(hosts);
        least[j] = std::min(least[j], least_[at]);
      }
    const auto cheapest = options(1)->loss;
    for (std::size_t a = 0; a < counts_[0]; ++a) {
      if (std::max(least[0], least[1]) + now_.lost(options(0)[a].loss + cheapest) > limit_) break;
      search_pairs(block, a, std::max(least_[a], least[1]));
    }
    for (std::size_t j = 0; leaves_ && j < 2; ++j) search_alone(block, j, least[j]);
  }

  /// Ways of one slot without the other. least: of any of them.
  void search_alone(const residence_block& block, std::size_t j, double least) {
    for (std::size_t i = 0; i < counts_[j]; ++i) {
      const auto& way = options(j)[i];
      const auto loss = way.loss + without_[1 - j];
      if (loss > now_.left || least + now_.lost(loss) > limit_) break;
      const auto key = of_.key_of(&way.expert, 1);
      const auto at = j * counts_[0] + i;
      if (least_[at] + now_.lost(loss) + now_.table.over[key] > limit_) continue;
      const auto* onward = onward_of(key, loss);
      const auto cost = block.total(costs_[at], now_.lost(loss), onward);
      if (!(cost.least() <= best_.cost)) continue;
      std::array<const option*, 2> ways{};
      ways[j] = &way;
      offer_all(block, cost, ways, loss, onward);
    }
  }
  const double* onward_of(std::size_t key, loss_units loss) const {
    return now_.table.w.data() + key * now_.table.key_stride +
           of_.bin_of(now_.left - loss) * now_.table.next.size();
  }
  void offer_all(const residence_block& block, const lanes& cost, std::array<const option*, 2> ways,
                 loss_units loss, const double* onward) {
    for (std::size_t i = 0; i < block.count(); ++i)
      if (cost.at[i] <= best_.cost && cost.at[i] < infinity)
        offer(block.first() + i, ways, loss, onward);
  }

  /// least: of the a-th way of the first slot with any of the second.
  void search_pairs(const residence_block& block, std::size_t a, double least) {
    const auto& first = options(0)[a];
    for (std::size_t b = 0; b < counts_[1]; ++b) {
      const auto& second = options(1)[b];
      const auto loss = first.loss + second.loss;
      if (loss > now_.left || least + now_.lost(loss) > limit_) break;
      if (apart_ && first.expert == second.expert) continue;
      const std::array<std::uint32_t, 2> experts{first.expert, second.expert};
      const auto key = of_.key_of(experts.data(), 2);
      const auto other = counts_[0] + b;
      if (std::max(least_[a], least_[other]) + now_.lost(loss) + now_.table.over[key] > limit_)
        continue;
      auto step = costs_[a];
      step.raise_to(costs_[other]);
      const auto* onward = onward_of(key, loss);
      const auto cost = block.total(step, now_.lost(loss), onward);
      if (!(cost.least() <= best_.cost)) continue;
      offer_all(block, cost, {&first, &second}, loss, onward);
    }
  }

  timed time_of(const option& way, std::size_t n) const {
    timed found;
    for_each_server(way.hosts, [&](std::size_t m) {
      const double t = of_.back(now_, m, n, 1);
      if (t < found.first) {
        found.second = found.first;
        found.first = t;
        found.host = m;
      } else if (t < found.second) {
        found.second = t;
      }
    });
    found.both = of_.back(now_, found.host, n, 2);
    return found;
  }

  /// Keeps the better of these ways at this residence and the best.
  void offer(std::size_t position, std::array<const option*, 2> ways, loss_units loss,
             const double* onward) {
    const std::size_t n = now_.table.next[position];
    double time = 0;
    if (ways[0] == nullptr || ways[1] == nullptr) {
      time = time_of(ways[0] == nullptr ? *ways[1] : *ways[0], n).first;
    } else {
      const auto a = time_of(*ways[0], n), b = time_of(*ways[1], n);
      time = std::max(a.first, b.first);
      if (a.host == b.host && ways[0]->expert != ways[1]->expert)
        time = std::min(a.both, std::min(a.second, b.second));
    }
    outcome made;
    made.time = std::max(of_.way_to(now_, n), time);
    made.loss = loss;
    made.cost =
        of_.per_ns_ * (made.time + now_.table.later[position]) + now_.lost(loss) + onward[position];
    made.position = static_cast<std::uint32_t>(position);
    made.ways = ways;
    if (made.worth() > best_.worth()) return;
    if (made.worth() == best_.worth()) {
      place(made);
      place(best_);
      if (!(made.order() < best_.order())) return;
    }
    best_ = made;
    limit_ = with_slack(best_.cost);
  }

  /// Chooses the servers: lowest time, then lowest sum of the slots' times, then lowest servers.
  void place(outcome& made) const {
    if (made.placed) return;
    made.placed = true;
    made.work = infinity;
    const std::size_t n = now_.table.next[made.position];
    const double stays = of_.way_to(now_, n);
    double best_time = infinity;
    const auto weigh = [&](std::array<std::size_t, 2> servers, double latest, double work) {
      const double time = std::max(stays, latest);
      if (std::tie(time, work) >= std::tie(best_time, made.work)) return;
      best_time = time;
      made.work = work;
      made.servers = {static_cast<std::uint32_t>(servers[0]),
                      static_cast<std::uint32_t>(servers[1])};
    };
    if (const auto* only = made.only()) {
      for_each_server(only->hosts, [&](std::size_t m) {
        const double back = of_.back(now_, m, n, 1);
        weigh({m, m}, back, back);
      });
    } else {
      for_each_server(made.ways[0]->hosts, [&](std::size_t m) {
        for_each_server(made.ways[1]->hosts, [&](std::size_t k) {
          const double runs = m == k && made.ways[0]->expert != made.ways[1]->expert ? 2 : 1;
          const double a = of_.back(now_, m, n, runs), b = of_.back(now_, k, n, runs);
          weigh({m, k}, std::max(a, b), a + b);
        });
      });
    }
    made.time = best_time;
  }

  const tables& of_;
  const situation& now_;
  bool apart_;  ///< No two slots run the same expert.
  option options_[max_options];
  std::array<std::size_t, max_slots> counts_;
  bool leaves_ = false;                  ///< One slot may be left out.
  std::array<loss_units, 2> without_{};  ///< What a slot loses by that.
  // Of the block at hand, slot after slot.
  lanes costs_[max_options];
  double least_[max_options];
  outcome best_;
  double limit_ = infinity;  ///< What bounds are held against.
};

decision tables::select_two(const situation& now, server_mask residences) const {
  return two_slot_decision(*this, now).make(residences);
}

}  // namespace ordermoe::planning::selection
