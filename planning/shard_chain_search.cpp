#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "planning/infinity.hpp"
#include "planning/packing.hpp"
#include "planning/placement.hpp"
#include "planning/shard_chains.hpp"

/// Chains of layer shards found: the best over every set of servers, those side by side, and small changes.
namespace ordermoe::planning {

namespace {

/// Up to so many servers every set of them is looked at; beyond, sets of each server and its nearest, and one chain from each.
constexpr std::size_t most_in_pool = 10, near_pool = 8;
/// Single chains that others are put beside, and layouts of n chains that n + 1 are made from.
constexpr std::size_t most_singles = 256, beam = 48;
/// Layouts with users dealt to the chains, of each number of chains, and those of all that are improved.
constexpr std::size_t most_dealt = 6, most_improved = 8;

server_mask servers_of(const shard_chain& chain) {
  server_mask mask = 0;
  for (const auto& stage : chain) mask |= server_bit(stage.server);
  return mask;
}

/// A stage of no units is none.
void tidy(shard_chain& chain) {
  std::erase_if(chain, [](const chain_stage& stage) { return stage.units == 0; });
}

/// Shortest order of every set of a pool as a cycle that hands hidden states on and closes with a message.
class shortest_cycles {
 public:
  /// ends_ns: what it costs besides that servers are first and last.
  template <class Ends>
  shortest_cycles(const cost_model& prices, std::vector<std::size_t> pool, const Ends& ends_ns)
      : prices_(prices),
        pool_(std::move(pool)),
        n_(pool_.size()),
        best_ns_(std::size_t{1} << n_, infinity),
        best_(std::size_t{1} << n_) {
    for (const auto first : pool_)
      for (const auto last : pool_) ends_ns_.push_back(ends_ns(first, last));
    for (std::size_t start = 0; start < n_; ++start) from(start);
  }

  /// Servers in order; `set`: bits of places in the pool, at least one.
  const std::vector<std::size_t>& order_of(std::size_t set) const { return best_[set]; }

 private:
  void from(std::size_t start) {
    const auto n_sets = std::size_t{1} << n_;
    std::vector<double> ns(n_sets * n_, infinity);
    std::vector<std::uint8_t> before(n_sets * n_, 0);
    const auto first = std::size_t{1} << start;
    ns[first * n_ + start] = 0;
    for (std::size_t set = 0; set < n_sets; ++set)
      for (std::size_t last = 0; last < n_; ++last) {
        const double here = ns[set * n_ + last];
        if (here == infinity) continue;
        close(set, start, last, here, before);
        for (std::size_t to = 0; to < n_; ++to) {
          if ((set >> to) & 1u) continue;
          const auto wider = set | (std::size_t{1} << to);
          const double there = here + prices_.hidden(pool_[last], pool_[to]);
          if (there >= ns[wider * n_ + to]) continue;
          ns[wider * n_ + to] = there;
          before[wider * n_ + to] = static_cast<std::uint8_t>(last);
        }
      }
  }

  void close(std::size_t set, std::size_t start, std::size_t last, double here,
             const std::vector<std::uint8_t>& before) {
    const double all = here + ends_ns_[start * n_ + last];
    if (all >= best_ns_[set]) return;
    best_ns_[set] = all;
    auto& order = best_[set];
    order.clear();
    for (auto left = set; left != 0;) {
      order.push_back(pool_[last]);
      const auto previous = before[left * n_ + last];
      left &= ~(std::size_t{1} << last);
      last = previous;
    }
    std::ranges::reverse(order);
  }

