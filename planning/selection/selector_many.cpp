#include <fmt/format.h>

#include <bit>
#include <tuple>

#include "planning/selection/selector_tables.hpp"

namespace ordermoe::planning::selection {

namespace {

/// A slot's cheapest experts at one server, ascending by loss, equal losses by expert.
struct way_list {
  std::array<slot_way, max_slots> ways;
  std::size_t size;

  void add(slot_way way, std::size_t most) {
    if (size == most) {
      if (size == 0 || way.loss >= ways[size - 1].loss) return;
      --size;
    }
    std::size_t at = size++;
    for (; at > 0 && ways[at - 1].loss > way.loss; --at) ways[at] = ways[at - 1];
    ways[at] = way;
  }
};

/// One way for each slot, the same at all of its hosts: what local_only and router_restricted
/// leave of a decision once it is known who leaves.
struct fixed_ways {
  std::array<slot_way, max_slots> way;
  std::array<server_mask, max_slots> hosts;
  server_mask useful = 0;
  loss_units total = 0;

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    return {&way[slot], (hosts[slot] >> server) & 1u};
  }
  loss_units loss(std::size_t slot, std::size_t, std::uint32_t expert) const {
    return way[slot].expert == expert ? way[slot].loss : forbidden;
  }
  void set(std::size_t slot, slot_way to, server_mask at) {
    way[slot] = to;
    hosts[slot] = at;
    useful |= at;
    total += to.loss;
  }
};

/// Lists of one set: lists [slot, server]. Loss: loss_units(slot, server, expert).
template <class Loss>
struct listed_ways {
  const way_list* lists;
  Loss lost;
  std::size_t n_servers;

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    const auto& list = lists[slot * n_servers + server];
    return {list.ways.data(), list.size};
  }
  loss_units loss(std::size_t slot, std::size_t server, std::uint32_t expert) const {
    return lost(slot, server, expert);
  }
};

/// Lists of all slots and servers, found when they are first asked for. Find: void(way_list&, slot,
/// server). Loss: loss_units(slot, server, expert).
template <class Find, class Loss>
struct found_ways {
  Find find;
  Loss loss;
  std::size_t n_servers;
  std::array<std::uint8_t, max_slots * 64> known{};
  std::array<way_list, max_slots * 64> lists;

  found_ways(Find how, Loss lost, std::size_t n) : find(how), loss(lost), n_servers(n) {}
  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) {
    const auto at = slot * n_servers + server;
    auto& list = lists[at];
    if (known[at] == 0) {
      known[at] = 1;
      list.size = 0;
      find(list, slot, server);
    }
    return {list.ways.data(), list.size};
  }
};

/// local_only where `n_leaving` slots must leave the server: they are those that would lose most
/// by staying. Loss: loss_units(slot, expert). False where that is not how many do.
template <class Loss>
bool keep_local(const layer_facts& facts, const std::uint32_t* targets, std::size_t n_slots,
                std::size_t server, std::size_t n_leaving, bool apart, const Loss& loss,
                fixed_ways& made) {
  const auto here = server_mask{1} << server;
  made = {};
  std::array<slot_way, max_slots> stays;
  std::array<std::size_t, max_slots> order;
  for (std::size_t j = 0; j < n_slots; ++j) {
    order[j] = j;
    stays[j] = {(facts.hosts[targets[j]] & here) != 0 ? 0 : forbidden, targets[j]};
  }
  for (std::size_t j = 0; j < n_slots; ++j) {
    if (stays[j].loss == 0) continue;
    for (const auto e : facts.experts_at[server]) {
      bool taken = false;
      for (std::size_t i = 0; apart && i < n_slots; ++i)
        taken = taken || (i != j && (targets[i] == e ||
                                     (i < j && stays[i].loss < forbidden && stays[i].expert == e)));
      const auto lost = loss(j, e);
      if (!taken && lost < stays[j].loss) stays[j] = {lost, e};
    }
  }
  std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_slots),
                   [&](auto a, auto b) { return stays[a].loss > stays[b].loss; });
  for (std::size_t i = 0; i < n_slots; ++i) {
    const auto j = order[i];
    const bool is_here = (facts.hosts[targets[j]] & here) != 0;
    if (i < n_leaving) {
      if (is_here) return false;
      made.set(j, {0, targets[j]}, facts.hosts[targets[j]]);
    } else {
      if (stays[j].loss >= forbidden) return false;
      made.set(j, stays[j], here);
    }
  }
  return true;
}

}  // namespace

