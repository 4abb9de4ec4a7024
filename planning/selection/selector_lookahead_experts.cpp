#include <bit>

#include "planning/selection/selector_tables.hpp"
#include "planning/selection/slot_ways.hpp"

/// Look-ahead tables where experts are too many for sets of them to be keys.
namespace ordermoe::planning::selection {

/// The sweep of each set from each server to each residence, which does not depend on W. Where
/// links are as fast both ways, a pair of servers is swept once for both directions.
class tables::front_maker {
 public:
  front_maker(const tables& of, const layer_facts& facts, const layer_table& table,
              server_mask from)
      : of_(of),
        facts_(facts),
        table_(table),
        from_(from),
        n_sets_(facts.sets.size()),
        ignores_budget_(of.token_budget_ == unbounded_budget || of.is_priced() ||
                        of.ignores_budgets()),
        most_(ignores_budget_ ? unbounded_budget
                              : static_cast<loss_units>(of.n_bins_ - 1) * of.width_),
        apart_(of.runs_apart()),
        keeps_experts_(table.key_stride != 0),
        useful_(n_sets_, 0),
        first_ns_(of.n_servers_) {}

  step_fronts make() {
    if (!of_.is_local_rule()) list_ways();
    made_.first.push_back(0);
    for_each_server(from_, [&](std::size_t s) {
      for (std::size_t i = 0; i < table_.next.size(); ++i) {
        const std::size_t n = table_.next[i];
        stays_ = of_.hidden(s, n);
        later_ = table_.later[i];
        if (const auto turned = turned_pair(s, n); turned != none) {
          for (std::size_t set = 0; set < n_sets_; ++set) take_over(turned * n_sets_ + set);
          continue;
        }
        open_pair(s, n);
        for (std::size_t set = 0; set < n_sets_; ++set) {
          sweep_set(s, set);
          made_.first.push_back(static_cast<std::uint32_t>(made_.points.size()));
        }
      }
    });
    return std::move(made_);
  }

 private:
  static constexpr auto none = ~std::size_t{0};
  struct way_there {
    double time;
    loss_units loss;
  };

  loss_units loss(std::size_t set, std::size_t slot, std::size_t expert) const {
    return facts_.mean_loss[(set * of_.top_k_ + slot) * of_.n_experts_ + expert];
  }
  loss_units copy_loss(std::size_t set, std::size_t slot, std::size_t server,
                       std::size_t expert) const {
    return of_.copy_units(facts_, of_.precision_at_[server], expert,
                          facts_.mean_gates[set * of_.top_k_ + slot]);
  }
  double cost_of(const way_there& way) const {
    return of_.per_ns_ * (way.time + later_) + of_.per_unit_ * static_cast<double>(way.loss);
  }

  /// Lists of every set, slot and server, where the server that the token is at does not matter.
  void list_ways() {
    lists_.resize(n_sets_ * of_.top_k_ * of_.n_servers_);
    heads_.resize(n_sets_ * of_.n_servers_);
    for (std::size_t set = 0; set < n_sets_; ++set) {
      const auto& targets = facts_.sets[set];
      for (std::size_t j = 0; j < of_.top_k_; ++j)
        for (std::uint32_t e = 0; e < of_.n_experts_; ++e) {
          const auto lost = loss(set, j, e);
          if (lost > most_) continue;
          if (apart_ && e != targets[j] &&
              std::find(targets.begin(), targets.end(), e) != targets.end())
            continue;
          useful_[set] |= facts_.hosts[e];
          for_each_server(facts_.hosts[e], [&](std::size_t m) {
            const auto all = lost + copy_loss(set, j, m, e);
            if (all <= most_)
              lists_[(set * of_.top_k_ + j) * of_.n_servers_ + m].add({all, e}, of_.top_k_);
          });
        }
      for (std::size_t m = 0; m < of_.n_servers_; ++m) {
        auto& heads = heads_[set * of_.n_servers_ + m];
        heads.fill(forbidden);
        for (std::size_t j = 0; j < of_.top_k_; ++j) {
          const auto& list = lists_[(set * of_.top_k_ + j) * of_.n_servers_ + m];
          if (list.size > 0) heads[j] = list.ways[0].loss;
        }
      }
    }
  }

  /// The pair swept before that is this one in the other direction, if there is one that takes as
  /// long.
  std::size_t turned_pair(std::size_t s, std::size_t n) const {
    if (n >= s || ((from_ >> n) & 1u) == 0 || ((table_.next_mask >> s) & 1u) == 0 ||
        of_.is_local_rule())
      return none;
    if (of_.hidden(s, n) != of_.hidden(n, s)) return none;
    for (std::size_t m = 0; m < of_.n_servers_; ++m)
      if (of_.hidden(s, m) + of_.hidden(m, n) != of_.hidden(n, m) + of_.hidden(m, s)) return none;
    const auto before = [](server_mask mask, std::size_t server) {
      return static_cast<std::size_t>(std::popcount(mask & (server_bit(server) - 1)));
    };
    return before(from_, n) * table_.next.size() + before(table_.next_mask, s);
  }

