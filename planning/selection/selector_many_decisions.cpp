#include <tuple>
#include <utility>

#include "planning/selection/ranked_ways.hpp"
#include "planning/selection/selector_tables.hpp"
#include "planning/selection/slot_ways.hpp"

/// Decisions where experts are too many for sets of them to be keys: for each next residence a sweep (slot_sweep.hpp)
/// meets ways to run the slots, and the best one is kept.
///
/// A sweep ends where the time of its next place alone, with the least that follows, costs more than what is known. What it meets
/// may be back before that place is open, so that where a sweep ends may matter: residences are swept in a fixed
/// order, and left out only where nothing that they hold can be better.
namespace ordermoe::planning::selection {

namespace {

struct made_choice {
  slot_assignment slots;
  double cost = infinity, time = 0, work = 0;
  std::size_t position = 0;
};

}  // namespace

/// One such decision while it is made.
class tables::many_decision {
 public:
  many_decision(const tables& of, const decision_query& query)
      : of_(of),
        query_(query),
        now_(of.situation_of(query)),
        facts_(now_.facts),
        table_(now_.table),
        n_next_(table_.next.size()),
        count_(query.slots.size()),
        apart_(of.runs_apart()),
        share_(1 / static_cast<double>(query.slots.size())) {
    for (std::size_t j = 0; j < count_; ++j) targets_[j] = query.slots[j].target;
    if (!of.leaves_with_the_rest() || count_ == 1 || now_.left == 0) return;
    for (std::size_t j = 0; j < count_; ++j)
      without_[j] = of.loss_left_out(query.layer, query.slots[j], query.probabilities);
    n_without_ = count_;
  }

  decision make() {
    search();
    check_found(query_, best_.cost);
    decision made;
    made.residence = table_.next[best_.position];
    made.n_slots = static_cast<std::uint32_t>(count_);
    for (std::size_t j = 0; j < count_; ++j)
      made.slots[j] =
          runs(best_.slots, j)
              ? slot_choice{best_.slots.servers[j], best_.slots.experts[j], best_.slots.losses[j]}
              : slot_choice{static_cast<std::uint32_t>(query_.server), left_out,
                            best_.slots.losses[j]};
    made.time_ns = best_.time;
    made.cost = best_.cost;
    return made;
  }

 private:
  void search() {
    switch (of_.policy_.candidates) {
      case candidate_rule::router_restricted:
        search_restricted();
        break;
      case candidate_rule::local_only:
        search_local();
        break;
      case candidate_rule::here_or_target:
        search_here();
        break;
      case candidate_rule::exact:
      case candidate_rule::local_skip:
      case candidate_rule::drop:
      case candidate_rule::weigh:
        search_exact();
        break;
      case candidate_rule::group:
      case candidate_rule::any:
        if (of_.ranks_alike() && query_.probabilities.size() == of_.n_experts_)
          search_ranked();
        else if (!facts_.allows_all && of_.keeps_as_stored())
          search_candidates();
        else
          search_listed();
        break;
    }
  }

  static bool runs(const slot_assignment& slots, std::size_t j) {
    return slots.servers[j] != slot_assignment::nowhere;
  }
  bool all_run(const slot_assignment& slots) const {
    for (std::size_t j = 0; j < count_; ++j)
      if (!runs(slots, j)) return false;
    return true;
  }
  double link(std::size_t from, std::size_t to) const {
    return now_.links[to * of_.n_servers_ + from];
  }

  /// Mean of W over experts, after this layer at the i-th residence.
  double onward(const slot_assignment& slots, std::size_t i, std::size_t bin) const {
    const double* w = table_.w.data() + bin * n_next_ + i;
    if (table_.key_stride == 0) return *w;
    double sum = 0;
    std::size_t n = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      if (!runs(slots, j)) continue;
      sum += w[slots.experts[j] * table_.key_stride];
      ++n;
    }
    return (n == count_ ? share_ : 1 / static_cast<double>(n)) * sum;
  }

  /// The sum of the slots' own times: experts at a server run one after the other, those that slots share once.
  double work_of(const slot_assignment& slots, std::size_t n) const {
    std::array<std::uint8_t, 64> n_there{};
    for (std::size_t j = 0; j < count_; ++j) {
      if (!runs(slots, j)) continue;
      bool is_new = true;
      for (std::size_t i = 0; !apart_ && i < j; ++i)
        is_new &= slots.servers[i] != slots.servers[j] || slots.experts[i] != slots.experts[j];
      n_there[slots.servers[j]] += is_new ? 1 : 0;
    }
    double work = 0;
    for (std::size_t j = 0; j < count_; ++j)
      if (runs(slots, j))
        work += of_.back(now_, slots.servers[j], n, static_cast<double>(n_there[slots.servers[j]]));
    return work;
  }