  const cost_model& prices_;
  std::vector<std::size_t> pool_;
  std::size_t n_;
  std::vector<double> ends_ns_;  ///< [first, last]
  std::vector<double> best_ns_;
  std::vector<std::vector<std::size_t>> best_;
};

}  // namespace

/// A chain over these servers in this order: the fastest hold as much as fits. Empty where they cannot hold all, or
/// where one of them is not needed.
shard_chain shard_chain_planner::filled(const std::vector<std::size_t>& order) const {
  shard_chain chain;
  for (const auto m : order) chain.push_back({m, 0});
  std::vector<std::size_t> by_speed(chain.size());
  std::iota(by_speed.begin(), by_speed.end(), std::size_t{0});
  std::ranges::stable_sort(by_speed, [&](auto a, auto b) {
    return layer_ns(chain[a].server) < layer_ns(chain[b].server);
  });
  auto left = n_units();
  for (const auto i : by_speed) {
    chain[i].units = std::min(left, capacity_[chain[i].server]);
    left -= chain[i].units;
    if (chain[i].units == 0) return {};
  }
  return left == 0 ? chain : shard_chain();
}

/// From a server on to the nearest that is left until the model fits; each holds as much as fits. Empty where all servers
/// together cannot hold it.
shard_chain shard_chain_planner::along_near_servers(std::size_t first) const {
  shard_chain chain;
  server_mask used = 0;
  auto left = n_units();
  for (auto m = first; m != n_servers();) {
    used |= server_bit(m);
    const auto units = std::min(left, capacity_[m]);
    left -= units;
    if (units > 0) chain.push_back({m, units});
    if (left == 0) return chain;
    auto next = n_servers();
    for (std::size_t n = 0; n < n_servers(); ++n)
      if ((used & server_bit(n)) == 0 &&
          (next == n_servers() || prices_.hidden(m, n) < prices_.hidden(m, next)))
        next = n;
    m = next;
  }
  return {};
}

void shard_chain_planner::add_chains_of(const std::vector<std::size_t>& pool,
                                        std::vector<shard_chain>& found) const {
  const auto ends_ns = [&](std::size_t first, std::size_t last) {
    double ns = prices_.message(last, first) + prices_.head_ns[last];
    for (std::size_t a = 0; a < n_servers(); ++a)
      ns += arrival_share_[a] * entry_ns(a, first, last);
    return ns;
  };
  const shortest_cycles cycles(prices_, pool, ends_ns);
  for (std::size_t set = 1; set < std::size_t{1} << pool.size(); ++set) {
    auto chain = filled(cycles.order_of(set));
    if (!chain.empty()) found.push_back(std::move(chain));
  }
}

std::vector<shard_chain> shard_chain_planner::single_chains() const {
  std::vector<shard_chain> found;
  std::vector<std::size_t> all(n_servers());
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (n_servers() <= most_in_pool) add_chains_of(all, found);
  for (std::size_t m = 0; n_servers() > most_in_pool && m < n_servers(); ++m) {
    auto pool = all;
    const auto distance = [&](std::size_t n) {
      return prices_.hidden(m, n) + prices_.hidden(n, m);
    };
    std::ranges::stable_sort(pool, [&](auto a, auto b) { return distance(a) < distance(b); });
    pool.resize(near_pool);
    std::ranges::sort(pool);
    add_chains_of(pool, found);
    if (auto chain = along_near_servers(m); !chain.empty()) found.push_back(std::move(chain));
  }
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < found.size(); ++i) {
    order.emplace_back(times_of(found[i]).alone_ns(), i);
  }
  std::ranges::sort(order);
  std::vector<shard_chain> sorted;
  for (const auto& [ns, i] : order) {
    if (sorted.size() == most_singles) break;
    if (std::ranges::find(sorted, found[i]) == sorted.end()) sorted.push_back(found[i]);
  }
  return sorted;
}

/// Layouts of one chain, two, and so on with no server in common, the best of each number.
std::vector<chain_layout> shard_chain_planner::side_by_side(
    const std::vector<shard_chain>& singles) const {
  struct rated {
    double ns;
    std::vector<std::size_t> members;  ///< Places among the singles, ascending.
  };
  std::vector<chain_times> times;
  std::vector<server_mask> servers;
  for (const auto& chain : singles) {
    times.push_back(times_of(chain));
    servers.push_back(servers_of(chain));
  }
  std::vector<chain_layout> made;
  std::vector<rated> level;
  for (std::size_t i = 0; i < singles.size(); ++i)
    level.push_back({shared_out_ns({&times[i]}), {i}});
  while (!level.empty()) {
    std::ranges::stable_sort(level, {}, &rated::ns);
    if (level.size() > beam) level.resize(beam);
    for (std::size_t at = 0; at < std::min(level.size(), most_dealt); ++at) {
      auto& layout = made.emplace_back();
      for (const auto i : level[at].members) layout.chains.push_back(singles[i]);
      assign(layout);
    }
    if (stopped()) break;
    std::vector<rated> next;
    for (const auto& [ns, members] : level) {
      all_times chains;
      server_mask used = 0;
      for (const auto i : members) {
        chains.push_back(&times[i]);
        used |= servers[i];
      }
      chains.push_back(nullptr);
      for (auto i = members.back() + 1; others_ > 0 && i < singles.size(); ++i) {
        if ((servers[i] & used) != 0) continue;
        chains.back() = &times[i];
        auto wider = members;
        wider.push_back(i);
        next.push_back({shared_out_ns(chains), std::move(wider)});
      }
    }
    level = std::move(next);
  }
  return made;
}

namespace {

/// Calls visit(chain, is_copy) with what one change makes of a chain; is_copy: as another chain beside it it is a copy of a stage.
template <class Visit>
void each_change(const shard_chain& chain, std::size_t n_servers, Visit&& visit) {
  const auto used = servers_of(chain);
  const auto n = chain.size();
  const auto offer = [&](shard_chain changed, bool is_copy) {
    tidy(changed);
    visit(std::move(changed), is_copy);
  };
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t step : {1, -1}) {
      const auto to = i + step;
      if (to >= n) continue;
      for (std::size_t by = 1; by < 2 * chain[i].units; by *= 2) {
        auto changed = chain;
        const auto moved = std::min(by, chain[i].units);
        changed[i].units -= moved;
        changed[to].units += moved;
        offer(std::move(changed), false);
      }
    }
    for (std::size_t m = 0; m < n_servers; ++m) {
      if (used & server_bit(m)) continue;
      auto changed = chain;
      changed[i].server = m;
      offer(std::move(changed), true);
      for (const auto part : {chain[i].units / 2, chain[i].units / 4})
        for (const bool behind : {false, true}) {
          if (part == 0) continue;
          changed = chain;
          changed[i].units -= part;
          changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(behind ? i + 1 : i),
                         {m, part});
          offer(std::move(changed), true);
        }
    }
    for (auto j = i + 1; j < n; ++j) {
      auto changed = chain;
      std::swap(changed[i], changed[j]);
      offer(changed, false);
      std::swap(changed[i].units, changed[j].units);
      offer(std::move(changed), false);
    }
  }
}

}  // namespace

