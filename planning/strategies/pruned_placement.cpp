#include "planning/strategies/pruned_placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include "planning/infinity.hpp"
#include "planning/pruning.hpp"
#include "planning/shard_chains.hpp"
#include "planning/spread_copies.hpp"
#include "planning/strategies/left_out.hpp"

namespace ordermoe::planning {

namespace {

/// Layers are cut where experts are, unless there are very many.
std::size_t units_of(const profile& profile) {
  constexpr std::size_t most_units = 1024;
  return profile.n_layers * profile.n_experts <= most_units ? profile.n_experts : 32;
}

result<std::vector<plan>> pruned_chains(const profile& profile, const cluster& servers,
                                        const cost_profile& costs, const pruned_experts& pruned,
                                        double concurrency, std::size_t n_most,
                                        const std::function<bool()>& should_stop) {
  shard_chain_options options{units_of(profile), concurrency, pruned, should_stop};
  auto made = place_shard_chains(profile, servers, costs, options, n_most);
  if (!made) return made;
  const bool prunes =
      std::ranges::any_of(pruned.layers, [](const auto& layer) { return !layer.empty(); });
  for (auto& each : *made) {
    each.strategy = "static-pruning";
    if (prunes) each.pruned.assign(servers.size(), pruned);
  }
  return made;
}

using site = std::vector<std::size_t>;

/// The two sites whose farthest servers are nearest, joined.
void join_nearest(std::vector<site>& sites, const cost_model& prices) {
  const auto distance = [&](const site& a, const site& b) {
    double farthest = 0;
    for (const auto m : a)
      for (const auto n : b)
        farthest = std::max(farthest, prices.hidden(m, n) + prices.hidden(n, m));
    return farthest;
  };
  std::pair<std::size_t, std::size_t> nearest{0, 1};
  double least = infinity;
  for (std::size_t i = 0; i < sites.size(); ++i)
    for (auto j = i + 1; j < sites.size(); ++j)
      if (const double ns = distance(sites[i], sites[j]); ns < least) {
        least = ns;
        nearest = {i, j};
      }
  auto& into = sites[nearest.first];
  into.insert(into.end(), sites[nearest.second].begin(), sites[nearest.second].end());
  std::ranges::sort(into);
  sites.erase(sites.begin() + static_cast<std::ptrdiff_t>(nearest.second));
}

/// A site's own plan among all servers; nothing where too little fits.
std::optional<plan> plan_of_site(const profile& profile, const cluster& servers,
                                 const cost_profile& costs, const std::vector<pruning_step>& order,
                                 const site& here, double concurrency,
                                 const std::function<bool()>& should_stop) {
  server_mask others = all_servers(servers.size());
  std::size_t room = 0;
  double share = 0;
  for (const auto m : here) {
    others &= ~server_bit(m);
    const auto bytes = expert_memory_bytes(servers.servers[m], costs, profile.n_layers);
    room += static_cast<std::size_t>(std::max<std::int64_t>(0, bytes) / costs.expert_bytes);
    share += servers.servers[m].arrival_share;
  }
  const auto all = profile.n_layers * profile.n_experts;
  const auto narrow = without(servers, others);
  const auto met = 1 + std::max(0.0, concurrency - 1) * share;
  // Where units are of several experts, some room is lost.
  const auto step = std::max<std::size_t>(1, order.size() / 32);
  for (auto n = all > room ? all - room : 0; n <= order.size(); n += step) {
    auto made = pruned_chains(profile, narrow, costs, first_pruned(order, profile.n_layers, n), met,
                              1, should_stop);
    if (made) return widened(made->front(), servers, costs, others);
    if (order.empty()) break;
  }
  return std::nullopt;
}

/// The one of `sites` that is reached first from a server.
std::size_t nearest_site(std::size_t from, const std::vector<site>& sites,
                         const std::vector<std::optional<plan>>& plans, const cost_model& prices) {
  std::size_t best = sites.size();
  double least = infinity;
  for (std::size_t s = 0; s < sites.size(); ++s) {
    if (!plans[s]) continue;
    for (const auto m : sites[s])
      if (prices.message(from, m) < least) {
        least = prices.message(from, m);
        best = s;
      }
  }
  return best;
}

/// Hubs one after the other, each the server more that lets positions be over soonest.
homes homes_at_hubs(const profile& profile, const cluster& servers, const packing_problem& problem,
                    const cost_model& prices, std::size_t n_hubs) {
  const auto n = servers.size();
  if (n_hubs >= n) return own_homes(n);
  const auto times = position_times(profile, problem, prices);
  const auto ns = [&](std::size_t a, std::size_t h) {
    return times[h] + way_of_position_ns(prices, a, h);
  };
  homes where(n, 0);
  std::vector<double> best(n, infinity);
  std::vector<std::uint8_t> is_hub(n, 0);
  for (std::size_t hub = 0; hub < n_hubs; ++hub) {
    std::size_t chosen = n;
    double least = infinity;
    for (std::size_t h = 0; h < n; ++h) {
      if (is_hub[h] != 0) continue;
      double mean = 0;
      for (std::size_t a = 0; a < n; ++a)
        mean += servers.servers[a].arrival_share * std::min(best[a], ns(a, h));
      if (mean >= least) continue;
      least = mean;
      chosen = h;
    }
    is_hub[chosen] = 1;
    for (std::size_t a = 0; a < n; ++a)
      if (ns(a, chosen) < best[a]) {
        best[a] = ns(a, chosen);
        where[a] = chosen;
      }
  }
  return where;
}

/// [n_servers] from where the layer runs to the server and back, by arrivals.
std::vector<double> ways_from(const plan& placed, const cluster& servers, const cost_model& prices,
                              std::size_t layer) {
  std::vector<double> ways(servers.size(), 0);
  for (std::size_t a = 0; a < servers.size(); ++a)
    for (std::size_t m = 0; m < servers.size(); ++m) {
      double least = infinity;
      for_each_server(placed.residence[a].layers[layer],
                      [&](std::size_t s) { least = std::min(least, round_trip_ns(prices, s, m)); });
      ways[m] += servers.servers[a].arrival_share * least;
    }
  return ways;
}

/// Gives every expert that has no server one; false where there is no room.
bool place_outside(plan& placed, const std::vector<pruning_step>& order, std::size_t n_outside,
                   const cluster& servers, const cost_profile& costs, const cost_model& prices) {
  std::vector<std::vector<double>> ways;
  for (std::size_t l = 0; l < placed.n_layers; ++l)
    ways.push_back(ways_from(placed, servers, prices, l));
  for (auto i = n_outside; i-- > 0;) {
    const auto [layer, expert, nats] = order[i];
    std::size_t best = servers.size();
    for (std::size_t m = 0; m < servers.size(); ++m) {
      const auto bytes = expert_bytes(servers.servers[m], costs);
      if (servers.servers[m].expert_precision != precision::stored ||
          placed.expert_bytes_used[m] + bytes > placed.expert_bytes_limit[m])
        continue;
      if (best == servers.size() || ways[layer][m] < ways[layer][best]) best = m;
    }
    if (best == servers.size()) return false;
    placed.expert_bytes_used[best] += expert_bytes(servers.servers[best], costs);
    placed.experts.push_back(
        {server_id{best}, layer_id{layer}, expert_id{expert}, placement_reason::search, nats});
  }
  return true;
}

/// [n_experts] of a layer that a home's router may not choose; fewer than top_k are reached only where there are fewer at all.
std::vector<std::uint32_t> out_of_reach(const packing& state, const cost_model& prices,
                                        std::size_t home, std::size_t layer, std::size_t top_k,
                                        double reach_ns) {
  const auto n_experts = state.problem().n_experts;
  std::vector<std::pair<double, std::uint32_t>> far;
  for (std::uint32_t e = 0; e < n_experts; ++e) {
    double ns = infinity;
    for_each_server(state.hosts(layer, e), [&](std::size_t m) {
      ns = std::min(ns, m == home ? 0 : round_trip_ns(prices, home, m));
    });
    if (ns > reach_ns) far.emplace_back(ns, e);
  }
  std::ranges::sort(far);
  // The nearest of them, where a token would have too few.
  const auto reached = n_experts - far.size();
  const auto taken = reached < top_k ? top_k - reached : 0;
  std::vector<std::uint32_t> pruned;
  for (auto i = taken; i < far.size(); ++i) pruned.push_back(far[i].second);
  std::ranges::sort(pruned);
  return pruned;
}

}  // namespace

result<std::vector<plan>> place_pruned(const profile& profile, const cluster& servers,
                                       const cost_profile& costs, std::size_t n_pruned,
                                       double concurrency, std::size_t n_most,
                                       std::function<bool()> should_stop) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  return pruned_chains(profile, servers, costs,
                       first_pruned(pruning_order(profile), profile.n_layers, n_pruned),
                       concurrency, n_most, should_stop);
}

