#include "planning/optimum/placement_model.hpp"

#include <algorithm>

#include "planning/infinity.hpp"

namespace ordermoe::planning {

placement_model::placement_model(const profile& profile, const cluster& servers,
                                 const cost_profile& costs, std::size_t max_sets)
    : model_(profile, make_cost_model(servers, costs), max_sets), fronts_(model_.costs) {
  for (const auto& server : servers.servers) {
    const auto bytes = expert_memory_bytes(server, costs, profile.n_layers);
    const bool holds = server.expert_precision == precision::stored && bytes > 0;
    room_.push_back(holds ? std::min(profile.n_layers * profile.n_experts,
                                     static_cast<std::size_t>(bytes / expert_bytes(server, costs)))
                          : 0);
    arrival_share_.push_back(server.arrival_share);
  }
  row_.distinct = true;
  row_.slots.resize(model_.n_slots);
}

double placement_model::way_ns(std::size_t from, std::size_t to,
                               std::span<const std::uint8_t> servers) const {
  double latest = prices().hidden(from, to);
  for (const auto m : servers) {
    const auto runs = static_cast<double>(std::count(servers.begin(), servers.end(), m));
    latest = std::max(
        latest, prices().hidden(from, m) + runs * prices().expert_ns[m] + prices().hidden(m, to));
  }
  return latest;
}

/// [n_sets] the least time of each.
void placement_model::set_times(std::span<const server_mask> hosts, std::size_t layer,
                                std::size_t from, std::size_t to, std::vector<double>& ns) {
  ns.resize(n_sets(layer));
  for (std::size_t q = 0; q < ns.size(); ++q) {
    const auto wanted = targets(layer, q);
    for (std::size_t j = 0; j < wanted.size(); ++j) {
      row_.slots[j].places.clear();
      for_each_server(hosts[layer * n_experts() + wanted[j]], [&](std::size_t m) {
        if (room_[m] > 0)
          row_.slots[j].places.push_back({0, wanted[j], static_cast<std::uint8_t>(m), false});
      });
    }
    const auto& front = fronts_.between(row_, from, to);
    // Of more slots than anybody has, times may be told that were not proved.
    const auto proved = std::find_if(front.begin(), front.end(),
                                     [](const auto& point) { return point.loss < forbidden; });
    ns[q] = proved == front.end() ? infinity : proved->ns;
  }
}

double placement_model::layer_ns(std::span<const server_mask> hosts, std::size_t layer,
                                 std::size_t from, std::size_t to) {
  const bool is_last = layer + 1 == n_layers();
  set_times(hosts, layer, from, is_last ? from : to, stay_);
  if (is_last) set_times(hosts, layer, from, to, return_);
  double sum = prices().attention_ns[from];
  for (std::size_t q = 0; q < stay_.size(); ++q) {
    if (probability(layer, q) == 0) continue;
    const double ns =
        is_last ? std::min(stay_[q] + end_ns(from, to), return_[q] + end_ns(to, to)) : stay_[q];
    sum += probability(layer, q) * ns;
  }
  return sum;
}

double placement_model::path_ns(std::span<const server_mask> hosts, const residence_path& path) {
  double sum = 0;
  for (std::size_t l = 0; l < n_layers(); ++l)
    sum += layer_ns(hosts, l, path[l], path[(l + 1) % n_layers()]);
  return sum;
}

placed_path placement_model::best_path(std::span<const server_mask> hosts,
                                       std::span<const server_mask> members) {
  const auto n = n_servers(), last = n_layers() - 1;
  std::vector<std::vector<double>> step(n_layers(), std::vector<double>(n * n, infinity));
  for (std::size_t l = 0; l < n_layers(); ++l)
    for_each_server(members[l], [&](std::size_t s) {
      for_each_server(members[(l + 1) % n_layers()],
                      [&](std::size_t t) { step[l][s * n + t] = layer_ns(hosts, l, s, t); });
    });
  placed_path best{infinity, {}};
  std::vector<std::vector<std::uint8_t>> next(n_layers(), std::vector<std::uint8_t>(n));
  for_each_server(members[0], [&](std::size_t start) {
    // From the end of a position back to its start, which is where the next one starts.
    std::vector<double> value(n, infinity), before(n);
    value[start] = 0;
    for (std::size_t l = last + 1; l-- > 0;) {
      std::fill(before.begin(), before.end(), infinity);
      for (std::size_t s = 0; s < n; ++s)
        for (std::size_t t = 0; t < n; ++t) {
          const double ns = step[l][s * n + t] + value[t];
          if (ns >= before[s]) continue;
          before[s] = ns;
          next[l][s] = static_cast<std::uint8_t>(t);
        }
      std::swap(value, before);
    }
    if (value[start] >= best.ns) return;
    best = {value[start], {static_cast<std::uint8_t>(start)}};
    for (std::size_t l = 0; l < last; ++l) best.path.push_back(next[l][best.path.back()]);
  });
  return best;
}

std::vector<server_mask> placement_model::hosts_of(const plan& placed) const {
  std::vector<server_mask> hosts;
  const placement_index index(placed);
  for (std::size_t l = 0; l < n_layers(); ++l)
    for (std::size_t e = 0; e < n_experts(); ++e) hosts.push_back(index.hosts(l, e));
  return hosts;
}

double placement_model::plan_ns(const plan& placed) {
  const auto hosts = hosts_of(placed);
  double sum = 0;
  std::vector<std::pair<const residency*, double>> known;
  for (std::size_t a = 0; a < n_servers(); ++a) {
    if (arrival_share_[a] == 0) continue;
    const auto& members = placed.residence[a];
    auto found = std::find_if(known.begin(), known.end(), [&](const auto& other) {
      return other.first->layers == members.layers;
    });
    if (found == known.end())
      found = known.emplace(known.end(), &members, best_path(hosts, members.layers).ns);
    sum += arrival_share_[a] * found->second;
  }
  return sum;
}

double placement_model::at_access_ns(std::span<const server_mask> hosts) {
  double sum = 0;
  for (std::size_t a = 0; a < n_servers(); ++a)
    if (arrival_share_[a] > 0)
      sum += arrival_share_[a] *
             path_ns(hosts, residence_path(n_layers(), static_cast<std::uint8_t>(a)));
  return sum;
}

}  // namespace ordermoe::planning