std::vector<chain_layout> shard_chain_planner::neighbours(const chain_layout& layout) const {
  std::vector<chain_layout> found;
  const auto offer = [&](chain_layout changed) {
    if (fits(changed)) found.push_back(std::move(changed));
  };
  const auto n = layout.chains.size();
  for (std::size_t c = 0; c < n; ++c)
    each_change(layout.chains[c], n_servers(), [&](shard_chain chain, bool is_copy) {
      if (stopped()) return;
      auto changed = layout;
      changed.chains[c] = chain;
      offer(std::move(changed));
      if (!is_copy || others_ == 0) return;
      auto wider = layout;
      wider.chains.push_back(std::move(chain));
      if (!fits(wider)) return;
      assign(wider);
      found.push_back(std::move(wider));
    });
  for (std::size_t c = 0; n > 1 && c < n; ++c) {
    auto fewer = layout;
    fewer.chains.erase(fewer.chains.begin() + static_cast<std::ptrdiff_t>(c));
    assign(fewer);
    offer(std::move(fewer));
  }
  for (std::size_t a = 0; a < n_servers(); ++a)
    for (std::size_t c = 0; c < n; ++c) {
      if (c == layout.chain_of[a]) continue;
      auto changed = layout;
      changed.chain_of[a] = c;
      offer(std::move(changed));
    }
  return found;
}

/// Follows the best change as long as there is one; chains that nobody uses leave.
chain_layout shard_chain_planner::improved(chain_layout start) const {
  constexpr int most_rounds = 64;
  double least = cost_ns(start);
  for (int round = 0; round < most_rounds; ++round) {
    std::optional<chain_layout> best;
    double best_ns = least * (1 - 1e-9);
    for (auto& next : neighbours(start)) {
      if (stopped()) break;
      const double ns = cost_ns(next);
      if (ns >= best_ns) continue;
      best_ns = ns;
      best = std::move(next);
    }
    if (!best) break;
    start = std::move(*best);
    least = best_ns;
  }
  for (std::size_t c = start.chains.size(); c-- > 0;) {
    if (std::ranges::find(start.chain_of, c) != start.chain_of.end()) continue;
    start.chains.erase(start.chains.begin() + static_cast<std::ptrdiff_t>(c));
    for (auto& chain : start.chain_of) chain -= chain > c ? 1 : 0;
  }
  return start;
}

std::vector<chain_layout> shard_chain_planner::search(std::size_t n_most) const {
  auto layouts = side_by_side(single_chains());
  const auto by_cost = [&](const auto& a, const auto& b) { return a.first < b.first; };
  std::vector<std::pair<double, chain_layout>> rated;
  const auto rate = [&](chain_layout layout) {
    if (!fits(layout)) return;
    const double ns = cost_ns(layout);
    if (std::ranges::none_of(rated, [&](const auto& other) { return other.second == layout; }))
      rated.emplace_back(ns, std::move(layout));
  };
  for (auto& layout : layouts) rate(std::move(layout));
  std::ranges::stable_sort(rated, by_cost);
  const auto n_starts = std::min(most_improved, rated.size());
  for (std::size_t i = 0; i < n_starts && !stopped(); ++i) {
    auto start = rated[i].second;
    rate(improved(std::move(start)));
  }
  std::ranges::stable_sort(rated, by_cost);
  std::vector<chain_layout> best;
  for (std::size_t i = 0; i < std::min(n_most, rated.size()); ++i)
    best.push_back(std::move(rated[i].second));
  return best;
}

result<std::vector<plan>> place_shard_chains(const profile& profile, const cluster& servers,
                                             const cost_profile& costs,
                                             const shard_chain_options& options,
                                             std::size_t n_most) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  if (auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
      !problem)
    return problem.error();
  const shard_chain_planner chains(profile, servers, costs, options);
  std::vector<plan> plans;
  for (const auto& layout : chains.search(n_most)) plans.push_back(chains.to_plan(layout));
  if (!plans.empty()) return plans;
  if (!options.pruned.layers.empty())
    return error{errc::infeasible,
                 "found no chain of servers with room for the experts that are not pruned; add "
                 "memory, or prune more"};
  // The single chain of whole layers fails, too, and says by how many bytes.
  auto why = place_layer_shards(profile, servers, costs);
  if (!why) return why.error();
  return error{errc::infeasible, "found no chain of layers that fits"};
}

}  // namespace ordermoe::planning
