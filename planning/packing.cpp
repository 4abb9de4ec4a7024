#include "planning/packing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

namespace ordermoe::planning {

namespace {

struct expert_of_layer {
  std::size_t layer = 0, expert = 0;
};

std::vector<std::size_t> servers_in(server_mask mask) {
  std::vector<std::size_t> servers;
  for (; mask != 0; mask &= mask - 1)
    servers.push_back(static_cast<std::size_t>(std::countr_zero(mask)));
  return servers;
}

/// Line 15: experts of one layer by falling memory demand; among equals the more important first.
std::vector<std::size_t> by_demand(const packing_problem& problem, std::size_t layer) {
  const auto& importance = problem.grouping[layer].importance;
  std::vector<std::size_t> order(problem.n_experts);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    if (problem.bytes(layer, a) != problem.bytes(layer, b))
      return problem.bytes(layer, a) > problem.bytes(layer, b);
    return importance[a] > importance[b];
  });
  return order;
}

void place_best(packing& state, server_mask feasible, expert_of_layer item,
                const placement_options& options, placement_reason reason) {
  const auto m = lowest_score(state, feasible, item.layer, item.expert, options.lambda_load);
  state.place(m, item.layer, item.expert, reason,
              packing_score(state, m, item.layer, item.expert, options.lambda_load));
}

/// Copies 2 to min_copies of every expert, the most important first. Returns those that found no
/// place.
std::vector<expert_of_layer> place_copies(packing& state, const placement_options& options) {
  const auto& problem = state.problem();
  std::vector<expert_of_layer> order;
  for (std::size_t l = 0; l < problem.n_layers; ++l)
    for (std::size_t j = 0; j < problem.n_experts; ++j) order.push_back({l, j});
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    return problem.grouping[a.layer].importance[a.expert] >
           problem.grouping[b.layer].importance[b.expert];
  });
  std::vector<expert_of_layer> left_over;
  for (std::size_t copy = 2; copy <= options.min_copies; ++copy)
    for (const auto& item : order) {
      if (const auto feasible = memory_feasible(state, item.layer, item.expert); feasible != 0)
        place_best(state, feasible, item, options, placement_reason::min_copies);
      else if (!make_room(state, item.layer, item.expert, placement_reason::min_copies))
        left_over.push_back(item);
    }
  return left_over;
}

bool of_one_size(const packing_problem& problem) {
  return std::adjacent_find(problem.expert_bytes.begin(), problem.expert_bytes.end(),
                            std::not_equal_to<>()) == problem.expert_bytes.end();
}

/// Bytes that each server would need besides its own so that the experts left over fit, spread over
/// the emptiest.
std::vector<std::int64_t> missing_bytes(const packing& state,
                                        const std::vector<expert_of_layer>& left_over) {
  const auto& problem = state.problem();
  std::vector<std::int64_t> free(problem.n_servers);
  std::vector<server_mask> hosts(problem.expert_bytes.size());
  for (std::size_t m = 0; m < problem.n_servers; ++m) free[m] = state.free_bytes(m);
  for (std::size_t i = 0; i < hosts.size(); ++i)
    hosts[i] = state.hosts(i / problem.n_experts, i % problem.n_experts);
  for (const auto& item : left_over) {
    auto& mask = hosts[item.layer * problem.n_experts + item.expert];
    std::size_t best = problem.n_servers;
    for (std::size_t m = 0; m < problem.n_servers; ++m)
      if (!((mask >> m) & 1u) && (best == problem.n_servers || free[m] > free[best])) best = m;
    if (best == problem.n_servers) continue;
    free[best] -= problem.bytes(item.layer, item.expert);
    mask |= server_bit(best);
  }
  for (auto& bytes : free) bytes = std::max<std::int64_t>(0, -bytes);
  return free;
}

}  // namespace

