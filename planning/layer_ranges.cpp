#include "planning/layer_ranges.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "planning/cost_model.hpp"
#include "planning/infinity.hpp"

namespace ordermoe::planning {

namespace {

/// The layers [first, end) that a server holds.
struct layer_range {
  std::size_t first = 0, end = 0;
  std::size_t size() const { return end - first; }
  bool has(std::size_t layer) const { return layer >= first && layer < end; }
};

struct way {
  std::vector<std::size_t> server;  ///< [n_layers]
  double ns = infinity;
};

/// The users' ways, and their mean cost.
struct routing {
  std::vector<way> of_access;  ///< [n_servers]
  double mean_ns = 0;
};

class range_planner {
 public:
  range_planner(const profile& profile, const cluster& servers, const cost_profile& costs,
                double n_others)
      : servers_(servers),
        prices_(make_cost_model(servers, costs)),
        n_layers_(profile.n_layers),
        n_others_(n_others),
        ranges_(servers.size()) {
    for (std::size_t m = 0; m < servers.size(); ++m)
      layer_ns_.push_back(prices_.attention_ns[m] +
                          static_cast<double>(profile.top_k) * prices_.expert_ns[m]);
    by_arrivals_.resize(servers.size());
    std::iota(by_arrivals_.begin(), by_arrivals_.end(), std::size_t{0});
    std::ranges::stable_sort(by_arrivals_, [&](auto a, auto b) {
      return servers.servers[a].arrival_share > servers.servers[b].arrival_share;
    });
  }

  void take_over(const plan& chain) {
    for (const auto& each : chain.experts) {
      auto& range = ranges_[each.server.index()];
      const auto layer = each.layer.index();
      range = range.size() == 0
                  ? layer_range{layer, layer + 1}
                  : layer_range{std::min(range.first, layer), std::max(range.end, layer + 1)};
    }
  }

  /// capacity: [n_servers] whole layers.
  void add_copies(const std::vector<std::size_t>& capacity) {
    std::vector<std::size_t> order(ranges_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto left = [&](std::size_t m) { return capacity[m] - ranges_[m].size(); };
    std::ranges::stable_sort(order, [&](auto a, auto b) { return left(a) > left(b); });
    double least = route().mean_ns;
    for (const auto m : order) {
      const auto held = ranges_[m];
      auto best = held;
      for (const auto& wider : wider_ranges(held, std::min(capacity[m], n_layers_))) {
        ranges_[m] = wider;
        const double ns = route().mean_ns;
        if (!(ns < least)) continue;
        least = ns;
        best = wider;
      }
      ranges_[m] = best;
    }
  }

  const std::vector<layer_range>& ranges() const { return ranges_; }
  double layer_ns(std::size_t server) const { return layer_ns_[server]; }

  routing route() const {
    routing made;
    made.of_access.resize(ranges_.size());
    std::vector<double> load(ranges_.size(), 0);
    for (const auto access : by_arrivals_) {
      auto& found = made.of_access[access];
      found = shortest(load);
      const double share = servers_.servers[access].arrival_share;
      made.mean_ns += share * found.ns;
      for (const auto m : found.server) load[m] += share * layer_ns_[m] / found.ns;
    }
    return made;
  }

 private:
  /// Ranges of as many layers as fit with the one that is held among them.
  std::vector<layer_range> wider_ranges(const layer_range& held, std::size_t size) const {
    std::vector<layer_range> found;
    if (size <= held.size()) return found;
    for (std::size_t first = 0; first + size <= n_layers_; ++first)
      if (held.size() == 0 || (first <= held.first && first + size >= held.end))
        found.push_back({first, first + size});
    return found;
  }

  /// The least of a position that starts and ends at the same server.
  way shortest(const std::vector<double>& load) const {
    way best;
    for (std::size_t start = 0; start < ranges_.size(); ++start) {
      if (!ranges_[start].has(0)) continue;
      auto found = shortest_from(start, load);
      if (found.ns < best.ns) best = std::move(found);
    }
    return best;
  }

  way shortest_from(std::size_t start, const std::vector<double>& load) const {
    const auto n = ranges_.size();
    const auto at = [&](std::size_t m) { return layer_ns_[m] * (1 + n_others_ * load[m]); };
    std::vector<double> ns(n, infinity);
    std::vector<std::size_t> before(n_layers_ * n, 0);
    ns[start] = at(start);
    for (std::size_t l = 1; l < n_layers_; ++l) {
      std::vector<double> next(n, infinity);
      for (std::size_t to = 0; to < n; ++to) {
        if (!ranges_[to].has(l)) continue;
        for (std::size_t from = 0; from < n; ++from) {
          if (ns[from] == infinity) continue;
          const double there = ns[from] + prices_.hidden(from, to) + at(to);
          if (there >= next[to]) continue;
          next[to] = there;
          before[l * n + to] = from;
        }
      }
      ns = std::move(next);
    }
    way found;
    std::size_t last = 0;
    for (std::size_t m = 0; m < n; ++m) {
      const double all = ns[m] + prices_.head_ns[m] + prices_.message(m, start);
      if (all >= found.ns) continue;
      found.ns = all;
      last = m;
    }
    if (found.ns == infinity) return found;
    found.server.assign(n_layers_, last);
    for (std::size_t l = n_layers_ - 1; l > 0; --l)
      found.server[l - 1] = before[l * n + found.server[l]];
    return found;
  }

  const cluster& servers_;
  cost_model prices_;
  std::size_t n_layers_;
  double n_others_;
  std::vector<layer_range> ranges_;       ///< [n_servers]
  std::vector<double> layer_ns_;          ///< [n_servers] one position through one layer.
  std::vector<std::size_t> by_arrivals_;  ///< Access servers, those with most arrivals first.
};

}  // namespace

result<plan> place_layer_ranges(const profile& profile, const cluster& servers,
                                const cost_profile& costs, const layer_range_options& options) {
  layer_shard_options shards;
  shards.objective = options.objective;
  shards.way_back = shard_return::direct;
  auto chain = place_layer_shards(profile, servers, costs, shards);
  if (!chain) return chain;
  const auto layer_bytes = costs.expert_bytes * static_cast<std::int64_t>(profile.n_experts);
  std::vector<std::size_t> capacity;
  for (const auto bytes : chain->expert_bytes_limit)
    capacity.push_back(std::min(profile.n_layers, static_cast<std::size_t>(bytes / layer_bytes)));
  range_planner planner(profile, servers, costs, options.n_others);
  planner.take_over(*chain);
  planner.add_copies(capacity);

  plan made = *chain;
  made.strategy = "parallax";
  made.experts.clear();
  made.expert_bytes_used.assign(servers.size(), 0);
  for (std::size_t m = 0; m < servers.size(); ++m) {
    const auto& range = planner.ranges()[m];
    made.expert_bytes_used[m] = static_cast<std::int64_t>(range.size()) * layer_bytes;
    for (auto l = range.first; l < range.end; ++l)
      for (std::size_t j = 0; j < profile.n_experts; ++j)
        made.experts.push_back({server_id{m}, layer_id{l}, expert_id{j},
                                placement_reason::layer_shard, planner.layer_ns(m)});
  }
  const auto routed = planner.route();
  made.estimated_token_ns = routed.mean_ns;
  for (std::size_t a = 0; a < servers.size(); ++a)
    for (std::size_t l = 0; l < profile.n_layers; ++l)
      made.residence[a].layers[l] = server_bit(routed.of_access[a].server[l]);
  return made;
}

}  // namespace ordermoe::planning