result<std::vector<plan>> place_around_core(const profile& profile,
                                            const std::vector<pruning_step>& order,
                                            const cluster& servers, const cost_profile& costs,
                                            std::size_t n_outside, double concurrency,
                                            std::size_t n_most, std::function<bool()> should_stop) {
  n_outside = std::min(n_outside, order.size());
  auto made =
      pruned_chains(profile, servers, costs, first_pruned(order, profile.n_layers, n_outside),
                    concurrency, n_most, should_stop);
  if (!made) return made;
  const auto prices = make_cost_model(servers, costs);
  std::vector<plan> whole;
  for (auto& each : *made) {
    each.strategy = core_planner;
    each.pruned.clear();
    each.estimated_token_ns = 0;
    if (place_outside(each, order, n_outside, servers, costs, prices))
      whole.push_back(std::move(each));
  }
  if (!whole.empty()) return whole;
  return error{errc::infeasible,
               fmt::format("found no room for the {} experts beside chains of the others, expected "
                           "room for all; add memory",
                           n_outside)};
}

result<plan> place_pruned_sites(const profile& profile, const cluster& servers,
                                const cost_profile& costs, std::size_t n_sites, double concurrency,
                                std::function<bool()> should_stop) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  const auto prices = make_cost_model(servers, costs);
  std::vector<site> sites;
  for (std::size_t m = 0; m < servers.size(); ++m) sites.push_back({m});
  while (sites.size() > std::max<std::size_t>(1, n_sites)) join_nearest(sites, prices);
  const auto order = pruning_order(profile);
  std::vector<std::optional<plan>> plans;
  for (const auto& each : sites)
    plans.push_back(plan_of_site(profile, servers, costs, order, each, concurrency, should_stop));
  plan made;
  for (std::size_t a = 0; a < servers.size(); ++a) {
    auto s = static_cast<std::size_t>(
        std::ranges::find_if(
            sites, [&](const site& one) { return std::ranges::find(one, a) != one.end(); }) -
        sites.begin());
    const bool is_own = plans[s].has_value();
    if (!is_own) s = nearest_site(a, sites, plans, prices);
    if (s == sites.size())
      return error{errc::infeasible,
                   fmt::format("no site has room for {} experts of each layer; add memory, or make "
                               "sites of more servers",
                               profile.top_k)};
    const auto& of_site = *plans[s];
    const auto served_as = is_own ? a : sites[s].front();
    if (made.n_servers == 0) {
      made = of_site;
      made.experts.clear();
      made.residence.clear();
      made.pruned.assign(servers.size(),
                         pruned_experts{std::vector<std::vector<std::uint32_t>>(profile.n_layers)});
      made.expert_bytes_used.assign(servers.size(), 0);
      made.estimated_token_ns = 0;
    }
    made.residence.push_back(of_site.residence[served_as]);
    if (!of_site.pruned.empty()) made.pruned[a] = of_site.pruned[served_as];
    made.estimated_token_ns += servers.servers[a].arrival_share * of_site.estimated_token_ns;
  }
  for (const auto& each : plans) {
    if (!each) continue;
    made.experts.insert(made.experts.end(), each->experts.begin(), each->experts.end());
    for (std::size_t m = 0; m < servers.size(); ++m)
      made.expert_bytes_used[m] += each->expert_bytes_used[m];
  }
  return made;
}