std::string lacking_servers(const packing_problem& problem,
                            const std::vector<std::int64_t>& missing) {
  constexpr std::size_t most_named = 8;
  std::vector<std::size_t> lacking;
  for (std::size_t m = 0; m < missing.size(); ++m)
    if (missing[m] > 0) lacking.push_back(m);
  std::string named;
  for (std::size_t i = 0; i < std::min(most_named, lacking.size()); ++i)
    named += fmt::format("{}{} has {} bytes for experts and lacks {}", i == 0 ? "" : "; ",
                         problem.server_names[lacking[i]], problem.limit_bytes[lacking[i]],
                         missing[lacking[i]]);
  if (lacking.size() > most_named)
    named += fmt::format("; {} others lack some too", lacking.size() - most_named);
  return named;
}

namespace {

error too_small(const packing& state, const std::vector<expert_of_layer>& left_over,
                std::size_t copies, errc code) {
  const auto& problem = state.problem();
  const auto missing = missing_bytes(state, left_over);
  const auto servers = lacking_servers(problem, missing);
  const auto n_items = problem.expert_bytes.size() * copies;
  return {code,
          fmt::format("found room for {} of {} experts to place, expected room for all ({} of "
                      "each); {} bytes are missing in total ({}); add memory, reserve less "
                      "for KV rows, or ask for fewer copies",
                      n_items - left_over.size(), n_items,
                      copies == 1 ? std::string("one copy") : fmt::format("{} copies", copies),
                      std::accumulate(missing.begin(), missing.end(), std::int64_t{0}), servers)};
}

/// The state of pack_exactly's search.
class packing_search {
 public:
  packing_search(const packing_problem& problem, std::size_t copies, std::size_t max_nodes)
      : problem_(problem), copies_(copies), nodes_left_(max_nodes), free_(problem.limit_bytes) {
    for (std::size_t i = 0; i < problem.expert_bytes.size(); ++i)
      for (std::size_t c = 0; c < copies; ++c) items_.push_back(i);
    std::stable_sort(items_.begin(), items_.end(), [&](auto a, auto b) {
      return problem.expert_bytes[a] != problem.expert_bytes[b]
                 ? problem.expert_bytes[a] > problem.expert_bytes[b]
                 : a < b;
    });
    server_.assign(items_.size(), 0);
    for (const auto i : items_) left_ += problem.expert_bytes[i];
  }

  packing_outcome run() {
    if (place(0)) return packing_outcome::packed;
    return nodes_left_ == 0 ? packing_outcome::cut_off : packing_outcome::infeasible;
  }

  void write(packing& state) const {
    state.clear();
    for (std::size_t i = 0; i < items_.size(); ++i)
      state.place(server_[i], items_[i] / problem_.n_experts, items_[i] % problem_.n_experts,
                  placement_reason::repair, 0);
  }

 private:
  bool place(std::size_t position) {
    if (position == items_.size()) return true;
    if (nodes_left_ == 0) return false;
    --nodes_left_;
    if (std::accumulate(free_.begin(), free_.end(), std::int64_t{0}) < left_) return false;
    // With single copies only the free bytes matter, not which server has them.
    std::vector<std::int64_t> key;
    if (copies_ == 1) {
      key = free_;
      std::sort(key.begin(), key.end());
      key.push_back(static_cast<std::int64_t>(position));
      if (failed_.contains(key)) return false;
    }
    const auto bytes = problem_.expert_bytes[items_[position]];
    const bool further_copy = position > 0 && items_[position - 1] == items_[position];
    for (std::size_t m = further_copy ? server_[position - 1] + 1 : 0; m < free_.size(); ++m) {
      if (free_[m] < bytes) continue;
      if (copies_ == 1 && std::find(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(m),
                                    free_[m]) != free_.begin() + static_cast<std::ptrdiff_t>(m))
        continue;
      free_[m] -= bytes;
      left_ -= bytes;
      server_[position] = m;
      if (place(position + 1)) return true;
      free_[m] += bytes;
      left_ += bytes;
    }
    if (copies_ == 1 && nodes_left_ > 0) failed_.insert(std::move(key));
    return false;
  }