  /// Points swept for the other direction, with what is to come at this end.
  void take_over(std::size_t swept) {
    const auto begin = made_.first[swept], end = made_.first[swept + 1];
    for (auto p = begin; p < end; ++p) {
      ways_there_.push_back(way_there{ways_there_[p]});
      made_.points.push_back(
          {cost_of(ways_there_[p]), made_.points[p].bin, made_.points[p].leaves});
      for (std::size_t j = 0; keeps_experts_ && j < of_.top_k_; ++j)
        made_.experts.push_back(std::uint32_t{made_.experts[p * of_.top_k_ + j]});
    }
    made_.first.push_back(static_cast<std::uint32_t>(made_.points.size()));
  }

  void open_pair(std::size_t s, std::size_t n) {
    places_.clear();
    for (std::size_t m = 0; m < of_.n_servers_; ++m) {
      first_ns_[m] = of_.hidden(s, m) + of_.hidden(m, n);
      for (std::size_t q = 1; q <= of_.top_k_; ++q)
        places_.push_back({first_ns_[m] + static_cast<double>(q) * of_.costs_.expert_ns[m], m});
    }
    std::stable_sort(places_.begin(), places_.end(),
                     [](const auto& a, const auto& b) { return a.ns < b.ns; });
  }

  void sweep_set(std::size_t s, std::size_t set) {
    begin_ = made_.points.size();
    if (of_.policy_.candidates == candidate_rule::router_restricted) {
      fixed_ways ways{};
      const auto options = of_.mean_options(facts_, set, s);
      std::uint32_t leaves = 0;
      for (std::size_t j = 0; j < of_.top_k_; ++j) {
        const auto& only = options[j].front();
        ways.set(j, {only.loss, only.expert}, only.hosts);
        leaves += only.leaves;
      }
      sweep(ways, ways.useful, ways.total, leaves);
    } else if (of_.is_local_rule()) {
      fixed_ways ways;
      const auto lost = [&](std::size_t j, std::size_t e) { return loss(set, j, e); };
      for (std::size_t leaves = 0; leaves <= of_.top_k_; ++leaves)
        if (keep_local(facts_, facts_.sets[set].data(), of_.top_k_, s, leaves, apart_, lost, ways))
          sweep(ways, ways.useful, ways.total,
                of_.is_kept_local() ? static_cast<std::uint32_t>(leaves) : 0);
    } else {
      const auto lost = [&](std::size_t j, std::size_t m, std::size_t e) {
        return loss(set, j, e) + copy_loss(set, j, m, e);
      };
      const listed_ways ways{lists_.data() + set * of_.top_k_ * of_.n_servers_,
                             heads_.data() + set * of_.n_servers_, lost, of_.top_k_,
                             of_.n_servers_};
      sweep(ways, useful_[set], 0, 0);
    }
  }

  /// least: no choice loses less.
  template <class Ways>
  void sweep(Ways& ways, server_mask servers, loss_units least, std::uint32_t leaves) {
    slot_sweep sweep(ways, of_.top_k_, servers, facts_.hosts.data(), apart_, first_ns_.data(),
                     of_.costs_.expert_ns.data(), places_);
    double best = infinity, at = stays_;
    bool pending = false;
    for (double next = sweep.next(); next < infinity;) {
      if (sweep.is_complete() && !pending) {
        if (sweep.now().loss == least) break;
        if (ignores_budget_ && !keeps_experts_ && cost_of({std::max(stays_, next), least}) >= best)
          break;
      }
      at = std::max(at, next);
      pending |= sweep.open();
      next = sweep.next();
      if (!pending || !sweep.is_complete()) continue;
      if (next <= at && sweep.now().loss != least) continue;
      pending = false;
      if (sweep.now().loss > most_) continue;
      const way_there met{sweep.time(stays_), sweep.now().loss};
      best = std::min(best, cost_of(met));
      keep(met, sweep.now(), leaves);
    }
  }

  /// Of points that only differ in cost the cheapest.
  void keep(const way_there& met, const slot_assignment& now, std::uint32_t leaves) {
    const double cost = cost_of(met);
    const auto bin =
        ignores_budget_ ? 0u : static_cast<std::uint32_t>((met.loss + of_.width_ - 1) / of_.width_);
    auto& points = made_.points;
    if (!keeps_experts_ && points.size() > begin_ && points.back().leaves == leaves &&
        points.back().bin == bin) {
      if (cost >= points.back().cost) return;
      points.back().cost = cost;
      ways_there_.back() = met;
      return;
    }
    points.push_back({cost, bin, leaves});
    ways_there_.push_back(met);
    if (keeps_experts_)
      made_.experts.insert(made_.experts.end(), now.experts.begin(),
                           now.experts.begin() + static_cast<std::ptrdiff_t>(of_.top_k_));
  }