  void offer(const slot_assignment& slots, double stays, std::size_t position, double time) {
    const auto bin = of_.bin_of(now_.left - slots.loss);
    const double cost = of_.per_ns_ * (std::max(stays, time) + table_.later[position]) +
                        now_.lost(slots.loss) + onward(slots, position, bin);
    const auto worth = std::tuple(cost, slots.loss, time);
    const auto known = std::tuple(best_.cost, best_.slots.loss, best_.time);
    if (worth > known) return;
    const double work = work_of(slots, table_.next[position]);
    if (worth == known &&
        std::tie(work, position, slots.servers, slots.experts) >=
            std::tie(best_.work, best_.position, best_.slots.servers, best_.slots.experts))
      return;
    best_ = {slots, cost, time, work, position};
  }

  /// least: no choice loses less.
  template <class Ways>
  void sweep_to(Ways& ways, server_mask useful, loss_units least, std::size_t i) {
    const std::size_t n = table_.next[i];
    const double stays = link(query_.server, n), later = table_.later[i];
    const double lowest = low_[i] + now_.lost(least);
    std::array<double, 64> first_ns;
    for (std::size_t m = 0; m < of_.n_servers_; ++m) first_ns[m] = now_.ready[m] + link(m, n);
    slot_sweep sweep(ways, count_, useful, facts_.hosts.data(), apart_, first_ns.data(),
                     of_.costs_.expert_ns.data(), {}, std::span(without_).first(n_without_));
    double at = stays;
    bool pending = false;
    for (double opens = sweep.next(); opens < infinity;) {
      if (!pending) {
        if (sweep.is_complete() && sweep.now().loss == least) return;
        if (of_.per_ns_ * (std::max(stays, opens) + later) + lowest > best_.cost) return;
      }
      at = std::max(at, opens);
      pending |= sweep.open();
      opens = sweep.next();
      if (!pending || !sweep.is_complete()) continue;
      if (opens <= at && sweep.now().loss != least) continue;
      pending = false;
      if (sweep.now().loss > now_.left) continue;
      offer(sweep.now(), stays, i, sweep.time(stays));
    }
  }

  template <class Ways>
  void search_all(Ways& ways, server_mask useful, loss_units least) {
    low_ = table_.low.data() + of_.bin_of(now_.left - least) * n_next_;
    find_least(ways, useful);
    sweep_all(ways, useful, least);
    // Where all run they may run better by sweeps that know nothing else: no decision costs more than by those alone, which there are also
    // where copies lose more than a slot does in which nothing runs.
    if (std::exchange(n_without_, 0) > 0 && (best_.cost == infinity || all_run(best_.slots)))
      sweep_all(ways, useful, least);
  }

  /// The residence that could be the cheapest goes first, so that most others need no look.
  template <class Ways>
  void sweep_all(Ways& ways, server_mask useful, loss_units least) {
    const auto& next = table_.next;
    const auto asked = table_.next_mask & query_.residences;
    const auto residences = asked != 0 ? asked : table_.next_mask;
    std::array<double, 64> bound;
    std::size_t first = n_next_;
    for (std::size_t i = 0; i < n_next_; ++i) {
      bound[i] = of_.per_ns_ * (link(query_.server, next[i]) + table_.later[i]) +
                 (low_[i] + now_.lost(least));
      if (((residences >> next[i]) & 1u) != 0 && (first == n_next_ || bound[i] < bound[first]))
        first = i;
    }
    if (first == n_next_) return;
    sweep_to(ways, useful, least, first);
    for (std::size_t i = 0; i < n_next_; ++i)
      if (i != first && ((residences >> next[i]) & 1u) != 0 && bound[i] <= best_.cost &&
          !is_beaten(i, useful))
        sweep_to(ways, useful, least, i);
  }

  /// What each slot loses at each server at least, whoever else is there.
  template <class Ways>
  void find_least(Ways& ways, server_mask useful) {
    for_each_server(useful, [&](std::size_t m) {
      least_[m].fill(0);
      for (std::size_t j = 0; j < count_; ++j) {
        const auto& list = ways(j, m);
        least_[m][j] = list.size() == 0 ? infinity : now_.lost(slot_way(list[0]).loss);
      }
    });
  }

