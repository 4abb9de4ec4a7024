#include <algorithm>
#include <cmath>
#include <numeric>

#include "planning/search/searcher.hpp"

/// Layouts to start from.
namespace ordermoe::planning::searching {

searcher::searcher(const profile& profile, const cluster& servers, const cost_profile& costs,
                   const search_options& options)
    : profile_(profile),
      options_(options),
      model_(profile, make_cost_model(servers, costs), 0, options.may_leave_out),
      kv_row_price_(options.kv_price * static_cast<double>(costs.kv_row_bytes)),
      scratch_(model_) {
  for (const auto& server : servers.servers) {
    const auto bytes =
        std::max<std::int64_t>(0, expert_memory_bytes(server, costs, model_.n_layers));
    const auto of_one = expert_bytes(server, costs);
    capacity_.push_back(of_one > 0 ? static_cast<std::size_t>(bytes / of_one) : 0);
    share_.push_back(server.arrival_share);
  }
  n_items_ = model_.n_layers * model_.n_experts;
  scratch_.forbid_losses(is_exact());
  for (std::size_t l = 0; l < n_layers(); ++l) {
    const auto& activation = profile_.layers[l].activation;
    auto& order = by_activation_.emplace_back(n_experts());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return activation[a] > activation[b]; });
    for (std::size_t e = 0; has_many_experts() && e < n_experts(); ++e)
      worth_.push_back(worth_of(l, e));
    const auto& content = model_.layers[l];
    wanted_.resize(n_items_, 0);
    for (std::size_t at = 0; at < content.targets.size(); ++at)
      wanted_[l * n_experts() + content.targets[at]] += content.visits[at / model_.n_slots];
  }
}

/// How much is lost where an expert is missing at the home of its layer: how often it is wanted
/// and, where it may be substituted, what the nearest experts lose in its place.
double searcher::worth_of(std::size_t layer, std::size_t expert) const {
  const auto& content = profile_.layers[layer];
  const double activation = content.activation[expert];
  if (is_exact()) return activation;
  std::vector<double> losses;
  for (std::size_t k = 0; k < n_experts(); ++k)
    if (k != expert) losses.push_back(std::max(0.0, content.token_gate_regret(expert, k)));
  const auto n = std::min(model_.n_slots, losses.size());
  std::nth_element(losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(n - 1),
                   losses.end());
  const double nearest =
      std::accumulate(losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(n), 0.0);
  return activation * nearest * content.damage[static_cast<std::size_t>(loss_metric::token_gate)];
}

layout searcher::layout_of(const plan& placed) const {
  layout out;
  out.hosts.assign(n_items_, 0);
  out.items.resize(n_servers());
  for (const auto& entry : placed.experts) {
    put(out, entry.server.index(),
        static_cast<std::uint32_t>(entry.layer.index() * n_experts() + entry.expert.index()));
  }
  for (const auto& by_access : placed.residence) {
    const auto found = std::find(out.chains.begin(), out.chains.end(), by_access.layers);
    out.chain_of.push_back(static_cast<std::uint32_t>(found - out.chains.begin()));
    if (found == out.chains.end()) out.chains.push_back(by_access.layers);
  }
  return out;
}

/// Replicas for memory that is left: first what the residencies can use at a server, then the
/// rarest experts.
void searcher::fill_free_memory(layout& content) const {
  for (std::size_t m = 0; m < n_servers(); ++m) {
    if (content.items[m].size() >= capacity_[m]) continue;
    std::vector<std::pair<double, std::uint32_t>> worth;
    for (std::uint32_t item = 0; item < n_items_; ++item) {
      if (content.hosts[item] & server_bit(m)) continue;
      const auto l = item / n_experts();
      bool near = false;
      for (const auto& chain : content.chains) {
        near |=
            (chain[l] & server_bit(m)) != 0 || (chain[(l + 1) % n_layers()] & server_bit(m)) != 0;
      }
      const double activation = profile_.layers[l].activation[item % n_experts()];
      worth.emplace_back((near ? 100.0 : 0.0) + activation / std::popcount(content.hosts[item]),
                         item);
    }
    const auto n = std::min(worth.size(), capacity_[m] - content.items[m].size());
    const auto best = worth.begin() + static_cast<std::ptrdiff_t>(n);
    const auto is_better = [](const auto& a, const auto& b) {
      return a.first > b.first || (a.first == b.first && a.second < b.second);
    };
    std::nth_element(worth.begin(), best, worth.end(), is_better);
    std::sort(worth.begin(), best, is_better);
    for (auto entry = worth.begin(); entry != best; ++entry) put(content, m, entry->second);
  }
}

