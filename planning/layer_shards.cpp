#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "planning/cost_model.hpp"
#include "planning/infinity.hpp"
#include "planning/packing.hpp"

namespace ordermoe::planning {

namespace {

/// What a chain of layer shards costs, in nanoseconds.
struct shard_costs {
  std::size_t n_servers = 0, n_layers = 0;
  std::vector<std::size_t> capacity;  ///< Whole layers that fit, [n_servers], at most n_layers.
  std::vector<double> layer;          ///< One position through one layer, [n_servers].
  std::vector<double> enter;  ///< To the first holder, [n_servers]; infinite where it may not be.
  /// Projection and the way back to where positions start, [n_servers].
  std::vector<double> leave;
  std::vector<double> head;       ///< The projection alone, [n_servers].
  std::vector<double> hop;        ///< Hidden state between holders, [from][to].
  std::vector<double> hop_stage;  ///< The part of it that keeps the link busy, [from][to].

  double hop_between(std::size_t from, std::size_t to) const { return hop[from * n_servers + to]; }
  double link_stage(std::size_t from, std::size_t to) const {
    return hop_stage[from * n_servers + to];
  }
  /// The same, where every position starts at `first` and the next one straight after it.
  shard_costs closed_at(std::size_t first, const cost_model& model) const {
    auto closed = *this;
    closed.enter.assign(n_servers, infinity);
    closed.enter[first] = 0;
    for (std::size_t m = 0; m < n_servers; ++m) closed.leave[m] = head[m] + model.message(m, first);
    return closed;
  }
};

shard_costs make_shard_costs(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const packing_problem& problem) {
  const auto model = make_cost_model(servers, costs);
  const auto n = servers.size();
  shard_costs shard;
  shard.n_servers = n;
  shard.n_layers = profile.n_layers;
  const auto layer_bytes = costs.expert_bytes * static_cast<std::int64_t>(profile.n_experts);
  for (std::size_t m = 0; m < n; ++m) {
    shard.capacity.push_back(
        std::min(profile.n_layers, static_cast<std::size_t>(problem.limit_bytes[m] / layer_bytes)));
    shard.layer.push_back(model.attention_ns[m] +
                          static_cast<double>(profile.top_k) * model.expert_ns[m]);
    double enter = 0, leave = model.head_ns[m];
    for (std::size_t a = 0; a < n; ++a) {
      enter += servers.servers[a].arrival_share * model.message(a, m);
      leave += servers.servers[a].arrival_share * model.message(m, a);
    }
    shard.enter.push_back(enter);
    shard.leave.push_back(leave);
    shard.head.push_back(model.head_ns[m]);
    for (std::size_t to = 0; to < n; ++to) {
      shard.hop.push_back(model.hidden(m, to));
      shard.hop_stage.push_back(
          m == to ? 0
                  : static_cast<double>(transfer_ns(servers.link(server_id{m}, server_id{to}),
                                                    costs.hidden_bytes)));
    }
  }
  return shard;
}

/// Layers [0, end) are held; the last of them by `server`, by nobody else than the servers of
/// `used`.
struct shard_state {
  server_mask used = 0;
  std::size_t server = 0;
  double cost = 0;
  /// The state before this server's shard; unused at layer 0.
  std::size_t parent_layer = 0, parent = 0;
};

struct state_key {
  server_mask used;
  std::size_t server;
  friend bool operator==(const state_key&, const state_key&) = default;
};
struct state_key_hash {
  std::size_t operator()(const state_key& key) const noexcept {
    return (key.used * 0x9e3779b97f4a7c15ull) ^ (key.used >> 29) ^
           (key.server * 0xbf58476d1ce4e5b9ull);
  }
};

/// The dynamic program over (layers held, last server, servers used).
class shard_search {
 public:
  enum class combine { sum, maximum };

  /// combine::sum minimises latency among chains whose stages take at most `stage_limit`;
  /// combine::maximum minimises the slowest stage. Chains that must cost more than `upper_bound`
  /// are left out.
  shard_search(const shard_costs& costs, combine how, double stage_limit, double upper_bound,
               std::size_t beam)
      : costs_(costs),
        how_(how),
        stage_limit_(stage_limit),
        // A bound is another chain's cost, perhaps summed in another order.
        upper_bound_(upper_bound * (1 + 1e-9)),
        beam_(beam),
        by_capacity_(costs.n_servers),
        levels_(costs.n_layers + 1),
        index_(costs.n_layers + 1) {
    std::iota(by_capacity_.begin(), by_capacity_.end(), std::size_t{0});
    std::stable_sort(by_capacity_.begin(), by_capacity_.end(),
                     [&](auto a, auto b) { return costs.capacity[a] > costs.capacity[b]; });
    for (std::size_t from = 0; from < costs.n_servers; ++from)
      for (std::size_t to = 0; to < costs.n_servers; ++to)
        if (from != to) least_hop_ = std::min(least_hop_, costs.hop_between(from, to));
    least_leave_ = *std::min_element(costs.leave.begin(), costs.leave.end());
  }

