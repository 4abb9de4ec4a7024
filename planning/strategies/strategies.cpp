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
#include "planning/strategies/left_out.hpp"

namespace ordermoe::planning {

namespace {

loss_units units_of_nats(double nats) {
  if (std::isinf(nats)) return unbounded_budget;
  return static_cast<loss_units>(std::floor(nats * units_per_loss));
}

/// Nats in the paper's own loss units: divided by the mean measured damage of one unit of eq.
/// (18)'s loss.
double paper_units_of_nats(const profile& profile, double nats) {
  if (std::isinf(nats)) return nats;
  double damage = 0;
  for (const auto& layer : profile.layers)
    damage += layer.damage[static_cast<std::size_t>(loss_metric::router_logit)] /
              static_cast<double>(profile.n_layers);
  return damage > 0 ? nats / damage : 0;
}

}  // namespace

double expected_dispatch_ns(const profile& profile, const plan& placed, const cluster& servers,
                            const cost_profile& costs) {
  const auto prices = make_cost_model(servers, costs);
  const placement_index index(placed);
  double total = 0;
  for (std::size_t a = 0; a < servers.size(); ++a) {
    double position = 0;
    for (std::size_t l = 0; l < profile.n_layers; ++l) {
      for (const auto& set : profile.layers[l].sets) {
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

namespace {

// ------------------------------------------------------------------------------------- policies

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

/// As published: the defaults of selection_policy.
selection_policy paper_policy(std::size_t top_k) {
  selection_policy policy;
  policy.residence = top_k == 1 ? residence_choice::with_slot : residence_choice::free;
  return policy;
}

selection_policy ordermoe_policy(std::size_t) {
  auto policy = substitute_policy("ordermoe", candidate_rule::any);
  policy.horizon = 0;
  policy.price_follows_budget = true;
  return policy;
}

// -------------------------------------------------------------------------------------- budgets

loss_units no_budget(const profile&, double) {
  return 0;
}
loss_units no_limit(const profile&, double) {
  return unbounded_budget;
}
loss_units budget_of_nats(const profile&, double nats) {
  return units_of_nats(nats);
}
loss_units paper_budget(const profile& profile, double nats) {
  return units_of_nats(paper_units_of_nats(profile, nats));
}

// ---------------------------------------------------------------------------------------- plans

placement_options seeded(const planning_task& task, std::uint64_t offset = 0) {
  placement_options placement;
  placement.seed = task.options.seed + offset;
  return placement;
}

result<plan> place_as_published(const planning_task& task) {
  return place_by_similarity(task.profile, task.servers, task.costs, seeded(task));
}

/// Attention stays where its user is.
result<plan> at_access(result<plan> placed, const planning_task& task) {
  if (placed) placed->residence = access_residency(task.servers.size(), task.profile.n_layers);
  return placed;
}

result<plan> place_similar_at_access(const planning_task& task) {
  return at_access(place_as_published(task), task);
}

/// Expert parallelism: by popularity or by similarity, whichever costs less to reach.
result<plan> place_expert_parallel(const planning_task& task) {
  auto popular = place_by_popularity(task.profile, task.servers, task.costs, seeded(task));
  auto similar = place_by_similarity(task.profile, task.servers, task.costs, seeded(task));
  if (!popular || !similar) return popular ? std::move(popular) : std::move(similar);
  const auto dispatch_ns = [&](const plan& placed) {
    return expected_dispatch_ns(task.profile, placed, task.servers, task.costs);
  };
  return at_access(
      dispatch_ns(*popular) <= dispatch_ns(*similar) ? std::move(popular) : std::move(similar),
      task);
}

result<plan> place_shards(const planning_task& task) {
  return place_layer_shards(task.profile, task.servers, task.costs);
}

result<plan> place_searched(const planning_task& task) {
  const auto& options = task.options;
  search_options search;
  search.quality_nats =
      options.planned_budget_scale == 0
          ? 0
          : nats_of_percent(options.quality_percent) * options.planned_budget_scale;
  search.seed = options.seed;
  search.n_steps = options.search_steps;
  search.concurrency = options.concurrency;
  search.should_stop = options.should_stop;
  return place_by_search(task.profile, task.servers, task.costs, search);
}

/// As few servers as can hold a copy of every expert as the model has it, those with the most
/// memory, keep theirs so, and the others keep copies of this precision. Empty where that leaves
/// none of them.
std::vector<precision> coarser_where_small(const profile& profile, const cluster& servers,
                                           const cost_profile& costs, precision coarse) {
  std::vector<std::size_t> by_room(servers.size());
  std::iota(by_room.begin(), by_room.end(), std::size_t{0});
  const auto room = [&](std::size_t m) {
    return std::max<std::int64_t>(0,
                                  expert_memory_bytes(servers.servers[m], costs, profile.n_layers));
  };
  std::ranges::stable_sort(by_room, [&](auto a, auto b) { return room(a) > room(b); });
  std::vector<precision> kept(servers.size(), precision::stored);
  auto missing = static_cast<std::int64_t>(profile.n_layers * profile.n_experts);
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

// ------------------------------------------------------------------------------------- variants

void add_plan(const planning_task& task, result<plan> placed,
              std::vector<strategy_options>& variants) {
  if (!placed) return;
  variants.push_back(task.options);
  variants.back().plan = std::move(*placed);
}

void add_shards(const planning_task& task, shard_objective objective, shard_return way_back,
                std::vector<strategy_options>& variants) {
  layer_shard_options shards;
  shards.objective = objective;
  shards.way_back = way_back;
  add_plan(task, place_layer_shards(task.profile, task.servers, task.costs, shards), variants);
}

/// Popularity placements of three seeds and the similarity placement; the strategy's own plan is
/// one of them.
void add_exact_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  std::vector<strategy_options> all;
  for (std::uint64_t i = 0; i < 3; ++i)
    add_plan(task,
             at_access(place_by_popularity(task.profile, task.servers, task.costs, seeded(task, i)),
                       task),
             all);
  // The same seed as the last popularity placement, like every published figure.
  add_plan(
      task,
      at_access(place_by_similarity(task.profile, task.servers, task.costs, seeded(task, 2)), task),
      all);
  if (!all.empty()) variants = std::move(all);
}

void add_shard_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  add_shards(task, shard_objective::latency, shard_return::direct, variants);
  add_shards(task, shard_objective::throughput, shard_return::by_access, variants);
  add_shards(task, shard_objective::throughput, shard_return::direct, variants);
}

/// Searched with coarser copies where there is little memory.
void add_copies(const planning_task& task, double scale, std::vector<strategy_options>& variants) {
  if (!task.options.choose_precision || task.profile.layers.empty()) return;
  for (const auto& copy : task.profile.layers.front().copies) {
    auto kept = coarser_where_small(task.profile, task.servers, task.costs, copy.kept);
    if (kept.empty()) continue;
    variants.push_back(task.options);
    variants.back().planned_budget_scale = scale;
    variants.back().expert_precision = std::move(kept);
  }
}

void add_searched_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  const auto& options = task.options;
  if (options.quality_percent > 0) {
    for (const double scale : {0.5, 0.25, 0.0}) {
      variants.push_back(options);
      variants.back().planned_budget_scale = scale;
    }
    for (const double scale : {1.0, 0.5}) add_copies(task, scale, variants);
    return;
  }
  if (options.quality_percent < 0) add_copies(task, 1, variants);
  for (const double load : {0.5, 2.0}) {
    variants.push_back(options);
    variants.back().concurrency = std::max(1.0, load * options.concurrency);
  }
  add_shards(task, shard_objective::latency, shard_return::direct, variants);
  add_shards(task, shard_objective::throughput, shard_return::direct, variants);
}

// ---------------------------------------------------------------------------------------- table

constexpr strategy_record records[] = {
    {.name = "exact",
     .sentence = "expert parallelism: attention where the user is, every target on a server that "
                 "hosts it",
     .policy = [](std::size_t) { return exact_policy("exact"); },
     .place = place_expert_parallel,
     .add_variants = add_exact_variants,
     .token_budget = no_budget},
    {.name = "layer-shards",
     .sentence = "a pipeline: whole layers on servers one after another",
     .policy = [](std::size_t) { return exact_policy("layer-shards"); },
     .place = place_shards,
     .add_variants = add_shard_variants,
     .token_budget = no_budget},
    {.name = "local-only",
     .sentence =
         "substitutes on the token's server within the budget; targets elsewhere only where "
         "there are none",
     .policy =
         [](std::size_t) { return substitute_policy("local-only", candidate_rule::local_only); },
     .place = place_similar_at_access,
     .add_variants = nullptr,
     .token_budget = budget_of_nats,
     .has_budget = true},
    {.name = "router-restricted",
     .sentence = "the router's best among the experts of the token's server, whatever it costs",
     .policy =
         [](std::size_t) {
           return substitute_policy("router-restricted", candidate_rule::router_restricted);
         },
     .place = place_expert_parallel,
     .add_variants = nullptr,
     .token_budget = no_limit,
     .keeps_budgets = false},
    {.name = "paper",
     .sentence = "the published algorithms: similarity placement and look-ahead selection",
     .policy = paper_policy,
     .place = place_as_published,
     .add_variants = nullptr,
     .token_budget = paper_budget,
     .has_budget = true,
     .continue_in_place = false},
    {.name = "ordermoe",
     .sentence = "searched placement and selection that looks ahead to the end of the position",
     .policy = ordermoe_policy,
     .place = place_searched,
     .add_variants = add_searched_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true,
     .uses_coarser_copies = true},
};

/// Servers that keep their experts as a plan made with these options does.
cluster planned_servers(const strategy_record& record, const cluster& servers,
                        const strategy_options& options) {
  if (options.plan && options.plan->n_servers == servers.size())
    return with_precisions(servers, *options.plan);
  auto kept = servers;
  if (!record.uses_coarser_copies)
    for (auto& server : kept.servers) server.expert_precision = precision::stored;
  if (options.expert_precision.size() == servers.size())
    for (std::size_t m = 0; m < servers.size(); ++m)
      kept.servers[m].expert_precision = options.expert_precision[m];
  return kept;
}

result<void> override_residency(plan& placed, const std::string& residency, std::size_t n_servers,
                                std::size_t n_layers, server_mask left_out) {
  if (residency == "access")
    placed.residence = access_residency(n_servers, n_layers);
  else if (residency == "roaming")
    placed.residence = among_others(roaming_residency(n_servers, n_layers), left_out);
  else
    return error{errc::usage,
                 fmt::format("residency '{}' is not known; expected access or roaming", residency)};
  return {};
}

/// As among those that stay, in order.
strategy_options narrowed(const strategy_options& options, std::size_t n_servers) {
  auto narrow = options;
  narrow.without = 0;
  narrow.expert_precision.clear();
  if (options.expert_precision.size() == n_servers)
    for (const auto m : staying(n_servers, options.without))
      narrow.expert_precision.push_back(options.expert_precision[m]);
  return narrow;
}

/// What narrowed() was for those that stay, for all: the others keep experts as they do in the cluster.
strategy_options widened(strategy_options narrow, const planning_task& task) {
  const auto left_out = task.options.without;
  narrow.without = left_out;
  if (narrow.plan) narrow.plan = widened(*narrow.plan, task.servers, task.costs, left_out);
  if (narrow.expert_precision.empty()) return narrow;
  std::vector<precision> wide;
  for (const auto& server : task.servers.servers) wide.push_back(server.expert_precision);
  const auto stay = staying(task.servers.size(), left_out);
  for (std::size_t i = 0; i < stay.size(); ++i) wide[stay[i]] = narrow.expert_precision[i];
  narrow.expert_precision = std::move(wide);
  return narrow;
}

result<plan> place(const strategy_record& record, const planning_task& task) {
  const auto left_out = task.options.without;
  if (left_out == 0) return record.place(task);
  const auto narrow = without(task.servers, left_out);
  if (narrow.size() == 0)
    return error{errc::infeasible, "no server is left to host experts; leave out fewer"};
  const auto options = narrowed(task.options, task.servers.size());
  auto made = record.place({task.profile, narrow, task.costs, options});
  if (!made) return made;
  return widened(*made, task.servers, task.costs, left_out);
}

}  // namespace

std::span<const strategy_record> strategy_records() {
  return records;
}

const strategy_record* find_strategy(std::string_view name) {
  const auto found = std::ranges::find(records, name, &strategy_record::name);
  return found == std::end(records) ? nullptr : found;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& record : records) names.emplace_back(record.name);
  return names;
}

quality_terms terms_of(const strategy_record& record, double percent) {
  if (!record.keeps_budgets) return {.percent = -1, .is_kept = false};
  return {.percent = record.has_budget ? percent : 0};
}

result<strategy> make_strategy(std::string_view name, const profile& profile,
                               const cluster& cluster_servers, const cost_profile& costs,
                               const strategy_options& options) {
  const auto* record = find_strategy(name);
  if (record == nullptr)
    return error{errc::usage, fmt::format("strategy '{}' is not known; expected one of {}", name,
                                          fmt::join(strategy_names(), ", "))};
  const auto servers = planned_servers(*record, cluster_servers, options);
  strategy made;
  made.name = std::string(name);
  made.policy = record->policy(profile.top_k);
  made.token_budget = record->token_budget(profile, nats_of_percent(options.quality_percent));
  made.quality = terms_of(*record, options.quality_percent);
  if (record->has_budget)
    made.quality.units_per_nat = static_cast<double>(record->token_budget(profile, 1));
  made.continue_in_place = record->continue_in_place;
  made.allowance_factor = record->allowance_factor;
  made.tunes_price = record->tunes_price;
  made.has_budget = record->has_budget;
  auto placed = options.plan ? result<plan>(*options.plan)
                             : place(*record, {profile, servers, costs, options});
  if (!placed) return placed.error();
  made.plan = std::move(*placed);
  if (options.horizon) made.policy.horizon = *options.horizon;
  if (options.residency)
    if (auto done = override_residency(made.plan, *options.residency, servers.size(),
                                       profile.n_layers, options.without);
        !done)
      return done.error();
  if (!options.plan) note_precisions(made.plan, servers);
  if (auto valid = validate(made.plan, servers, costs); !valid) return valid.error();
  return made;
}

std::vector<strategy_options> plan_variants(std::string_view name, const profile& profile,
                                            const cluster& servers, const cost_profile& costs,
                                            const strategy_options& options) {
  const auto* record = find_strategy(name);
  if (options.plan || record == nullptr || record->add_variants == nullptr) return {options};
  const planning_task task{profile, servers, costs, options};
  if (options.without == 0) {
    std::vector<strategy_options> variants{options};
    record->add_variants(task, variants);
    return variants;
  }
  const auto narrow = without(servers, options.without);
  if (narrow.size() == 0) return {options};  // Which says why there is no plan.
  const auto inner = narrowed(options, servers.size());
  std::vector<strategy_options> variants{inner};
  record->add_variants({profile, narrow, costs, inner}, variants);
  for (auto& each : variants) each = widened(std::move(each), task);
  return variants;
}

}  // namespace ordermoe::planning