/// The sweep of each set from each server to each residence, which does not depend on W. Where
/// links are as fast both ways, a pair of servers is swept once for both directions.
layer_fronts tables::fronts(const layer_facts& facts, const layer_table& table,
                            server_mask from) const {
  const auto n_sets = facts.sets.size();
  const bool ignores_budget = token_budget_ == unbounded_budget || is_priced() ||
                              policy_.candidates == candidate_rule::router_restricted;
  const loss_units most =
      ignores_budget ? unbounded_budget : static_cast<loss_units>(n_bins_ - 1) * width_;
  const bool apart = policy_.distinct && policy_.candidates != candidate_rule::router_restricted;
  const bool keeps_experts = is_executed() && table.key_stride != 0;
  const auto loss = [&](std::size_t set, std::size_t slot, std::size_t expert) {
    return facts.mean_loss[(set * top_k_ + slot) * n_experts_ + expert];
  };

  const auto copy_loss = [&](std::size_t set, std::size_t slot, std::size_t server,
                             std::size_t expert) {
    return copy_units(facts, precision_at_[server], expert, facts.mean_gates[set * top_k_ + slot]);
  };

  // Lists of every set, slot and server, where the server that the token is at does not matter.
  std::vector<way_list> lists;
  std::vector<server_mask> useful(n_sets, 0);
  if (!is_local_rule()) {
    lists.resize(n_sets * top_k_ * n_servers_);
    for (std::size_t set = 0; set < n_sets; ++set) {
      const auto& targets = facts.sets[set];
      for (std::size_t j = 0; j < top_k_; ++j)
        for (std::uint32_t e = 0; e < n_experts_; ++e) {
          const auto lost = loss(set, j, e);
          if (lost > most) continue;
          if (apart && e != targets[j] &&
              std::find(targets.begin(), targets.end(), e) != targets.end())
            continue;
          useful[set] |= facts.hosts[e];
          for_each_server(facts.hosts[e], [&](std::size_t m) {
            const auto all = lost + copy_loss(set, j, m, e);
            if (all <= most) lists[(set * top_k_ + j) * n_servers_ + m].add({all, e}, top_k_);
          });
        }
    }
  }

  layer_fronts made;
  made.first.push_back(0);
  struct way_there {
    double time;
    loss_units loss;
  };
  std::vector<way_there> ways_there;  ///< [points] what their costs are made of.
  const auto n_next = table.next.size();
  const auto turned_pair = [&](std::size_t s, std::size_t n) {
    constexpr auto none = ~std::size_t{0};
    if (n >= s || ((from >> n) & 1u) == 0 || ((table.next_mask >> s) & 1u) == 0 || is_local_rule())
      return none;
    if (hidden(s, n) != hidden(n, s)) return none;
    for (std::size_t m = 0; m < n_servers_; ++m)
      if (hidden(s, m) + hidden(m, n) != hidden(n, m) + hidden(m, s)) return none;
    const auto before = [](server_mask mask, std::size_t server) {
      return static_cast<std::size_t>(std::popcount(mask & ((server_mask{1} << server) - 1)));
    };
    return before(from, n) * n_next + before(table.next_mask, s);
  };
  std::vector<double> first_ns(n_servers_);
  std::vector<server_place> places;
  for_each_server(from, [&](std::size_t s) {
    for (std::size_t i = 0; i < table.next.size(); ++i) {
      const std::size_t n = table.next[i];
      const double stays = hidden(s, n), later = table.later[i];
      const auto cost_of = [&](const way_there& way) {
        return per_ns_ * (way.time + later) + per_unit_ * static_cast<double>(way.loss);
      };
      if (const auto turned = turned_pair(s, n); turned < n_servers_ * n_next) {
        for (std::size_t set = 0; set < n_sets; ++set) {
          const auto* bounds = made.first.data() + turned * n_sets + set;
          const auto begin = bounds[0], end = bounds[1];
          for (auto p = begin; p < end; ++p) {
            ways_there.push_back(way_there{ways_there[p]});
            made.points.push_back(
                {cost_of(ways_there[p]), made.points[p].bin, made.points[p].leaves});
            for (std::size_t j = 0; keeps_experts && j < top_k_; ++j)
              made.experts.push_back(std::uint32_t{made.experts[p * top_k_ + j]});
          }
          made.first.push_back(static_cast<std::uint32_t>(made.points.size()));
        }
        continue;
      }
      places.clear();
      for (std::size_t m = 0; m < n_servers_; ++m) {
        first_ns[m] = hidden(s, m) + hidden(m, n);
        for (std::size_t q = 1; q <= top_k_; ++q)
          places.push_back({first_ns[m] + static_cast<double>(q) * costs_.expert_ns[m], m});
      }
      std::stable_sort(places.begin(), places.end(),
                       [](const auto& a, const auto& b) { return a.ns < b.ns; });
      for (std::size_t set = 0; set < n_sets; ++set) {
        const auto begin = made.points.size();
        const auto run = [&](auto& ways, server_mask servers, loss_units least,
                             std::uint32_t leaves) {
          slot_sweep sweep(ways, top_k_, servers, facts.hosts.data(), apart, first_ns.data(),
                           costs_.expert_ns.data(), places);
          double best = infinity, at = stays;
          bool pending = false;
          for (double next = sweep.next(); next < infinity;) {
            if (sweep.is_complete() && !pending) {
              if (sweep.now().loss == least) break;
              if (ignores_budget && !keeps_experts &&
                  per_ns_ * (std::max(stays, next) + later) +
                          per_unit_ * static_cast<double>(least) >=
                      best)
                break;
            }
            at = std::max(at, next);
            pending |= sweep.open();
            next = sweep.next();
            if (!pending || !sweep.is_complete()) continue;
            if (next <= at && sweep.now().loss != least) continue;
            pending = false;
            const auto& now = sweep.now();
            if (now.loss > most) continue;
            const way_there met{sweep.time(stays), now.loss};
            const double cost = cost_of(met);
            const auto bin =
                ignores_budget ? 0u : static_cast<std::uint32_t>((now.loss + width_ - 1) / width_);
            if (!keeps_experts && made.points.size() > begin &&
                made.points.back().leaves == leaves && made.points.back().bin == bin) {
              if (cost < made.points.back().cost) {
                made.points.back().cost = cost;
                ways_there.back() = met;
              }
            } else {
              made.points.push_back({cost, bin, leaves});
              ways_there.push_back(met);
              if (keeps_experts)
                made.experts.insert(made.experts.end(), now.experts.begin(),
                                    now.experts.begin() + static_cast<std::ptrdiff_t>(top_k_));
            }
            best = std::min(best, cost);
          }
        };
        if (policy_.candidates == candidate_rule::router_restricted) {
          fixed_ways ways{};
          const auto options = mean_options(facts, set, s);
          std::uint32_t leaves = 0;
          for (std::size_t j = 0; j < top_k_; ++j) {
            const auto& only = options[j].front();
            ways.set(j, {only.loss, only.expert}, only.hosts);
            leaves += only.leaves;
          }
          run(ways, ways.useful, ways.total, leaves);
        } else if (is_local_rule()) {
          fixed_ways ways;
          for (std::size_t leaves = 0; leaves <= top_k_; ++leaves)
            if (keep_local(
                    facts, facts.sets[set].data(), top_k_, s, leaves, apart,
                    [&](std::size_t j, std::size_t e) { return loss(set, j, e); }, ways))
              run(ways, ways.useful, ways.total, static_cast<std::uint32_t>(leaves));
        } else {
          const auto lost = [&](std::size_t j, std::size_t m, std::size_t e) {
            return loss(set, j, e) + copy_loss(set, j, m, e);
          };
          const listed_ways ways{lists.data() + set * top_k_ * n_servers_, lost, n_servers_};
          run(ways, useful[set], 0, 0);
        }
        made.first.push_back(static_cast<std::uint32_t>(made.points.size()));
      }
    }
  });
  return made;
}