  /// Minimum over all chains; infinite where none meets the stage limit.
  double run() {
    for (std::size_t t = 0; t < costs_.n_servers; ++t)
      if (costs_.enter[t] < infinity)
        extend(0, 0, shard_state{}, t, how_ == combine::sum ? costs_.enter[t] : 0, 0);
    for (std::size_t l = 1; l < costs_.n_layers; ++l) {
      cut(l);
      for (std::size_t i = 0; i < levels_[l].size(); ++i) {
        const auto from = levels_[l][i];
        for (std::size_t t = 0; t < costs_.n_servers; ++t) {
          if ((from.used >> t) & 1u) continue;
          extend(l, i, from, t, costs_.hop_between(from.server, t),
                 costs_.link_stage(from.server, t));
        }
      }
    }
    best_ = infinity;
    const auto& last = levels_[costs_.n_layers];
    for (std::size_t i = 0; i < last.size(); ++i)
      if (last[i].cost < best_) {
        best_ = last[i].cost;
        best_state_ = i;
      }
    return best_;
  }

  /// The holder of each layer in the best chain.
  std::vector<std::size_t> holders() const {
    std::vector<std::size_t> holder(costs_.n_layers);
    auto end = costs_.n_layers;
    auto state = best_state_;
    while (end > 0) {
      const auto& shard = levels_[end][state];
      for (auto l = shard.parent_layer; l < end; ++l) holder[l] = shard.server;
      end = shard.parent_layer;
      state = shard.parent;
    }
    return holder;
  }

 private:
  /// Every length of a shard on server t after the state `from`, which holds `begin` layers.
  void extend(std::size_t begin, std::size_t parent, const shard_state& from, std::size_t t,
              double hop, double link_stage) {
    if (link_stage > stage_limit_) return;
    const auto used = from.used | server_bit(t);
    std::size_t reach = 0;  // Layers that the servers not used yet could hold.
    double least_layer = infinity;
    for (std::size_t m = 0; m < costs_.n_servers; ++m) {
      if ((used >> m) & 1u) continue;
      reach += costs_.capacity[m];
      if (costs_.capacity[m] > 0) least_layer = std::min(least_layer, costs_.layer[m]);
    }
    const auto longest = std::min(costs_.capacity[t], costs_.n_layers - begin);
    for (std::size_t length = 1; length <= longest; ++length) {
      const auto end = begin + length;
      if (end + reach < costs_.n_layers) continue;
      const bool last = end == costs_.n_layers;
      const double layers = static_cast<double>(length) * costs_.layer[t];
      const double stage = layers + (last ? costs_.head[t] : 0);
      if (stage > stage_limit_) break;
      const double cost = how_ == combine::sum
                              ? from.cost + hop + layers + (last ? costs_.leave[t] : 0)
                              : std::max({from.cost, link_stage, stage});
      if (cost + (last ? 0 : least_rest(used, costs_.n_layers - end, least_layer)) > upper_bound_)
        continue;
      add(end, {used, t, cost, begin, parent});
    }
  }

  /// At least what the remaining layers cost: the fastest of the servers left, the largest of them
  /// filled, the shortest hops and the shortest way back.
  double least_rest(server_mask used, std::size_t n_left, double least_layer) const {
    if (how_ == combine::maximum) return 0;
    double rest = static_cast<double>(n_left) * least_layer + least_leave_;
    for (const auto m : by_capacity_) {
      if (n_left == 0) break;
      if ((used >> m) & 1u) continue;
      rest += least_hop_;
      n_left -= std::min(n_left, costs_.capacity[m]);
    }
    return rest;
  }

  void add(std::size_t end, const shard_state& state) {
    // Which servers were used does not matter any more once all layers are held.
    const state_key key{end == costs_.n_layers ? 0 : state.used, state.server};
    auto& level = levels_[end];
    const auto [entry, is_new] = index_[end].try_emplace(key, level.size());
    if (is_new)
      level.push_back(state);
    else if (state.cost < level[entry->second].cost)
      level[entry->second] = state;
  }

  /// Keeps the cheapest states of a level whose states nothing refers to yet.
  void cut(std::size_t l) {
    index_[l].clear();
    auto& level = levels_[l];
    if (level.size() <= beam_) return;
    std::stable_sort(level.begin(), level.end(),
                     [](const auto& a, const auto& b) { return a.cost < b.cost; });
    level.resize(beam_);
  }