  /// Whether no choice that goes on at the i-th residence can be better than the best one.
  ///
  /// Slots that run apart need as many places as they are, and a server is there once its first place is. When all that
  /// is there is there, each slot costs at least the least that it loses at one of these servers, as if it were alone,
  /// and its share of W: low at least, and that of its target where it loses nothing.
  bool is_beaten(std::size_t i, server_mask useful) const {
    const std::size_t n = table_.next[i];
    const double limit = with_slack(best_.cost);
    std::array<server_place, 64> first;
    std::size_t n_first = 0;
    for_each_server(useful, [&](std::size_t m) {
      first[n_first++] = {of_.back(now_, m, n, 1), m};
    });
    const double earliest =
        std::max(link(query_.server, n), enough_places_ns({first.data(), n_first}, n));
    const auto cost = [&](double ns) {
      return of_.per_ns_ * (std::max(earliest, ns) + table_.later[i]) + low_[i];
    };
    if (cost(0) > limit) return true;
    std::sort(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(n_first),
              [](const auto& a, const auto& b) { return a.ns < b.ns; });
    std::array<double, max_slots> by_target{}, least;
    const double* onward = table_.w.data() + (low_ - table_.low.data());
    for (std::size_t j = 0; table_.key_stride != 0 && now_.per_unit > 0 && j < count_; ++j)
      by_target[j] = share_ * (onward[targets_[j] * table_.key_stride + i] - low_[i]);
    least.fill(infinity);
    for (std::size_t j = 0; j < n_without_; ++j) least[j] = now_.lost(without_[j]);
    for (std::size_t at = 0; at < n_first && cost(first[at].ns) <= limit; ++at) {
      const auto& there = least_[first[at].server];
      double all = 0;
      for (std::size_t j = 0; j < max_slots; ++j) {
        least[j] = std::min(least[j], there[j] == 0 ? by_target[j] : there[j]);
        all += least[j];
      }
      if (cost(first[at].ns) + all <= limit) return false;
    }
    return true;
  }

