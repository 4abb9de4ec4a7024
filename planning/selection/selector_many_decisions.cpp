#include <fmt/format.h>

#include <tuple>

#include "planning/selection/selector_tables.hpp"
#include "planning/selection/slot_ways.hpp"

/// Decisions where experts are too many for sets of them to be keys.
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
        facts_(of.layers_[query.layer]),
        table_(of.residencies_[of.residency_of_[query.access]].layers[query.layer]),
        count_(query.slots.size()),
        apart_(of.policy_.distinct && of.policy_.candidates != candidate_rule::router_restricted),
        left_(of.token_budget_ == 0 ? 0 : std::max<loss_units>(0, query.budget_left)),
        links_(of.links_of(query)),
        per_unit_(of.per_unit_ * query.price_scale),
        share_(1 / static_cast<double>(query.slots.size())) {
    for (std::size_t j = 0; j < count_; ++j) targets_[j] = query.slots[j].target;
    const bool waits = !query.wait_ns.empty();
    for (std::size_t m = 0; m < of.n_servers_; ++m)
      ready_[m] = link(query.server, m) + (waits ? static_cast<double>(query.wait_ns[m]) : 0);
  }

  decision make() {
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
        if (ranks_alike())
          search_ranked();
        else
          search_listed();
        break;
    }
    ORDERMOE_CHECK(best_.cost < infinity,
                   fmt::format("no server can run layer {} for a token at server {}", query_.layer,
                               query_.server));
    decision made;
    made.residence = table_.next[best_.position];
    made.n_slots = static_cast<std::uint32_t>(count_);
    for (std::size_t j = 0; j < count_; ++j)
      made.slots[j] = {best_.slots.servers[j], best_.slots.experts[j], best_.slots.losses[j]};
    made.time_ns = best_.time;
    made.cost = best_.cost;
    return made;
  }

 private:
  double link(std::size_t from, std::size_t to) const { return links_[to * of_.n_servers_ + from]; }

  /// Mean of W over experts, after this layer at the i-th residence.
  double onward(const std::uint32_t* experts, std::size_t i, std::size_t bin) const {
    const double* w = table_.w.data() + i * of_.n_bins_ + bin;
    if (table_.key_stride == 0) return *w;
    double sum = 0;
    for (std::size_t j = 0; j < count_; ++j) sum += w[experts[j] * table_.key_stride];
    return share_ * sum;
  }

  double work_of(const slot_assignment& slots, std::size_t n) const {
    double work = 0;
    for (std::size_t j = 0; j < count_; ++j) {
      const auto m = slots.servers[j];
      unsigned runs = 0;
      for (std::size_t i = 0; i < count_; ++i) {
        bool is_new = slots.servers[i] == m;
        for (std::size_t h = 0; is_new && h < i; ++h)
          is_new = slots.servers[h] != m || slots.experts[h] != slots.experts[i];
        runs += is_new ? 1 : 0;
      }
      work += ready_[m] + static_cast<double>(runs) * of_.costs_.expert_ns[m] + link(m, n);
    }
    return work;
  }

  void offer(const slot_assignment& slots, double stays, std::size_t position, double time) {
    const std::size_t n = table_.next[position];
    const auto bin = of_.bin_of(left_ - slots.loss);
    const double cost = of_.per_ns_ * (std::max(stays, time) + table_.later[position]) +
                        per_unit_ * static_cast<double>(slots.loss) +
                        onward(slots.experts.data(), position, bin);
    const auto worth = std::tuple(cost, slots.loss, time);
    const auto known = std::tuple(best_.cost, best_.slots.loss, best_.time);
    if (worth > known) return;
    const double work = work_of(slots, n);
    if (worth == known &&
        std::tie(work, position, slots.servers, slots.experts) >=
            std::tie(best_.work, best_.position, best_.slots.servers, best_.slots.experts))
      return;
    best_ = {slots, cost, time, work, position};
  }

  /// least: no choice loses less. lowest: the least that loss and look-ahead cost there.
  template <class Ways>
  void sweep_to(Ways& ways, server_mask useful, loss_units least, double lowest, std::size_t i) {
    const std::size_t n = table_.next[i];
    const double stays = link(query_.server, n), later = table_.later[i];
    std::array<double, 64> first_ns;
    for (std::size_t m = 0; m < of_.n_servers_; ++m) first_ns[m] = ready_[m] + link(m, n);
    slot_sweep sweep(ways, count_, useful, facts_.hosts.data(), apart_, first_ns.data(),
                     of_.costs_.expert_ns.data());
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
      if (sweep.now().loss > left_) continue;
      offer(sweep.now(), stays, i, sweep.time(stays));
    }
  }

  /// The residence that could be the cheapest goes first, so that most others need no look.
  template <class Ways>
  void search_all(Ways& ways, server_mask useful, loss_units least) {
    const auto& next = table_.next;
    const auto lowest_bin = of_.bin_of(left_ - least);
    std::array<double, 64> lowest, bound;
    for (std::size_t i = 0; i < next.size(); ++i) {
      lowest[i] = table_.low[i * of_.n_bins_ + lowest_bin] + per_unit_ * static_cast<double>(least);
      bound[i] = of_.per_ns_ * (link(query_.server, next[i]) + table_.later[i]) + lowest[i];
    }
    const auto asked = table_.next_mask & query_.residences;
    const auto residences = asked != 0 ? asked : table_.next_mask;
    std::size_t first = next.size();
    for (std::size_t i = 0; i < next.size(); ++i)
      if (((residences >> next[i]) & 1u) != 0 && (first == next.size() || bound[i] < bound[first]))
        first = i;
    if (first == next.size()) return;
    sweep_to(ways, useful, least, lowest[first], first);
    for (std::size_t i = 0; i < next.size(); ++i)
      if (i != first && ((residences >> next[i]) & 1u) != 0 && bound[i] <= best_.cost)
        sweep_to(ways, useful, least, lowest[i], i);
  }

  void search_restricted() {
    left_ = unbounded_budget;
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
          ways.total > left_)
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
        if (slot.loss[e] <= left_ && (apart_ ? !is_target(e) : e != targets_[j]))
          list.add({slot.loss[e], e}, count_);
    };
    // Who shares another slot's expert keeps to the rule as well.
    const auto lost = [&](std::size_t j, std::size_t m, std::uint32_t e) {
      return e == targets_[j] || m == query_.server ? loss(j, m, e) : forbidden;
    };
    server_mask useful = server_bit(query_.server);
    for (std::size_t j = 0; j < count_; ++j) useful |= facts_.hosts[targets_[j]];
    found_ways ways(find, lost, of_.n_servers_);
    search_all(ways, useful, 0);
  }

  /// Whether every slot ranks the experts at a server alike: by the router's score.
  bool ranks_alike() const {
    return of_.policy_.metric == loss_metric::token_gate &&
           of_.policy_.candidates == candidate_rule::any && apart_ &&
           query_.probabilities.size() == of_.n_experts_ && of_.precisions_.size() == 1;
  }
  /// The router's best at a server that are nobody's target, as many as there are slots.
  std::size_t rank(std::size_t m, std::array<std::uint32_t, max_slots>& top) const {
    std::size_t size = 0;
    for (const auto e : facts_.experts_at[m]) {
      const auto p = query_.probabilities[e];
      if ((size == count_ && p <= query_.probabilities[top[size - 1]]) || is_target(e)) continue;
      if (size < count_) ++size;
      std::size_t at = size - 1;
      for (; at > 0 && query_.probabilities[top[at - 1]] < p; --at) top[at] = top[at - 1];
      top[at] = e;
    }
    return size;
  }
  void search_ranked() {
    std::array<std::uint8_t, 64> is_ranked{};
    std::array<std::array<std::uint32_t, max_slots>, 64> ranked;
    std::array<std::uint8_t, 64> n_ranked;
    const auto find = [&](way_list& list, std::size_t j, std::size_t m) {
      if (is_ranked[m] == 0) {
        is_ranked[m] = 1;
        n_ranked[m] = static_cast<std::uint8_t>(rank(m, ranked[m]));
      }
      if (((facts_.hosts[targets_[j]] >> m) & 1u) != 0) list.ways[list.size++] = {0, targets_[j]};
      for (std::size_t i = 0; i < n_ranked[m] && list.size < count_; ++i) {
        const auto lost = query_.slots[j].loss[ranked[m][i]];
        if (lost > left_) break;
        list.ways[list.size++] = {lost, ranked[m][i]};
      }
    };
    found_ways ways(find, losses(), of_.n_servers_);
    search_all(ways, useful_servers(), 0);
  }
  void search_listed() {
    const auto find = [&](way_list& list, std::size_t j, std::size_t m) {
      const auto& slot = query_.slots[j];
      const auto offer_way = [&](std::uint32_t e) {
        const auto lost = loss(j, m, e);
        if (lost <= left_) list.add({lost, e}, count_);
      };
      if (((facts_.hosts[targets_[j]] >> m) & 1u) != 0) offer_way(targets_[j]);
      for (const auto e : facts_.experts_at[m])
        // A slot whose target another one runs might be left without any way.
        if (slot.loss[e] <= left_ && (apart_ ? !is_target(e) : e != targets_[j])) offer_way(e);
    };
    found_ways ways(find, losses(), of_.n_servers_);
    search_all(ways, useful_servers(), 0);
  }

  const tables& of_;
  const decision_query& query_;
  const layer_facts& facts_;
  const layer_table& table_;
  std::size_t count_;  ///< Slots.
  bool apart_;         ///< No two slots run the same expert.
  loss_units left_;
  const double* links_;  ///< [to, from] as the snapshot has them.
  double per_unit_;      ///< Cost of a unit of loss in this decision.
  double share_;
  std::array<std::uint32_t, max_slots> targets_{};
  std::array<double, 64> ready_;  ///< [server] d(s, m) + wait(m)
  made_choice best_;
};

decision tables::select_many(const decision_query& query) const {
  return many_decision(*this, query).make();
}

}  // namespace ordermoe::planning::selection