/// Every home gives each of its layers as much of its memory, for the most frequent experts.
void searcher::take_quotas(const std::vector<homes>& chains, layout& out,
                           std::vector<std::size_t>& room) const {
  std::vector<std::size_t> layers_left(n_servers(), 0);
  for (std::size_t l = 0; l < n_layers(); ++l) {
    server_mask here = 0;
    for (const auto& home : chains) here |= server_bit(home[l]);
    for (std::size_t m = 0; m < n_servers(); ++m) layers_left[m] += (here >> m) & 1u;
  }
  for (std::size_t l = 0; l < n_layers(); ++l) {
    const auto& order = by_activation_[l];
    server_mask done = 0;
    for (const auto& home : chains) {
      const auto h = home[l];
      if (done & server_bit(h)) continue;
      done |= server_bit(h);
      auto quota = std::min(n_experts(), room[h] / layers_left[h]);
      --layers_left[h];
      for (const auto e : order) {
        if (quota == 0) break;
        put(out, h, static_cast<std::uint32_t>(l * n_experts() + e));
        --quota;
        --room[h];
      }
    }
  }
}

/// Every home takes the experts of its layers that are worth most, whatever their layer.
void searcher::take_worthiest(const std::vector<homes>& chains, layout& out,
                              std::vector<std::size_t>& room) const {
  std::vector<std::vector<std::uint32_t>> wanted(n_servers());
  for (std::size_t l = 0; l < n_layers(); ++l) {
    server_mask done = 0;
    for (const auto& home : chains) {
      if (done & server_bit(home[l])) continue;
      done |= server_bit(home[l]);
      for (std::size_t e = 0; e < n_experts(); ++e)
        wanted[home[l]].push_back(static_cast<std::uint32_t>(l * n_experts() + e));
    }
  }
  for (std::size_t m = 0; m < n_servers(); ++m) {
    auto& items = wanted[m];
    if (items.size() > room[m]) {
      std::nth_element(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(room[m]),
                       items.end(), [&](auto a, auto b) {
                         return worth_[a] > worth_[b] || (worth_[a] == worth_[b] && a < b);
                       });
      items.resize(room[m]);
      std::sort(items.begin(), items.end());
    }
    for (const auto item : items) put(out, m, item);
    room[m] -= items.size();
  }
}

/// One home for each layer of each chain; a home takes experts of its layers,
/// what no home holds goes where the detour is shortest, and replicas fill the rest. Access servers
/// are dealt to the chains so that each gets about the same share of the arrivals.
layout searcher::pipeline(const std::vector<homes>& chains) const {
  layout out;
  out.hosts.assign(n_items_, 0);
  out.items.resize(n_servers());
  for (const auto& home : chains) {
    out.chains.emplace_back();
    for (const auto h : home) out.chains.back().push_back(server_bit(h));
  }
  out.chain_of.assign(n_servers(), 0);
  std::vector<std::size_t> accesses(n_servers());
  std::iota(accesses.begin(), accesses.end(), 0u);
  std::stable_sort(accesses.begin(), accesses.end(),
                   [&](auto a, auto b) { return share_[a] > share_[b]; });
  std::vector<double> dealt(chains.size(), 0);
  for (const auto a : accesses) {
    const auto least = std::min_element(dealt.begin(), dealt.end()) - dealt.begin();
    out.chain_of[a] = static_cast<std::uint32_t>(least);
    dealt[static_cast<std::size_t>(least)] += share_[a];
  }

  const auto& costs = model_.costs;
  std::vector<std::size_t> room = capacity_;
  if (has_many_experts())
    take_worthiest(chains, out, room);
  else
    take_quotas(chains, out, room);
  for (std::size_t copy = 1; copy <= options_.min_copies; ++copy) {
    for (std::size_t l = 0; l < n_layers(); ++l) {
      for (const auto e : by_activation_[l]) {
        const auto item = static_cast<std::uint32_t>(l * n_experts() + e);
        const bool wants_exact = !is_exact_at(out.hosts[item]);
        if (static_cast<std::size_t>(std::popcount(out.hosts[item])) >= copy && !wants_exact)
          continue;
        const auto may_take = [&](std::size_t m) {
          return (out.hosts[item] & server_bit(m)) == 0 &&
                 (!wants_exact || is_exact_at(server_bit(m)));
        };
        std::size_t best = n_servers();
        double least = infinity;
        for (std::size_t m = 0; m < n_servers(); ++m) {
          if (room[m] == 0 || !may_take(m)) continue;
          double detour = 0;
          for (const auto& home : chains) {
            detour += costs.hidden(home[l], m) + costs.expert_ns[m] +
                      costs.hidden(m, home[(l + 1) % n_layers()]);
          }
          if (detour < least) {
            least = detour;
            best = m;
          }
        }
        if (best != n_servers()) {
          put(out, best, item);
          --room[best];
          continue;
        }
        // Homes filled the memory with second copies: one of them makes way.
        for (std::size_t m = 0; m < n_servers() && best == n_servers(); ++m) {
          if (!may_take(m)) continue;
          for (std::size_t at = out.items[m].size(); at-- > 0;) {
            if (!may_leave(out, m, out.items[m][at])) continue;
            replace(out, m, at, item);
            best = m;
            break;
          }
        }
        if (best == n_servers()) return {};
      }
    }
  }
  fill_free_memory(out);
  return out;
}