  /// When there are as many places as slots. first: the first place of each server.
  double enough_places_ns(std::span<const server_place> first, std::size_t n) const {
    if (!apart_ || n_without_ > 0) return 0;
    std::array<double, 64> next;
    std::array<std::uint8_t, 64> opened{};
    for (std::size_t at = 0; at < first.size(); ++at) next[at] = first[at].ns;
    double ns = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      std::size_t soonest = 0;
      ns = infinity;
      for (std::size_t at = 0; at < first.size(); ++at) {
        soonest = next[at] < ns ? at : soonest;
        ns = next[at] < ns ? next[at] : ns;
      }
      next[soonest] = of_.back(now_, first[soonest].server, n, ++opened[soonest] + 1.0);
    }
    return ns;
  }

  void search_restricted() {
    std::array<option, max_slots> options;
    std::array<std::size_t, max_slots> counts;
    of_.restrict_options(query_, facts_, options.data(), 1, counts.data());
    fixed_ways ways{};
    for (std::size_t j = 0; j < count_; ++j) {
      const auto& only = options[j];
      ways.set(j, {only.loss, only.expert}, only.hosts);
    }
    search_all(ways, ways.useful, ways.total);
  }

  /// As few slots leave the server as the budget allows.
  void search_local() {
    fixed_ways ways;
    const auto loss = [&](std::size_t j, std::size_t e) { return query_.slots[j].loss[e]; };
    for (std::size_t leaves = 0; leaves <= count_; ++leaves) {
      if (!keep_local(facts_, targets_.data(), count_, query_.server, leaves, apart_, loss, ways) ||
          ways.total > now_.left)
        continue;
      search_all(ways, ways.useful, ways.total);
      return;
    }
  }

  void search_exact() {
    const auto at = of_.policy_.candidates == candidate_rule::local_skip ? server_bit(query_.server)
                                                                         : ~server_mask{0};
    fixed_ways ways{};
    for (std::size_t j = 0; j < count_; ++j)
      ways.set(j, {0, targets_[j]}, facts_.hosts[targets_[j]] & at);
    search_all(ways, ways.useful, 0);
  }

  server_mask useful_servers() const {
    server_mask useful = 0;
    for (std::size_t j = 0; j < count_; ++j) useful |= facts_.hosts[targets_[j]];
    for (std::size_t m = 0; m < of_.n_servers_; ++m)
      if (!facts_.experts_at[m].empty()) useful |= server_bit(m);
    return useful;
  }
  bool is_target(std::uint32_t e) const {
    for (std::size_t j = 0; j < count_; ++j)
      if (targets_[j] == e) return true;
    return false;
  }
  loss_units loss(std::size_t j, std::size_t m, std::uint32_t e) const {
    return (e == targets_[j] ? 0 : query_.slots[j].loss[e]) +
           of_.copy_units(facts_, of_.precision_at_[m], e, query_.slots[j].gate);
  }
  auto losses() const {
    return [this](std::size_t j, std::size_t m, std::uint32_t e) { return loss(j, m, e); };
  }

  /// Substitutes at the token's server only.
  void search_here() {
    const auto find = [&](way_list& list, std::size_t j, std::size_t m) {
      const auto& slot = query_.slots[j];
      if (((facts_.hosts[targets_[j]] >> m) & 1u) != 0) list.add({0, targets_[j]}, count_);
      if (m != query_.server) return;
      for (const auto e : facts_.experts_at[m])
        if (slot.loss[e] <= now_.left && (apart_ ? !is_target(e) : e != targets_[j]))
          list.add({slot.loss[e], e}, count_);
    };
    // Who shares another slot's expert keeps to the rule as well.
    const auto lost = [&](std::size_t j, std::size_t m, std::uint32_t e) {
      return e == targets_[j] || m == query_.server ? loss(j, m, e) : forbidden;
    };
    server_mask useful = server_bit(query_.server);
    for (std::size_t j = 0; j < count_; ++j) useful |= facts_.hosts[targets_[j]];
    found_ways ways(find, lost, count_);
    search_all(ways, useful, 0);
  }

  void search_ranked() {
    ranked_ways ways{std::span(targets_).first(count_),
                     query_.probabilities,
                     facts_.hosts,
                     facts_.experts_at,
                     facts_.damage,
                     now_.left};
    search_all(ways, useful_servers(), 0);
  }
  /// As search_listed(), from the few experts that may run in place of each target.
  void search_candidates() {
    candidate_ways ways(of_.n_servers_, of_.n_experts_, count_);
    server_mask useful = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      const auto offer_way = [&](std::uint32_t e, loss_units lost) {
        useful |= facts_.hosts[e];
        for_each_server(facts_.hosts[e], [&](std::size_t m) { ways.add(j, m, {lost, e}); });
      };
      ways.know(j, targets_[j], 0);
      offer_way(targets_[j], 0);
      for (const auto e : facts_.candidates_of(targets_[j])) {
        if (e == targets_[j]) continue;
        const auto lost = query_.slots[j].loss[e];
        ways.know(j, e, lost);
        if (lost <= now_.left && !(apart_ && is_target(e))) offer_way(e, lost);
      }
    }
    search_all(ways, useful, 0);
  }
  void search_listed() {
    const auto find = [&](way_list& list, std::size_t j, std::size_t m) {
      const auto& slot = query_.slots[j];
      const auto offer_way = [&](std::uint32_t e) {
        const auto lost = loss(j, m, e);
        if (lost <= now_.left) list.add({lost, e}, count_);
      };
      if (((facts_.hosts[targets_[j]] >> m) & 1u) != 0) offer_way(targets_[j]);
      for (const auto e : facts_.experts_at[m])
        // A slot whose target another one runs might be left without any way.
        if (slot.loss[e] <= now_.left && (apart_ ? !is_target(e) : e != targets_[j])) offer_way(e);
    };
    found_ways ways(find, losses(), count_);
    search_all(ways, useful_servers(), 0);
  }

  const tables& of_;
  const decision_query& query_;
  const situation now_;
  const layer_facts& facts_;
  const layer_table& table_;
  std::size_t n_next_;  ///< Residences.
  std::size_t count_;   ///< Slots.
  bool apart_;          ///< No two slots run the same expert.
  double share_;        ///< Of a slot in W.
  std::array<std::uint32_t, max_slots> targets_{};
  std::array<loss_units, max_slots> without_;  ///< What a slot loses where it is left out.
  std::size_t n_without_ = 0;                  ///< 0: none may be.
  const double* low_ = nullptr;  ///< [next] the least that follows, where the least is lost.
  std::array<std::array<double, max_slots>, 64> least_;  ///< [server, slot] cost of what is lost
  made_choice best_;
};

decision tables::select_many(const decision_query& query) const {
  return many_decision(*this, query).make();
}

}  // namespace ordermoe::planning::selection