/// V of the layer from W after it: values [server, set, bins].
void tables::values_of(const layer_fronts& choices, const layer_facts& facts,
                       const layer_table& table, server_mask from, const double* onward,
                       std::size_t key_stride, double* values) const {
  const auto n_sets = facts.sets.size(), n_next = table.next.size();
  const auto row_size = n_next * n_bins_;
  const double share = 1 / static_cast<double>(top_k_);
  // The routed rows of all sets: the mean over their experts.
  std::vector<double> routed;
  if (key_stride != 0 && !is_executed()) {
    routed.assign(n_sets * row_size, 0);
    for (std::size_t set = 0; set < n_sets; ++set)
      for (const auto e : facts.sets[set])
        for (std::size_t x = 0; x < row_size; ++x)
          routed[set * row_size + x] += share * onward[e * key_stride + x];
  }
  std::vector<double> levels, executed(n_bins_);
  const auto n_levels = (top_k_ + 1) * n_bins_;
  std::size_t pair = 0;
  for_each_server(from, [&](std::size_t s) {
    levels.assign(n_sets * n_levels, infinity);
    for (std::size_t i = 0; i < n_next; ++i, ++pair)
      for (std::size_t set = 0; set < n_sets; ++set) {
        const auto* bounds = choices.first.data() + pair * n_sets + set;
        for (auto p = bounds[0]; p < bounds[1]; ++p) {
          const auto& point = choices.points[p];
          const double* row = onward + i * n_bins_;
          if (key_stride != 0 && is_executed()) {
            std::fill(executed.begin(), executed.end(), 0.0);
            for (std::size_t j = 0; j < top_k_; ++j)
              for (std::size_t b = 0; b < n_bins_; ++b)
                executed[b] +=
                    share * onward[choices.experts[p * top_k_ + j] * key_stride + i * n_bins_ + b];
            row = executed.data();
          } else if (key_stride != 0) {
            row = routed.data() + set * row_size + i * n_bins_;
          }
          double* out = levels.data() + set * n_levels + point.leaves * n_bins_ + point.bin;
          for (std::size_t b = 0; b + point.bin < n_bins_; ++b)
            out[b] = std::min(out[b], point.cost + row[b]);
        }
      }
    for (std::size_t set = 0; set < n_sets; ++set)
      settle(levels.data() + set * n_levels, values + (s * n_sets + set) * n_bins_);
  });
}