std::vector<double> reaches_of(const cluster& servers, const cost_profile& costs) {
  const auto prices = make_cost_model(servers, costs);
  std::vector<double> reaches{0};
  for (std::size_t h = 0; h < servers.size(); ++h)
    for (std::size_t m = 0; m < servers.size(); ++m)
      if (h != m) reaches.push_back(round_trip_ns(prices, h, m));
  std::ranges::sort(reaches, std::greater());
  const auto repeated = std::ranges::unique(reaches);
  reaches.erase(repeated.begin(), repeated.end());
  return reaches;
}

result<plan> place_reachable(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const reachable_options& options) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  const auto prices = make_cost_model(servers, costs);
  const auto where = homes_at_hubs(profile, servers, *problem, prices, options.n_hubs);
  const auto worth = worth_of_each(pruning_order(profile), profile);
  packing state(*problem);
  spread_copies(state, profile, prices, {&where, options.reach_ns, &worth});
  plan made;
  made.strategy = "moe2";
  made.n_servers = servers.size();
  made.n_layers = profile.n_layers;
  made.n_experts = profile.n_experts;
  made.experts = state.placed();
  made.expert_bytes_used = state.used();
  made.expert_bytes_limit = problem->limit_bytes;
  made.residence = residency_at(where, profile.n_layers);
  bool prunes = false;
  for (const auto home : where) {
    auto& pruned = made.pruned.emplace_back();
    for (std::size_t l = 0; l < profile.n_layers; ++l) {
      pruned.layers.push_back(
          out_of_reach(state, prices, home, l, profile.top_k, options.reach_ns));
      const auto& layer = pruned.layers.back();
      prunes |= !layer.empty();
      for (std::uint32_t e = 0; e < profile.n_experts; ++e)
        if (state.hosts(l, e) == 0 && !std::ranges::binary_search(layer, e))
          return error{errc::infeasible,
                       fmt::format("layer {} has fewer than {} experts on any server, as many as a "
                                   "token has; add memory",
                                   l, profile.top_k)};
    }
  }
  if (prunes && !options.prunes)
    return error{errc::infeasible,
                 "the servers have no room for all experts, and none may be pruned; add memory, "
                 "or allow a loss of quality"};
  if (!prunes) made.pruned.clear();
  return made;
}

}  // namespace ordermoe::planning