  const packing_problem& problem_;
  std::size_t copies_;
  std::size_t nodes_left_;
  std::vector<std::int64_t> free_;
  std::vector<std::size_t> items_;   ///< Flat expert index, largest first, copies adjacent.
  std::vector<std::size_t> server_;  ///< [items] where each is
  std::int64_t left_ = 0;            ///< Bytes of the items not placed yet.
  std::set<std::vector<std::int64_t>> failed_;
};

}  // namespace

packing::packing(const packing_problem& problem) : problem_(&problem) {
  clear();
}

void packing::clear() {
  hosts_.assign(problem_->expert_bytes.size(), 0);
  used_.assign(problem_->n_servers, 0);
  placed_.clear();
}

std::size_t packing::group_count(std::size_t server, std::size_t layer, std::size_t group) const {
  const auto& members = problem_->grouping[layer].groups[group].members;
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(),
                                                [&](auto k) { return hosts(server, layer, k); }));
}

void packing::place(std::size_t server, std::size_t layer, std::size_t expert,
                    placement_reason reason, double score) {
  auto& mask = hosts_[layer * problem_->n_experts + expert];
  ORDERMOE_CHECK(!((mask >> server) & 1u), "an expert placed twice on a server");
  mask |= server_bit(server);
  used_[server] += problem_->bytes(layer, expert);
  placed_.push_back({server_id{server}, layer_id{layer}, expert_id{expert}, reason, score});
}

void packing::move(std::size_t from, std::size_t to, std::size_t layer, std::size_t expert) {
  auto& mask = hosts_[layer * problem_->n_experts + expert];
  ORDERMOE_CHECK(((mask >> from) & 1u) && !((mask >> to) & 1u),
                 "an expert moved from where it is not, or to where it is");
  mask ^= server_bit(from) | server_bit(to);
  used_[from] -= problem_->bytes(layer, expert);
  used_[to] += problem_->bytes(layer, expert);
  const auto entry = std::find_if(placed_.begin(), placed_.end(), [&](const placed_expert& placed) {
    return placed.server.index() == from && placed.layer.index() == layer &&
           placed.expert.index() == expert;
  });
  entry->server = server_id{to};
  entry->reason = placement_reason::repair;
}

server_mask memory_feasible(const packing& state, std::size_t layer, std::size_t expert) {
  server_mask feasible = 0;
  for (std::size_t m = 0; m < state.problem().n_servers; ++m)
    if (state.free_bytes(m) >= state.problem().bytes(layer, expert) &&
        !state.hosts(m, layer, expert))
      feasible |= server_bit(m);
  return feasible;
}

double packing_score(const packing& state, std::size_t server, std::size_t layer,
                     std::size_t expert, double lambda_load) {
  const auto& problem = state.problem();
  const auto group = problem.grouping[layer].group_of[expert];
  return lambda_load * static_cast<double>(state.used_bytes(server)) /
             static_cast<double>(problem.limit_bytes[server]) +
         (1 - lambda_load) * static_cast<double>(state.group_count(server, layer, group));
}

std::size_t lowest_score(const packing& state, server_mask feasible, std::size_t layer,
                         std::size_t expert, double lambda_load) {
  const auto servers = servers_in(feasible);
  ORDERMOE_CHECK(!servers.empty(), "no feasible server to choose from");
  std::size_t best = servers.front();
  double best_score = packing_score(state, best, layer, expert, lambda_load);
  for (const auto m : servers) {
    const double score = packing_score(state, m, layer, expert, lambda_load);
    if (score < best_score) {
      best = m;
      best_score = score;
    }
  }
  return best;
}

bool group_is_covered(const packing& state, std::size_t server, std::size_t layer,
                      std::size_t group) {
  return state.group_count(server, layer, group) > 0;
}

