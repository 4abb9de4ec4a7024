#include "planning/strategies/strategies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "planning/cost_model.hpp"
#include "planning/placement.hpp"
#include "planning/search/search.hpp"

namespace ordermoe::planning {

namespace {

loss_units units_of_nats(double nats) {
  if (std::isinf(nats)) return unbounded_budget;
  return static_cast<loss_units>(std::floor(nats * units_per_loss));
}

/// Nats in the paper's own loss units: divided by the mean measured damage of one unit of eq.
/// (18)'s loss.
double paper_units_of_nats(const profile& experts, double nats) {
  if (std::isinf(nats)) return nats;
  double damage = 0;
  for (const auto& layer : experts.layers)
    damage += layer.damage[static_cast<std::size_t>(loss_metric::router_logit)] /
              static_cast<double>(experts.n_layers);
  return damage > 0 ? nats / damage : 0;
}

selection_policy exact_policy(std::string name) {
  selection_policy policy;
  policy.name = std::move(name);
  policy.candidates = candidate_rule::exact;
  policy.horizon = 1;
  policy.omega_time = 1;
  policy.omega_quality = 0;
  policy.price_attention = true;
  policy.budget_bins = 1;
  return policy;
}

selection_policy substitute_policy(std::string name, candidate_rule candidates) {
  auto policy = exact_policy(std::move(name));
  policy.candidates = candidates;
  policy.metric = loss_metric::token_gate;
  policy.calibrated = true;
  policy.gates = gating::executed;
  policy.distinct = true;
  return policy;
}

}  // namespace

double nats_of_percent(double percent) {
  return percent < 0 ? std::numeric_limits<double>::infinity() : std::log1p(percent / 100.0);
}

double percent_of_nats(double nats) {
  return 100 * std::expm1(nats);
}

std::vector<std::string> strategy_names() {
  return {"exact", "layer-shards", "local-only", "router-restricted", "paper", "ordermoe"};
}

double expected_dispatch_ns(const profile& experts, const plan& placed, const cluster& servers,
                            const cost_profile& costs) {
  const auto prices = make_cost_model(servers, costs);
  const placement_index index(placed);
  double total = 0;
  for (std::size_t a = 0; a < servers.size(); ++a) {
    double position = 0;
    for (std::size_t l = 0; l < experts.n_layers; ++l) {
      for (const auto& set : experts.layers[l].sets) {
        std::map<std::size_t, double> busy;
        for (const auto expert : set.experts) {
          std::size_t best = 0;
          double best_ns = std::numeric_limits<double>::infinity();
          for (std::size_t m = 0; m < servers.size(); ++m) {
            const auto ns = prices.hidden(a, m) + prices.expert_ns[m] + prices.hidden(m, a);
            if (index.hosts(m, l, expert) && ns < best_ns) {
              best = m;
              best_ns = ns;
            }
          }
          busy[best] += prices.expert_ns[best];
        }
        double step = 0;
        for (const auto& [m, ns] : busy)
          step = std::max(step, prices.hidden(a, m) + ns + prices.hidden(m, a));
        position += set.probability * step;
      }
      position += prices.attention_ns[a];
    }
    total += servers.servers[a].arrival_share * (position + prices.head_ns[a]);
  }
  return total;
}

cluster servers_for(std::string_view name, cluster servers) {
  if (name != "ordermoe")
    for (auto& server : servers.servers) server.expert_precision = precision::stored;
  return servers;
}

namespace {

/// Servers that keep their experts as a plan made with these options does.
cluster planned_servers(std::string_view name, const cluster& servers,
                        const strategy_options& options) {
  if (options.plan && options.plan->n_servers == servers.size())
    return with_precisions(servers, *options.plan);
  auto kept = servers_for(name, servers);
  if (options.expert_precision.size() == servers.size())
    for (std::size_t m = 0; m < servers.size(); ++m)
      kept.servers[m].expert_precision = options.expert_precision[m];
  return kept;
}

/// As few servers as can hold a copy of every expert as the model has it, those with the most
/// memory, keep theirs so, and the others keep copies of this precision. Empty where that leaves
/// none of them.
std::vector<precision> coarser_where_small(const profile& experts, const cluster& servers,
                                           const cost_profile& costs, precision coarse) {
  std::vector<std::size_t> by_room(servers.size());
  std::iota(by_room.begin(), by_room.end(), std::size_t{0});
  const auto room = [&](std::size_t m) {
    return std::max<std::int64_t>(0,
                                  expert_memory_bytes(servers.servers[m], costs, experts.n_layers));
  };
  std::ranges::stable_sort(by_room, [&](auto a, auto b) { return room(a) > room(b); });
  std::vector<precision> kept(servers.size(), precision::stored);
  auto missing = static_cast<std::int64_t>(experts.n_layers * experts.n_experts);
  bool any = false;
  for (const auto m : by_room) {
    if (missing <= 0) {
      kept[m] = coarse;
      any = true;
    } else if (costs.expert_bytes > 0) {
      missing -= room(m) / costs.expert_bytes;
    }
  }
  return any && missing <= 0 ? kept : std::vector<precision>();
}

}  // namespace

result<strategy> make_strategy(std::string_view name, const profile& experts,
                               const cluster& cluster_servers, const cost_profile& costs,
                               const strategy_options& options) {
  const auto servers = planned_servers(name, cluster_servers, options);
  strategy made;
  made.name = std::string(name);
  const auto n_servers = servers.size();
  const auto n_layers = experts.n_layers;
  const auto nats = nats_of_percent(options.quality_percent);
  placement_options placement;
  placement.seed = options.seed;

  const auto expert_parallel_plan = [&]() -> result<plan> {
    auto by_popularity = place_by_popularity(experts, servers, costs, placement);
    auto by_similarity = place_by_similarity(experts, servers, costs, placement);
    if (!by_popularity) return by_similarity;
    if (!by_similarity) return by_popularity;
    const bool popular = expected_dispatch_ns(experts, *by_popularity, servers, costs) <=
                         expected_dispatch_ns(experts, *by_similarity, servers, costs);
    auto& chosen = popular ? *by_popularity : *by_similarity;
    chosen.residence = access_residency(n_servers, n_layers);
    return std::move(chosen);
  };
  const auto own_plan = [&]() -> result<plan> {
    if (options.plan) return *options.plan;
    if (name == "layer-shards") return place_layer_shards(experts, servers, costs);
    if (name == "paper") return place_by_similarity(experts, servers, costs, placement);
    if (name == "local-only") {
      auto placed = place_by_similarity(experts, servers, costs, placement);
      if (placed) placed->residence = access_residency(n_servers, n_layers);
      return placed;
    }
    if (name == "ordermoe") {
      search_options search;
      search.quality_nats =
          options.planned_budget_scale == 0 ? 0 : nats * options.planned_budget_scale;
      search.seed = options.seed;
      search.n_steps = options.search_steps;
      search.concurrency = options.concurrency;
      search.should_stop = options.should_stop;
      return place_by_search(experts, servers, costs, search);
    }
    return expert_parallel_plan();
  };

  if (name == "exact" || name == "layer-shards") {
    made.policy = exact_policy(made.name);
  } else if (name == "local-only") {
    made.policy = substitute_policy(made.name, candidate_rule::local_only);
    made.token_budget = units_of_nats(nats);
    made.has_budget = true;
  } else if (name == "router-restricted") {
    made.policy = substitute_policy(made.name, candidate_rule::router_restricted);
    made.token_budget = unbounded_budget;
  } else if (name == "paper") {
    made.policy.name = made.name;
    made.policy.residence =
        experts.top_k == 1 ? residence_choice::with_slot : residence_choice::free;
    made.token_budget = units_of_nats(paper_units_of_nats(experts, nats));
    made.continue_in_place = false;
    made.has_budget = true;
  } else if (name == "ordermoe") {
    made.policy = substitute_policy(made.name, candidate_rule::any);
    made.policy.horizon = 0;
    made.token_budget = units_of_nats(nats);
    made.allowance_factor = 16;
    made.policy.price_follows_budget = true;
    made.tunes_price = true;
    made.has_budget = true;
  } else {
    return error{errc::usage, fmt::format("strategy '{}' is not known; expected one of {}", name,
                                          fmt::join(strategy_names(), ", "))};
  }
  auto placed = own_plan();
  if (!placed) return placed.error();
  made.plan = std::move(*placed);
  if (options.horizon) made.policy.horizon = *options.horizon;
  if (options.residency) {
    if (*options.residency == "access")
      made.plan.residence = access_residency(n_servers, n_layers);
    else if (*options.residency == "roaming")
      made.plan.residence = roaming_residency(n_servers, n_layers);
    else
      return error{errc::usage,
                   fmt::format("residency '{}' is not known; expected access or roaming",
                               *options.residency)};
  }
  if (!options.plan) note_precisions(made.plan, servers);
  if (auto valid = validate(made.plan, servers, costs); !valid) return valid.error();
  return made;
}

std::vector<strategy_options> plan_variants(std::string_view name, const profile& experts,
                                            const cluster& servers, const cost_profile& costs,
                                            const strategy_options& options) {
  std::vector<strategy_options> variants{options};
  if (options.plan) return variants;
  const auto add_plan = [&](result<plan> placed, bool at_access) {
    if (!placed) return;
    if (at_access) placed->residence = access_residency(servers.size(), experts.n_layers);
    variants.push_back(options);
    variants.back().plan = std::move(*placed);
  };
  const auto add_shards = [&](shard_objective objective, shard_return way_back) {
    layer_shard_options shards;
    shards.objective = objective;
    shards.way_back = way_back;
    add_plan(place_layer_shards(experts, servers, costs, shards), false);
  };
  if (name == "exact") {
    variants.clear();  // its own plan is one of these
    placement_options placement;
    for (std::uint64_t i = 0; i < 3; ++i) {
      placement.seed = options.seed + i;
      add_plan(place_by_popularity(experts, servers, costs, placement), true);
    }
    add_plan(place_by_similarity(experts, servers, costs, placement), true);
    if (variants.empty()) variants.push_back(options);
  } else if (name == "layer-shards") {
    add_shards(shard_objective::latency, shard_return::direct);
    add_shards(shard_objective::throughput, shard_return::by_access);
    add_shards(shard_objective::throughput, shard_return::direct);
  } else if (name == "ordermoe") {
    const auto add_copies = [&](double scale) {
      if (!options.choose_precision || experts.layers.empty()) return;
      for (const auto& copy : experts.layers.front().copies) {
        auto kept = coarser_where_small(experts, servers, costs, copy.kept);
        if (kept.empty()) continue;
        variants.push_back(options);
        variants.back().planned_budget_scale = scale;
        variants.back().expert_precision = std::move(kept);
      }
    };
    if (options.quality_percent > 0) {
      for (const double scale : {0.5, 0.25, 0.0}) {
        variants.push_back(options);
        variants.back().planned_budget_scale = scale;
      }
      for (const double scale : {1.0, 0.5}) add_copies(scale);
      return variants;
    }
    if (options.quality_percent < 0) add_copies(1);
    for (const double load : {0.5, 2.0}) {
      variants.push_back(options);
      variants.back().concurrency = std::max(1.0, load * options.concurrency);
    }
    add_shards(shard_objective::latency, shard_return::direct);
    add_shards(shard_objective::throughput, shard_return::direct);
  }
  return variants;
}

}  // namespace ordermoe::planning