  const tables& of_;
  const layer_facts& facts_;
  const layer_table& table_;
  server_mask from_;
  std::size_t n_sets_;
  bool ignores_budget_;
  loss_units most_;                  ///< That a choice may lose.
  bool apart_;                       ///< No two slots run the same expert.
  bool keeps_experts_;               ///< W depends on them.
  std::vector<way_list> lists_;      ///< [set, slot, server]
  std::vector<least_losses> heads_;  ///< [set, server]
  std::vector<server_mask> useful_;
  step_fronts made_;
  std::vector<way_there> ways_there_;  ///< [points] what their costs are made of.
  // Of the pair and set at hand.
  double stays_ = 0, later_ = 0;
  std::vector<double> first_ns_;
  std::vector<server_place> places_;
  std::size_t begin_ = 0;
};

step_fronts tables::fronts(const layer_facts& facts, const layer_table& table,
                           server_mask from) const {
  return front_maker(*this, facts, table, from).make();
}

/// V of the layer from W after it. A point is left out where its cost and the least W of any expert are above what is
/// known at every bin.
class tables::front_values {
 public:
  /// onward: W [key, next, bins]
  front_values(const tables& of, const step_fronts& choices, const double* onward,
               std::size_t key_stride, std::size_t n_next)
      : of_(of),
        choices_(choices),
        onward_(onward),
        key_stride_(key_stride),
        n_bins_(of.n_bins_),
        low_(n_next * n_bins_, infinity),
        executed_(n_bins_),
        levels_((of.top_k_ + 1) * n_bins_) {
    for (std::size_t e = 0; e < (key_stride == 0 ? 1 : of.n_experts_); ++e)
      for (std::size_t i = 0; i < low_.size(); ++i)
        low_[i] = std::min(low_[i], onward[e * key_stride + i]);
  }

  /// values [bins] of one server and target set. first: of the server's first residence and this set.
  void fill(std::size_t first, std::size_t n_sets, std::size_t n_next, double* values) {
    std::fill(levels_.begin(), levels_.end(), infinity);
    for (std::size_t i = 0; i < n_next; ++i) {
      const auto* bounds = choices_.first.data() + first + i * n_sets;
      for (auto p = bounds[0]; p < bounds[1]; ++p) lower(p, i);
    }
    of_.settle(levels_.data(), values);
  }

 private:
  void lower(std::size_t p, std::size_t i) {
    const auto& point = choices_.points[p];
    double* out = levels_.data() + point.leaves * n_bins_ + point.bin;
    const auto count = n_bins_ - point.bin;
    const double* low = low_.data() + i * n_bins_;
    bool may_lower = false;
    for (std::size_t b = 0; b < count; ++b) may_lower |= point.cost + low[b] <= with_slack(out[b]);
    if (!may_lower) return;
    const double* row = key_stride_ == 0 ? onward_ + i * n_bins_ : mean_of(p, i);
    for (std::size_t b = 0; b < count; ++b) out[b] = std::min(out[b], point.cost + row[b]);
  }

  /// W of the experts that a point executes.
  const double* mean_of(std::size_t p, std::size_t i) {
    const double share = 1 / static_cast<double>(of_.top_k_);
    std::fill(executed_.begin(), executed_.end(), 0.0);
    for (std::size_t j = 0; j < of_.top_k_; ++j) {
      const auto expert = choices_.experts[p * of_.top_k_ + j];
      const double* w = onward_ + expert * key_stride_ + i * n_bins_;
      for (std::size_t b = 0; b < n_bins_; ++b) executed_[b] += share * w[b];
    }
    return executed_.data();
  }

  const tables& of_;
  const step_fronts& choices_;
  const double* onward_;
  std::size_t key_stride_, n_bins_;
  std::vector<double> low_;                ///< [next, bins] the least W of any expert
  std::vector<double> executed_, levels_;  ///< [bins], [leaves, bins]
};

/// values [server, set, bins]
void tables::values_of(const step_fronts& choices, const layer_facts& facts,
                       const layer_table& table, server_mask from, const double* onward,
                       std::size_t key_stride, double* values) const {
  const auto n_sets = facts.sets.size(), n_next = table.next.size();
  front_values made(*this, choices, onward, key_stride, n_next);
  std::size_t first = 0;
  for_each_server(from, [&](std::size_t s) {
    for (std::size_t set = 0; set < n_sets; ++set)
      made.fill(first + set, n_sets, n_next, values + (s * n_sets + set) * n_bins_);
    first += n_next * n_sets;
  });
}

}  // namespace ordermoe::planning::selection