decision tables::select_many(const decision_query& query) const {
  const auto count = query.slots.size();
  const auto rule = policy_.candidates;
  const auto& facts = layers_[query.layer];
  const auto& table = residencies_[residency_of_[query.access]].layers[query.layer];
  const bool apart = policy_.distinct && rule != candidate_rule::router_restricted;
  loss_units left = std::max<loss_units>(0, query.budget_left);
  if (token_budget_ == 0) left = 0;
  std::array<std::uint32_t, max_slots> targets{};
  for (std::size_t j = 0; j < count; ++j) targets[j] = query.slots[j].target;

  std::array<double, 64> ready, first_ns;
  const double* const links = links_of(query);
  const auto link = [&](std::size_t from, std::size_t to) { return links[to * n_servers_ + from]; };
  const bool waits = policy_.price_waits && !query.wait_ns.empty();
  for (std::size_t m = 0; m < n_servers_; ++m)
    ready[m] = link(query.server, m) + (waits ? static_cast<double>(query.wait_ns[m]) : 0);

  const double per_unit = per_unit_ * query.price_scale;
  const double share = 1 / static_cast<double>(count);
  /// Mean of W over experts, after this layer at the i-th residence.
  const auto onward = [&](const std::uint32_t* experts, std::size_t i, std::size_t bin) {
    const double* w = table.w.data() + i * n_bins_ + bin;
    if (table.key_stride == 0) return *w;
    double sum = 0;
    for (std::size_t j = 0; j < count; ++j) sum += w[experts[j] * table.key_stride];
    return share * sum;
  };

  struct made_choice {
    slot_assignment slots;
    double cost = infinity, time = 0, work = 0;
    std::size_t position = 0;
  };
  made_choice best;
  const auto work_of = [&](const slot_assignment& slots, std::size_t n) {
    double work = 0;
    for (std::size_t j = 0; j < count; ++j) {
      const auto m = slots.servers[j];
      unsigned runs = 0;
      for (std::size_t i = 0; i < count; ++i) {
        bool is_new = slots.servers[i] == m;
        for (std::size_t h = 0; is_new && h < i; ++h)
          is_new = slots.servers[h] != m || slots.experts[h] != slots.experts[i];
        runs += is_new ? 1 : 0;
      }
      work += ready[m] + static_cast<double>(runs) * costs_.expert_ns[m] + link(m, n);
    }
    return work;
  };
  const auto offer = [&](const slot_assignment& slots, double stays, std::size_t position,
                         double time, double later) {
    const std::size_t n = table.next[position];
    const auto bin = bin_of(left - slots.loss);
    const double cost =
        per_ns_ * (std::max(stays, time) + later) + per_unit * static_cast<double>(slots.loss) +
        onward(is_executed() ? slots.experts.data() : targets.data(), position, bin);
    const auto worth = std::tuple(cost, slots.loss, time);
    const auto known = std::tuple(best.cost, best.slots.loss, best.time);
    if (worth > known) return;
    const double work = work_of(slots, n);
    if (worth == known &&
        std::tie(work, position, slots.servers, slots.experts) >=
            std::tie(best.work, best.position, best.slots.servers, best.slots.experts))
      return;
    best = {slots, cost, time, work, position};
  };

  const auto search_all = [&](auto& ways, server_mask useful, loss_units least) {
    const auto& next = table.next;
    const auto lowest_bin = bin_of(left - least);
    std::array<double, 64> lowest, bound;
    for (std::size_t i = 0; i < next.size(); ++i) {
      lowest[i] = is_executed() ? table.low[i * n_bins_ + lowest_bin]
                                : onward(targets.data(), i, lowest_bin);
      lowest[i] += per_unit * static_cast<double>(least);
      bound[i] = per_ns_ * (link(query.server, next[i]) + table.later[i]) + lowest[i];
    }
    const auto sweep_to = [&](std::size_t i) {
      const std::size_t n = next[i];
      const double stays = link(query.server, n), later = table.later[i];
      for (std::size_t m = 0; m < n_servers_; ++m) first_ns[m] = ready[m] + link(m, n);
      slot_sweep sweep(ways, count, useful, facts.hosts.data(), apart, first_ns.data(),
                       costs_.expert_ns.data());
      double at = stays;
      bool pending = false;
      for (double opens = sweep.next(); opens < infinity;) {
        if (!pending) {
          if (sweep.is_complete() && sweep.now().loss == least) return;
          if (per_ns_ * (std::max(stays, opens) + later) + lowest[i] > best.cost) return;
        }
        at = std::max(at, opens);
        pending |= sweep.open();
        opens = sweep.next();
        if (!pending || !sweep.is_complete()) continue;
        if (opens <= at && sweep.now().loss != least) continue;
        pending = false;
        if (sweep.now().loss > left) continue;
        offer(sweep.now(), stays, i, sweep.time(stays), later);
      }
    };
    const auto search_among = [&](server_mask residences) {
      std::size_t first = next.size();
      for (std::size_t i = 0; i < next.size(); ++i)
        if (((residences >> next[i]) & 1u) != 0 &&
            (first == next.size() || bound[i] < bound[first]))
          first = i;
      if (first == next.size()) return;
      sweep_to(first);
      for (std::size_t i = 0; i < next.size(); ++i)
        if (i != first && ((residences >> next[i]) & 1u) != 0 && bound[i] <= best.cost) sweep_to(i);
    };
    const auto asked = table.next_mask & query.residences;
    search_among(asked != 0 ? asked : table.next_mask);
  };

  if (rule == candidate_rule::router_restricted) {
    left = unbounded_budget;
    std::array<option, max_slots> options;
    std::array<std::size_t, max_slots> counts;
    restrict_options(query, facts, options.data(), 1, counts.data());
    fixed_ways ways{};
    for (std::size_t j = 0; j < count; ++j) {
      const auto& only = options[j];
      ways.set(j, {only.loss, only.expert}, only.hosts);
    }
    search_all(ways, ways.useful, ways.total);
  } else if (rule == candidate_rule::local_only) {
    fixed_ways ways;
    for (std::size_t leaves = 0; leaves <= count; ++leaves) {
      if (!keep_local(
              facts, targets.data(), count, query.server, leaves, apart,
              [&](std::size_t j, std::size_t e) { return query.slots[j].loss[e]; }, ways) ||
          ways.total > left)
        continue;
      search_all(ways, ways.useful, ways.total);
      break;
    }
  } else {
    server_mask useful = 0;
    for (std::size_t j = 0; j < count; ++j) useful |= facts.hosts[targets[j]];
    const auto loss = [&](std::size_t j, std::size_t m, std::uint32_t e) {
      return (e == targets[j] ? 0 : query.slots[j].loss[e]) +
             copy_units(facts, precision_at_[m], e, query.slots[j].gate);
    };
    const auto is_target = [&](std::uint32_t e) {
      for (std::size_t j = 0; j < count; ++j)
        if (targets[j] == e) return true;
      return false;
    };
    if (rule == candidate_rule::exact) {
      fixed_ways ways{};
      for (std::size_t j = 0; j < count; ++j) ways.set(j, {0, targets[j]}, facts.hosts[targets[j]]);
      search_all(ways, ways.useful, 0);
    } else {
      for (std::size_t m = 0; m < n_servers_; ++m)
        if (!facts.experts_at[m].empty()) useful |= server_mask{1} << m;
      if (policy_.metric == loss_metric::token_gate && rule == candidate_rule::any && apart &&
          query.probabilities.size() == n_experts_ && precisions_.size() == 1) {
        // Every slot ranks the experts at a server alike: by the router's score.
        std::array<std::uint8_t, 64> is_ranked{};
        std::array<std::array<std::uint32_t, max_slots>, 64> ranked;
        std::array<std::uint8_t, 64> n_ranked;
        const auto find = [&](way_list& list, std::size_t j, std::size_t m) {
          if (is_ranked[m] == 0) {
            is_ranked[m] = 1;
            auto& top = ranked[m];
            std::size_t size = 0;
            for (const auto e : facts.experts_at[m]) {
              const auto p = query.probabilities[e];
              if ((size == count && p <= query.probabilities[top[size - 1]]) || is_target(e))
                continue;
              if (size < count) ++size;
              std::size_t at = size - 1;
              for (; at > 0 && query.probabilities[top[at - 1]] < p; --at) top[at] = top[at - 1];
              top[at] = e;
            }
            n_ranked[m] = static_cast<std::uint8_t>(size);
          }
          if (((facts.hosts[targets[j]] >> m) & 1u) != 0) {
            list.ways[list.size++] = {0, targets[j]};
          }
          for (std::size_t i = 0; i < n_ranked[m] && list.size < count; ++i) {
            const auto loss = query.slots[j].loss[ranked[m][i]];
            if (loss > left) break;
            list.ways[list.size++] = {loss, ranked[m][i]};
          }
        };
        found_ways ways(find, loss, n_servers_);
        search_all(ways, useful, 0);
      } else {
        const auto find = [&](way_list& list, std::size_t j, std::size_t m) {
          const auto& slot = query.slots[j];
          const auto offer_way = [&](std::uint32_t e) {
            const auto lost = loss(j, m, e);
            if (lost <= left) list.add({lost, e}, count);
          };
          if (((facts.hosts[targets[j]] >> m) & 1u) != 0) offer_way(targets[j]);
          for (const auto e : facts.experts_at[m])
            // A slot whose target another one runs might be left without any way.
            if (slot.loss[e] <= left && (apart ? !is_target(e) : e != targets[j])) offer_way(e);
        };
        found_ways ways(find, loss, n_servers_);
        search_all(ways, useful, 0);
      }
    }
  }
  ORDERMOE_CHECK(best.cost < infinity,
                 fmt::format("no server can run layer {} for a token at server {}", query.layer,
                             query.server));
  decision made;
  made.residence = table.next[best.position];
  made.n_slots = static_cast<std::uint32_t>(count);
  for (std::size_t j = 0; j < count; ++j)
    made.slots[j] = {best.slots.servers[j], best.slots.experts[j], best.slots.losses[j]};
  made.time_ns = best.time;
  made.cost = best.cost;
  return made;
}

}  // namespace ordermoe::planning::selection
