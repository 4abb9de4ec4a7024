#include "planning/spread_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "planning/infinity.hpp"
#include "planning/placement.hpp"

namespace ordermoe::planning {

namespace {

/// What one more copy brings: what comes within reach first, then what is saved.
struct gain {
  double reached = 0, saved_ns = 0;
  friend auto operator<=>(const gain&, const gain&) = default;
};

class copy_spreader {
 public:
  copy_spreader(packing& state, const profile& profile, const cost_model& prices,
                const spread_problem& problem)
      : state_(state), profile_(profile), prices_(prices), problem_(problem) {
    const auto n = state.problem().n_servers;
    for (std::size_t h = 0; h < n; ++h)
      for (std::size_t m = 0; m < n; ++m) farthest_ns_ = std::max(farthest_ns_, way_ns(h, m));
    users_.assign(n, 0);
    for (std::size_t a = 0; a < n; ++a)
      users_[(*problem.where)[a]] += state.problem().arrival_share[a];
    nearest_ns_.assign(n * n_flat(), 2 * farthest_ns_);
    reached_.assign(n * n_flat(), 0);
  }

  void fill() {
    struct entry {
      gain brings;
      std::size_t server, flat;
    };
    const auto later = [](const entry& a, const entry& b) {
      if (a.brings != b.brings) return a.brings < b.brings;
      return std::pair(a.server, a.flat) > std::pair(b.server, b.flat);
    };
    std::priority_queue<entry, std::vector<entry>, decltype(later)> waiting(later);
    for (std::size_t m = 0; m < state_.problem().n_servers; ++m)
      for (std::size_t flat = 0; flat < n_flat(); ++flat) waiting.push({gain_of(m, flat), m, flat});
    while (!waiting.empty()) {
      auto next = waiting.top();
      waiting.pop();
      if (state_.free_bytes(next.server) < state_.problem().expert_bytes[next.flat]) continue;
      // A copy never brings more than it did before others were placed.
      const auto now = gain_of(next.server, next.flat);
      if (now < next.brings) {
        waiting.push({now, next.server, next.flat});
        continue;
      }
      place(next.server, next.flat, now);
    }
  }

 private:
  std::size_t n_flat() const { return state_.problem().expert_bytes.size(); }
  double way_ns(std::size_t home, std::size_t server) const {
    return home == server ? 0 : round_trip_ns(prices_, home, server);
  }
  bool reaches(std::size_t home, std::size_t server) const {
    return home == server || way_ns(home, server) <= problem_.reach_ns;
  }

  gain gain_of(std::size_t server, std::size_t flat) const {
    const auto layer = flat / profile_.n_experts, expert = flat % profile_.n_experts;
    gain brings;
    for (std::size_t h = 0; h < users_.size(); ++h) {
      if (users_[h] == 0) continue;
      const auto at = h * n_flat() + flat;
      if (reached_[at] == 0 && reaches(h, server))
        brings.reached += users_[h] * (*problem_.worth)[layer][expert];
      brings.saved_ns += users_[h] * profile_.layers[layer].activation[expert] *
                         std::max(0.0, nearest_ns_[at] - way_ns(h, server));
    }
    return brings;
  }

  void place(std::size_t server, std::size_t flat, const gain& brings) {
    const auto layer = flat / profile_.n_experts, expert = flat % profile_.n_experts;
    const bool is_first = state_.hosts(layer, expert) == 0;
    state_.place(server, layer, expert,
                 is_first ? placement_reason::mandatory : placement_reason::replica,
                 brings.reached > 0 ? brings.reached : brings.saved_ns);
    for (std::size_t h = 0; h < users_.size(); ++h) {
      const auto at = h * n_flat() + flat;
      if (reaches(h, server)) reached_[at] = 1;
      nearest_ns_[at] = std::min(nearest_ns_[at], way_ns(h, server));
    }
  }