/// Two or three chains side by side, of the best single ones, for requests that would queue in one.
std::vector<layout> searcher::parallel(const std::vector<rated_layout>& starts) {
  const std::size_t n_most = has_many_experts() ? 6 : 24;
  std::vector<homes> singles;
  for (const auto& [content, rated] : starts) {
    if (content.chains.size() != 1) continue;
    homes home;
    for (const auto members : content.chains[0]) {
      if (std::popcount(members) == 1)
        home.push_back(static_cast<std::size_t>(std::countr_zero(members)));
    }
    if (home.size() != n_layers()) continue;
    server_mask servers = 0;
    for (const auto h : home) servers |= server_bit(h);
    // Chains over the same servers add no room to queue in.
    const bool is_new = std::none_of(singles.begin(), singles.end(), [&](const homes& other) {
      server_mask others = 0;
      for (const auto h : other) others |= server_bit(h);
      return others == servers;
    });
    if (is_new) singles.push_back(home);
    if (singles.size() == n_most) break;
  }
  std::vector<layout> out;
  std::vector<std::pair<double, std::vector<homes>>> pairs;
  const auto offer = [&](const std::vector<homes>& chains) {
    auto content = pipeline(chains);
    if (content.hosts.empty()) return infinity;
    const double cost = evaluate(content).cost;
    out.push_back(std::move(content));
    return cost;
  };
  for (std::size_t a = 0; a < singles.size(); ++a) {
    for (std::size_t b = a + 1; b < singles.size(); ++b) {
      const std::vector<homes> chains{singles[a], singles[b]};
      pairs.emplace_back(offer(chains), chains);
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < std::min<std::size_t>(4, pairs.size()); ++i) {
    for (const auto& third : singles) {
      auto chains = pairs[i].second;
      if (std::find(chains.begin(), chains.end(), third) != chains.end()) continue;
      chains.push_back(third);
      offer(chains);
    }
  }
  return out;
}

/// What a chain of homes costs where the experts that its servers cannot hold are a detour away: to
/// choose which chains are worth a real estimate.
double searcher::rough_cost(const homes& home, double missing_share) const {
  const auto& costs = model_.costs;
  server_mask members = 0;
  for (const auto h : home) members |= server_bit(h);
  double room = 0;
  for (std::size_t m = 0; m < n_servers(); ++m) {
    if (members & server_bit(m)) room += static_cast<double>(capacity_[m]);
  }
  const double missing = missing_share * std::max(0.0, 1 - room / static_cast<double>(n_items_));
  double total = 0;
  for (std::size_t l = 0; l < n_layers(); ++l) {
    const auto h = home[l], next = home[(l + 1) % n_layers()];
    double detour = n_servers() > 1 ? infinity : 0;
    for (std::size_t m = 0; m < n_servers(); ++m) {
      if (m != h) detour = std::min(detour, costs.hidden(h, m) + costs.hidden(m, h));
    }
    total += costs.attention_ns[h] + 2 * costs.expert_ns[h] + costs.hidden(h, next) +
             2 * missing * detour;
  }
  return total;
}

/// Pipelines over every small set of servers in every order, split by what the servers hold; on
/// large clusters only over sets of near neighbours.
std::vector<layout> searcher::pipelines(std::size_t n_most) const {
  std::vector<homes> seen;
  const auto add = [&](const homes& home) {
    if (std::find(seen.begin(), seen.end(), home) == seen.end()) seen.push_back(home);
  };
  const auto split = [&](const std::vector<std::size_t>& order) {
    double total = 0;
    for (const auto m : order) total += static_cast<double>(std::max<std::size_t>(1, capacity_[m]));
    std::vector<std::size_t> home;
    double before = 0;
    for (const auto m : order) {
      before += static_cast<double>(std::max<std::size_t>(1, capacity_[m]));
      const auto until =
          static_cast<std::size_t>(std::lround(before / total * static_cast<double>(n_layers())));
      while (home.size() < until) home.push_back(m);
    }
    home.resize(n_layers(), order.back());
    add(home);
  };
  constexpr std::size_t max_pool = 8, max_members = 4;
  for (std::size_t seed = 0; seed < n_servers(); ++seed) {
    std::vector<std::size_t> pool(n_servers());
    std::iota(pool.begin(), pool.end(), 0u);
    const auto distance = [&](std::size_t m) {
      return model_.costs.hidden(seed, m) + model_.costs.hidden(m, seed);
    };
    std::stable_sort(pool.begin(), pool.end(),
                     [&](auto a, auto b) { return distance(a) < distance(b); });
    // The seed itself stands first; only it may open the order, so that rotations are met once for
    // each seed.
    pool.erase(std::find(pool.begin(), pool.end(), seed));
    if (pool.size() > max_pool - 1) pool.resize(max_pool - 1);
    std::vector<std::size_t> order{seed};
    const auto extend = [&](auto&& self) -> void {
      split(order);
      if (order.size() == 2) {
        for (std::size_t cut = 1; cut < n_layers(); ++cut) {
          std::vector<std::size_t> home(n_layers(), order[1]);
          std::fill_n(home.begin(), cut, order[0]);
          add(home);
        }
      }
      if (order.size() >= std::min(max_members, n_layers())) return;
      for (const auto m : pool) {
        if (std::find(order.begin(), order.end(), m) != order.end()) continue;
        order.push_back(m);
        self(self);
        order.pop_back();
      }
    };
    extend(extend);
  }
  const auto best_of = [&](double missing_share, std::size_t n) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t i = 0; i < seen.size(); ++i)
      order.emplace_back(rough_cost(seen[i], missing_share), i);
    std::sort(order.begin(), order.end());
    if (order.size() > n) order.resize(n);
    return order;
  };
  auto order = best_of(1, n_most);
  if (has_many_experts() && !is_exact()) {
    // Substitutes for what is missing cost less than detours, nobody knows how much less.
    order = best_of(1, n_most / 3);
    for (const double missing_share : {0.1, 0.0})
      for (const auto& entry : best_of(missing_share, n_most / 3))
        if (std::none_of(order.begin(), order.end(),
                         [&](const auto& other) { return other.second == entry.second; }))
          order.push_back(entry);
  }
  std::vector<layout> out;
  for (const auto& entry : order) {
    auto content = pipeline({seen[entry.second]});
    if (!content.hosts.empty()) out.push_back(std::move(content));
  }
  return out;
}

/// The best layouts, at most two with the same servers as homes: starts that differ.
std::vector<searcher::rated_layout> searcher::diverse(const std::vector<rated_layout>& sorted,
                                                      std::size_t n) const {
  std::vector<rated_layout> out;
  std::vector<server_mask> used;
  for (const auto& candidate : sorted) {
    server_mask servers = 0;
    for (const auto& chain : candidate.first.chains) {
      for (const auto members : chain) servers |= members;
    }
    if (std::count(used.begin(), used.end(), servers) >= 2) continue;
    used.push_back(servers);
    out.push_back(candidate);
    if (out.size() == n) break;
  }
  return out;
}

}  // namespace ordermoe::planning::searching