  const shard_costs& costs_;
  combine how_;
  double stage_limit_;
  double upper_bound_;
  std::size_t beam_;
  std::vector<std::size_t> by_capacity_;  ///< Servers, the largest first.
  double least_hop_ = infinity;
  double least_leave_ = 0;
  std::vector<std::vector<shard_state>> levels_;  ///< By number of layers held.
  std::vector<std::unordered_map<state_key, std::size_t, state_key_hash>> index_;
  double best_ = infinity;
  std::size_t best_state_ = 0;
};

/// Error: infeasible, where the servers cannot hold all layers as whole layers.
result<void> check_capacity(const shard_costs& shard, const packing_problem& problem,
                            std::int64_t layer_bytes) {
  std::size_t total = 0;
  for (const auto capacity : shard.capacity) total += capacity;
  if (total >= shard.n_layers) return {};
  // One layer more on the server that lacks least for it, until all are held.
  std::vector<std::int64_t> missing(shard.n_servers, 0);
  std::vector<std::int64_t> held(shard.capacity.begin(), shard.capacity.end());
  for (auto left = shard.n_layers - total; left > 0; --left) {
    std::size_t best = 0;
    const auto lacks = [&](std::size_t m) {
      return (held[m] + 1) * layer_bytes - problem.limit_bytes[m];
    };
    for (std::size_t m = 1; m < shard.n_servers; ++m)
      if (lacks(m) < lacks(best)) best = m;
    missing[best] = lacks(best);
    ++held[best];
  }
  std::int64_t sum = 0;
  for (const auto bytes : missing) sum += bytes;
  return error{
      errc::infeasible,
      fmt::format("found room for {} whole layers of {} bytes, expected room for {}; {} "
                  "bytes are missing in total ({}); add memory or choose a strategy that "
                  "splits layers",
                  total, layer_bytes, shard.n_layers, sum, lacking_servers(problem, missing))};
}

double chain_latency(const shard_costs& costs, const std::vector<std::size_t>& holder) {
  double latency = costs.enter[holder.front()] + costs.leave[holder.back()];
  for (std::size_t l = 0; l < holder.size(); ++l) {
    latency += costs.layer[holder[l]];
    if (l > 0) latency += costs.hop_between(holder[l - 1], holder[l]);
  }
  return latency;
}

struct chain {
  std::vector<std::size_t> holder;  ///< [n_layers]
  double slowest = 0;               ///< Stage; 0 where it was not looked at.
  double latency = 0;

  friend bool operator<(const chain& a, const chain& b) {
    return std::pair(a.slowest, a.latency) < std::pair(b.slowest, b.latency);
  }
};

std::optional<chain> best_chain(const shard_costs& costs, const layer_shard_options& options) {
  // A narrow beam first: its chain bounds what the wide one needs to keep.
  using combine = shard_search::combine;
  const auto narrow = std::min<std::size_t>(options.beam, 256);
  double stage_limit = infinity;
  if (options.objective == shard_objective::throughput) {
    const double bound = shard_search(costs, combine::maximum, infinity, infinity, narrow).run();
    stage_limit = shard_search(costs, combine::maximum, infinity, bound, options.beam).run();
    if (stage_limit == infinity) return std::nullopt;
  }
  const double bound = shard_search(costs, combine::sum, stage_limit, infinity, narrow).run();
  shard_search search(costs, combine::sum, stage_limit, bound, options.beam);
  if (search.run() == infinity) return std::nullopt;
  chain found{search.holders(), stage_limit < infinity ? stage_limit : 0, 0};
  found.latency = chain_latency(costs, found.holder);
  return found;
}

}  // namespace

result<plan> place_layer_shards(const profile& profile, const cluster& servers,
                                const cost_profile& costs, const layer_shard_options& options) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  if (options.beam == 0)
    return error{errc::usage, "beam: found 0, expected at least 1 state a layer"};
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  const auto layer_bytes = costs.expert_bytes * static_cast<std::int64_t>(profile.n_experts);
  const auto shard = make_shard_costs(profile, servers, costs, *problem);
  if (auto checked = check_capacity(shard, *problem, layer_bytes); !checked) return checked.error();

  std::optional<chain> best;
  if (options.way_back == shard_return::by_access) {
    best = best_chain(shard, options);
  } else {
    const auto model = make_cost_model(servers, costs);
    for (std::size_t first = 0; first < servers.size(); ++first) {
      auto found = best_chain(shard.closed_at(first, model), options);
      if (found && (!best || *found < *best)) best = std::move(found);
    }
  }
  if (!best)
    return error{
        errc::timed_out,
        fmt::format("found no chain of layers within {} states a layer, expected one; allow "
                    "a wider beam",
                    options.beam)};
  const auto& holder = best->holder;

  plan made;
  made.strategy = "layer-shards";
  made.n_servers = servers.size();
  made.n_layers = profile.n_layers;
  made.n_experts = profile.n_experts;
  made.expert_bytes_limit = problem->limit_bytes;
  made.expert_bytes_used.assign(servers.size(), 0);
  made.estimated_token_ns = best->latency;
  residency homes;
  for (std::size_t l = 0; l < profile.n_layers; ++l) {
    homes.layers.push_back(server_bit(holder[l]));
    made.expert_bytes_used[holder[l]] += layer_bytes;
    for (std::size_t j = 0; j < profile.n_experts; ++j)
      made.experts.push_back({server_id{holder[l]}, layer_id{l}, expert_id{j},
                              placement_reason::layer_shard, shard.layer[holder[l]]});
  }
  made.residence.assign(servers.size(), homes);
  return made;
}

}  // namespace ordermoe::planning