  packing& state_;
  const profile& profile_;
  const cost_model& prices_;
  const spread_problem& problem_;
  double farthest_ns_ = 0;
  std::vector<double> users_;          ///< [n_servers] arrivals that are served there
  std::vector<double> nearest_ns_;     ///< [homes, layers * experts] way to the nearest copy
  std::vector<std::uint8_t> reached_;  ///< Likewise, whether one is within reach.
};

/// For an expert that got no server: the refusal of a placement that says what each lacks, where that refuses, too.
error too_little_memory(const profile& profile, const cluster& servers, const cost_profile& costs,
                        std::size_t layer, std::size_t expert) {
  auto otherwise = place_by_popularity(profile, servers, costs, {});
  if (!otherwise) return otherwise.error();
  return {errc::infeasible,
          fmt::format("no server is left with room for expert {} of layer {}", expert, layer)};
}

plan plan_of(const packing& state, std::string strategy, const homes& where) {
  const auto& problem = state.problem();
  plan made;
  made.strategy = std::move(strategy);
  made.n_servers = problem.n_servers;
  made.n_layers = problem.n_layers;
  made.n_experts = problem.n_experts;
  made.experts = state.placed();
  made.expert_bytes_used = state.used();
  made.expert_bytes_limit = problem.limit_bytes;
  made.residence = residency_at(where, problem.n_layers);
  return made;
}

/// Experts of all layers, those chosen most first, as flat numbers.
std::vector<std::size_t> by_activation(const profile& profile) {
  std::vector<std::size_t> order(profile.n_layers * profile.n_experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](auto a, auto b) {
    const auto of = [&](std::size_t flat) {
      return profile.layers[flat / profile.n_experts].activation[flat % profile.n_experts];
    };
    return of(a) > of(b);
  });
  return order;
}

/// What one server does itself in a position, without experts.
double own_work_ns(const profile& profile, const cost_model& prices, std::size_t server) {
  return static_cast<double>(profile.n_layers) * prices.attention_ns[server] +
         prices.head_ns[server];
}

/// How often an expert of all layers runs in a position.
double runs_of(const profile& profile, std::size_t flat) {
  return static_cast<double>(profile.top_k) *
         profile.layers[flat / profile.n_experts].activation[flat % profile.n_experts];
}

}  // namespace

double way_of_position_ns(const cost_model& prices, std::size_t access, std::size_t home) {
  return access == home
             ? 0
             : (prices.message(access, home) + prices.message(home, access)) / positions_of_request;
}

double round_trip_ns(const cost_model& prices, std::size_t home, std::size_t server) {
  return prices.hidden(home, server) + prices.expert_ns[server] + prices.hidden(server, home);
}

std::vector<double> position_times(const profile& profile, const packing_problem& problem,
                                   const cost_model& prices) {
  const auto order = by_activation(profile);
  std::vector<double> times;
  for (std::size_t h = 0; h < problem.n_servers; ++h) {
    std::vector<std::pair<double, std::size_t>> by_way;
    for (std::size_t m = 0; m < problem.n_servers; ++m)
      by_way.emplace_back(m == h ? prices.expert_ns[h] : round_trip_ns(prices, h, m), m);
    // Its own memory is filled first, however slow it is.
    std::ranges::sort(by_way, {}, [&](const auto& each) {
      return std::tuple(each.second != h, each.first, each.second);
    });
    double ns = own_work_ns(profile, prices, h);
    auto room = problem.limit_bytes;
    std::size_t at = 0;
    for (const auto flat : order) {
      while (at + 1 < by_way.size() && room[by_way[at].second] < problem.expert_bytes[flat]) ++at;
      const auto& [way_ns, server] = by_way[at];
      room[server] -= problem.expert_bytes[flat];
      ns += runs_of(profile, flat) * way_ns;
    }
    times.push_back(ns);
  }
  return times;
}

std::vector<homes> sole_homes(const profile& profile, const cluster& servers,
                              const cost_profile& costs, std::size_t n_most) {
  const auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return {};
  const auto prices = make_cost_model(servers, costs);
  auto times = position_times(profile, *problem, prices);
  for (std::size_t h = 0; h < times.size(); ++h)
    for (std::size_t a = 0; a < servers.size(); ++a)
      times[h] += servers.servers[a].arrival_share * way_of_position_ns(prices, a, h);
  std::vector<std::size_t> soonest = own_homes(servers.size());
  std::ranges::stable_sort(soonest, {}, [&](std::size_t h) { return times[h]; });
  std::vector<homes> found;
  for (std::size_t i = 0; i < std::min(n_most, soonest.size()); ++i)
    found.emplace_back(servers.size(), soonest[i]);
  return found;
}

homes own_homes(std::size_t n_servers) {
  homes where(n_servers);
  std::iota(where.begin(), where.end(), std::size_t{0});
  return where;
}