double redundancy_benefit(const packing& state, std::size_t server, std::size_t layer,
                          std::size_t expert) {
  const auto& problem = state.problem();
  const auto& grouping = problem.grouping[layer];
  if (group_is_covered(state, server, layer, grouping.group_of[expert])) return 0;
  return problem.arrival_share[server] * grouping.importance[expert] /
         static_cast<double>(problem.bytes(layer, expert));
}

bool make_room(packing& state, std::size_t layer, std::size_t expert, placement_reason reason) {
  /// `incoming` shall arrive at `server`; it comes from the server of the node `parent`.
  struct arrival {
    std::size_t server, incoming;
    std::ptrdiff_t parent;
  };
  const auto& problem = state.problem();
  const auto wanted = layer * problem.n_experts + expert;
  std::vector<std::size_t> by_size(problem.expert_bytes.size());
  std::iota(by_size.begin(), by_size.end(), std::size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(), [&](auto a, auto b) {
    return problem.expert_bytes[a] < problem.expert_bytes[b];
  });
  const auto hosted = [&](std::size_t server, std::size_t flat) {
    return state.hosts(server, flat / problem.n_experts, flat % problem.n_experts);
  };

  std::vector<arrival> queue;
  // For a server only the size of what arrives matters, not what it is.
  std::set<std::pair<std::size_t, std::int64_t>> reached;
  const auto arrive = [&](std::size_t server, std::size_t incoming, std::ptrdiff_t parent) {
    if (hosted(server, incoming)) return;
    for (auto step = parent; step >= 0; step = queue[static_cast<std::size_t>(step)].parent)
      if (queue[static_cast<std::size_t>(step)].server == server) return;
    if (reached.emplace(server, problem.expert_bytes[incoming]).second)
      queue.push_back({server, incoming, parent});
  };
  std::vector<std::size_t> servers(problem.n_servers);
  std::iota(servers.begin(), servers.end(), std::size_t{0});
  std::stable_sort(servers.begin(), servers.end(),
                   [&](auto a, auto b) { return state.free_bytes(a) > state.free_bytes(b); });
  for (const auto m : servers) arrive(m, wanted, -1);
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const auto node = queue[head];
    const auto room = state.free_bytes(node.server);
    const auto needed = problem.expert_bytes[node.incoming];
    if (room >= needed) {
      for (auto at = static_cast<std::ptrdiff_t>(head); at >= 0;) {
        const auto& step = queue[static_cast<std::size_t>(at)];
        if (step.parent < 0)
          state.place(step.server, layer, expert, reason, 0);
        else
          state.move(queue[static_cast<std::size_t>(step.parent)].server, step.server,
                     step.incoming / problem.n_experts, step.incoming % problem.n_experts);
        at = step.parent;
      }
      return true;
    }
    for (const auto outgoing : by_size) {
      if (!hosted(node.server, outgoing) || room + problem.expert_bytes[outgoing] < needed)
        continue;
      for (const auto m : servers) arrive(m, outgoing, static_cast<std::ptrdiff_t>(head));
    }
  }
  return false;
}

packing_outcome pack_exactly(packing& state, std::size_t copies, std::size_t max_nodes) {
  packing_search search(state.problem(), copies, max_nodes);
  const auto outcome = search.run();
  if (outcome == packing_outcome::packed) search.write(state);
  return outcome;
}