homes soonest_homes(const cluster& servers, const cost_model& prices,
                    const std::vector<double>& position_ns, double others) {
  const auto n = servers.size();
  std::vector<std::size_t> by_arrivals = own_homes(n);
  std::ranges::stable_sort(by_arrivals, [&](auto a, auto b) {
    return servers.servers[a].arrival_share > servers.servers[b].arrival_share;
  });
  homes where(n, n);
  std::vector<double> load(n, 0);
  const auto best_for = [&](std::size_t a) {
    std::size_t best = n;
    double least = infinity;
    for (std::size_t h = 0; h < n; ++h) {
      const double ns = position_ns[h] * (1 + others * load[h]) + way_of_position_ns(prices, a, h);
      if (ns >= least) continue;
      least = ns;
      best = h;
    }
    ORDERMOE_CHECK(best < n, "users are served by some server");
    return best;
  };
  constexpr int most_rounds = 8;
  bool moved = true;
  for (int round = 0; moved && round < most_rounds; ++round) {
    moved = false;
    for (const auto a : by_arrivals) {
      const double share = servers.servers[a].arrival_share;
      if (where[a] < n) load[where[a]] -= share;
      const auto best = best_for(a);
      moved |= best != where[a];
      where[a] = best;
      load[best] += share;
    }
  }
  return where;
}

std::vector<residency> residency_at(const homes& where, std::size_t n_layers) {
  std::vector<residency> sets;
  for (const auto home : where)
    sets.push_back({std::vector<server_mask>(n_layers, server_bit(home))});
  return sets;
}

void spread_copies(packing& state, const profile& profile, const cost_model& prices,
                   const spread_problem& problem) {
  copy_spreader(state, profile, prices, problem).fill();
}

result<plan> place_whole_requests(const profile& profile, const cluster& servers,
                                  const cost_profile& costs, const homes& where) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  packing state(*problem);
  const std::vector<std::vector<double>> worth(profile.n_layers,
                                               std::vector<double>(profile.n_experts, 1));
  spread_copies(state, profile, make_cost_model(servers, costs), {&where, infinity, &worth});
  for (std::size_t l = 0; l < profile.n_layers; ++l)
    for (std::size_t e = 0; e < profile.n_experts; ++e)
      if (state.hosts(l, e) == 0) return too_little_memory(profile, servers, costs, l, e);
  return plan_of(state, "edge-llm", where);
}

result<plan> place_whole_requests(const profile& profile, const cluster& servers,
                                  const cost_profile& costs, double concurrency) {
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  const auto prices = make_cost_model(servers, costs);
  const auto times = position_times(profile, *problem, prices);
  return place_whole_requests(
      profile, servers, costs,
      soonest_homes(servers, prices, times, std::max(0.0, concurrency - 1)));
}

result<plan> place_offloaded(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const homes& where) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  packing state(*problem);
  std::vector<placed_expert> in_hosts;
  const auto prices = make_cost_model(servers, costs);
  for (std::size_t m = 0; m < servers.size(); ++m) {
    if (std::ranges::find(where, m) == where.end()) continue;
    for (const auto flat : by_activation(profile)) {
      const auto layer = flat / profile.n_experts, expert = flat % profile.n_experts;
      const double chosen = profile.layers[layer].activation[expert];
      if (state.free_bytes(m) >= problem->expert_bytes[flat])
        state.place(m, layer, expert, placement_reason::mandatory, chosen);
      else
        in_hosts.push_back(
            {server_id{m}, layer_id{layer}, expert_id{expert}, placement_reason::offload, chosen});
    }
  }
  auto made = plan_of(state, "offload", where);
  made.experts.insert(made.experts.end(), in_hosts.begin(), in_hosts.end());
  return made;
}

result<plan> place_offloaded(const profile& profile, const cluster& servers,
                             const cost_profile& costs, double concurrency) {
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  const auto prices = make_cost_model(servers, costs);
  const auto order = by_activation(profile);
  std::vector<double> times;
  for (std::size_t m = 0; m < servers.size(); ++m) {
    const auto& server = servers.servers[m];
    const auto from_host_ns =
        static_cast<double>(offloaded_ns(server, costs.expert_flops, expert_bytes(server, costs)));
    double ns = own_work_ns(profile, prices, m);
    auto room = problem->limit_bytes[m];
    for (const auto flat : order) {
      const bool fits = room >= problem->expert_bytes[flat];
      if (fits) room -= problem->expert_bytes[flat];
      ns += runs_of(profile, flat) * (fits ? prices.expert_ns[m] : from_host_ns);
    }
    times.push_back(ns);
  }
  return place_offloaded(profile, servers, costs,
                         soonest_homes(servers, prices, times, std::max(0.0, concurrency - 1)));
}

}  // namespace ordermoe::planning