result<void> deploy_mandatory(packing& state, const placement_options& options) {
  const auto& problem = state.problem();
  std::vector<expert_of_layer> left_over;
  for (std::size_t l = 0; l < problem.n_layers; ++l) {
    std::vector<std::size_t> waiting;
    for (const auto j : by_demand(problem, l)) {
      if (const auto feasible = memory_feasible(state, l, j); feasible != 0)
        place_best(state, feasible, {l, j}, options, placement_reason::mandatory);
      else
        waiting.push_back(j);
    }
    // Line 23 asks for the server with the largest remaining memory, which make_room tries first.
    // Nothing was freed since the expert found no server, so something has to move.
    for (const auto j : waiting)
      if (!make_room(state, l, j, placement_reason::waiting_list)) left_over.push_back({l, j});
  }
  const auto more = place_copies(state, options);
  left_over.insert(left_over.end(), more.begin(), more.end());
  if (left_over.empty()) return {};

  const auto copies = options.min_copies;
  const auto fail = [&](errc code) { return too_small(state, left_over, copies, code); };
  // Chains of moves decide for experts of one size; only mixed sizes are worth a search.
  if (of_one_size(problem)) return fail(errc::infeasible);
  switch (pack_exactly(state, copies)) {
    case packing_outcome::packed:
      return {};
    case packing_outcome::infeasible:
      return fail(errc::infeasible);
    case packing_outcome::cut_off:
      return fail(errc::timed_out);
  }
  return {};
}

void deploy_redundant(packing& state) {
  struct candidate {
    double benefit;
    std::size_t server, layer, expert;
  };
  // A benefit only ever falls to zero, when its group is covered, and free memory only shrinks: one
  // pass in falling order of the first benefits takes what a new search for the maximum would take
  // each time.
  const auto& problem = state.problem();
  std::vector<candidate> candidates;
  for (std::size_t m = 0; m < problem.n_servers; ++m)
    for (std::size_t l = 0; l < problem.n_layers; ++l)
      for (std::size_t j = 0; j < problem.n_experts; ++j)
        if (const double benefit = redundancy_benefit(state, m, l, j); benefit > 0)
          candidates.push_back({benefit, m, l, j});
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.benefit > b.benefit; });
  for (const auto& [benefit, m, l, j] : candidates) {
    if (group_is_covered(state, m, l, problem.grouping[l].group_of[j])) continue;
    if (state.free_bytes(m) < problem.bytes(l, j)) continue;  // Eq. (35)
    state.place(m, l, j, placement_reason::replica, benefit);
  }
}

result<packing_problem> make_packing_problem(std::size_t n_layers, std::size_t n_experts,
                                             const cluster& servers, const cost_profile& costs,
                                             std::size_t min_copies) {
  const auto n = servers.size();
  if (n == 0 || n > 64)
    return error{
        errc::unsupported,
        fmt::format("cluster: found {} servers, expected 1 to 64; use a smaller cluster", n)};
  if (min_copies == 0 || min_copies > n)
    return error{
        min_copies == 0 ? errc::usage : errc::infeasible,
        fmt::format("min_copies: found {}, expected 1 to {}, the servers of the cluster; ask "
                    "for another number of copies",
                    min_copies, n)};
  if (costs.expert_bytes <= 0)
    return error{errc::out_of_range,
                 fmt::format("cost profile {}: found expert_bytes {}, expected more than 0",
                             costs.name, costs.expert_bytes)};
  packing_problem problem;
  problem.n_servers = n;
  problem.n_layers = n_layers;
  problem.n_experts = n_experts;
  problem.expert_bytes.assign(n_layers * n_experts, costs.expert_bytes);
  std::string missing;
  for (const auto& server : servers.servers) {
    const auto limit = expert_memory_bytes(server, costs, n_layers);
    if (limit < 0)
      missing +=
          fmt::format("{}{} lacks {} bytes", missing.empty() ? "" : "; ", server.name, -limit);
    problem.limit_bytes.push_back(limit);
    problem.arrival_share.push_back(server.arrival_share);
    problem.server_names.push_back(server.name);
  }
  if (!missing.empty())
    return error{
        errc::infeasible,
        fmt::format("found servers too small for the parts that every server holds and the "
                    "memory reserved for KV rows: {}; add memory or reserve less",
                    missing)};
  return problem;
}

}  // namespace ordermoe::planning
