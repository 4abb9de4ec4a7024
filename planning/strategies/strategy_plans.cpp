#include "planning/strategies/strategy_plans.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <utility>

#include "planning/entropy_placement.hpp"
#include "planning/infinity.hpp"
#include "planning/layer_ranges.hpp"
#include "planning/placement.hpp"
#include "planning/plan_alike.hpp"
#include "planning/pruning.hpp"
#include "planning/search/plan_estimates.hpp"
#include "planning/search/search.hpp"
#include "planning/shard_chains.hpp"
#include "planning/spread_copies.hpp"
#include "planning/strategies/helpers.hpp"
#include "planning/strategies/pruned_placement.hpp"

namespace ordermoe::planning {

namespace {

placement_options seeded(const planning_task& task, std::uint64_t offset = 0) {
  placement_options placement;
  placement.seed = task.options.seed + offset;
  if (task.options.threshold) placement.theta_min = placement.theta_max = *task.options.threshold;
  placement.replicate = task.options.replicates;
  if (!task.options.disperses) placement.lambda_load = 1;
  return placement;
}

/// Attention stays where its user is.
result<plan> at_access(result<plan> placed, const planning_task& task) {
  if (placed) placed->residence = access_residency(task.servers.size(), task.profile.n_layers);
  return placed;
}

/// Attention runs anywhere.
result<plan> roaming(result<plan> placed, const planning_task& task) {
  if (placed) placed->residence = roaming_residency(task.servers.size(), task.profile.n_layers);
  return placed;
}

result<plan> popular(const planning_task& task, std::uint64_t offset = 0) {
  return place_by_popularity(task.profile, task.servers, task.costs, seeded(task, offset));
}

/// Loads that plans are made for: as many other requests in flight as are expected, a quarter of them, and twice as many.
constexpr double planned_loads[] = {0.25, 1, 2};

/// Requests in flight with so many times the others that are expected.
double loaded(const planning_task& task, double load) {
  return 1 + load * std::max(0.0, task.options.concurrency - 1);
}

result<plan> ranges(const planning_task& task, shard_objective objective, double n_others) {
  layer_range_options options;
  options.objective = objective;
  options.n_others = n_others;
  return place_layer_ranges(task.profile, task.servers, task.costs, options);
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

void add_plan(const planning_task& task, result<plan> placed,
              std::vector<strategy_options>& variants) {
  if (!placed) return;
  auto& variant = variants.emplace_back(task.options);
  variant.plan = std::move(*placed);
  // It was made so.
  variant.threshold.reset();
  variant.replicates = variant.disperses = true;
}

void add_shards(const planning_task& task, shard_objective objective, shard_return way_back,
                std::vector<strategy_options>& variants) {
  layer_shard_options shards;
  shards.objective = objective;
  shards.way_back = way_back;
  add_plan(task, place_layer_shards(task.profile, task.servers, task.costs, shards), variants);
}

/// All users at one server: of so many it is tried.
constexpr std::size_t n_sole_homes = 3;

/// The same experts with attention at one server for everybody.
void add_sole_homes(const planning_task& task, const result<plan>& placed,
                    std::vector<strategy_options>& variants) {
  if (!placed) return;
  for (const auto& where : sole_homes(task.profile, task.servers, task.costs, n_sole_homes)) {
    auto moved = *placed;
    moved.residence = residency_at(where, task.profile.n_layers);
    add_plan(task, std::move(moved), variants);
  }
}

/// The same experts with attention anywhere, and at one server for everybody.
void add_elsewhere(const planning_task& task, const result<plan>& placed,
                   std::vector<strategy_options>& variants) {
  add_plan(task, roaming(placed, task), variants);
  add_sole_homes(task, placed, variants);
}

/// The best of several plans by the search's estimate under a load, each once.
void add_best(const planning_task& task, double load, std::vector<plan> plans, std::size_t n_most,
              std::vector<strategy_options>& variants) {
  search_options under;
  under.concurrency = loaded(task, load);
  under.should_stop = task.options.should_stop;
  const auto rated = estimate_plans(task.profile, plans, task.servers, task.costs, under);
  for (std::size_t i = 0; i < plans.size(); ++i) plans[i].estimated_token_ns = rated[i];
  std::ranges::stable_sort(plans, {}, &plan::estimated_token_ns);
  std::vector<plan> kept;
  for (auto& each : plans) {
    if (kept.size() == n_most) break;
    if (std::ranges::any_of(kept, [&](const plan& other) { return are_alike(other, each); }))
      continue;
    kept.push_back(std::move(each));
    add_plan(task, kept.back(), variants);
  }
}

/// Chains of shards side by side, the best that are found for each load.
std::vector<plan> side_by_side(const planning_task& task, shard_chain_options options,
                               std::size_t n_most) {
  std::vector<plan> found;
  options.should_stop = task.options.should_stop;
  for (const double load : planned_loads) {
    options.concurrency = loaded(task, load);
    auto made = place_shard_chains(task.profile, task.servers, task.costs, options, n_most);
    if (!made) break;
    std::ranges::move(*made, std::back_inserter(found));
  }
  return found;
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

/// `static-pruning` is tried with so many plans for each load and cut.
constexpr std::size_t n_pruned_plans = 3;

/// Numbers of experts to leave out where so many may be. What is found for more is not always faster: it is the best by estimate of other chains.
std::vector<std::size_t> cuts_up_to(std::size_t most) {
  std::vector<std::size_t> cuts{most};
  for (const auto fewer : {most * 3 / 4, most / 2})
    if (fewer > 0 && fewer < cuts.back()) cuts.push_back(fewer);
  return cuts;
}

/// Shares of all experts that stand outside a core, whatever a budget lets a plan do without.
constexpr double fixed_shares[] = {0.125, 0.25, 0.375, 0.5};

std::size_t share_of_experts(const planning_task& task, double share) {
  return static_cast<std::size_t>(
      share * static_cast<double>(task.profile.n_layers * task.profile.n_experts));
}

/// Chains of the experts that are missed most, the others around them: what a budget lets substitution do without most of the time.
/// Where it is known how many `static-pruning` may do without, all of its plans with what they prune beside them, too.
void add_cores(const planning_task& task, std::vector<strategy_options>& variants) {
  constexpr std::size_t n_most = 2;
  if (!validate(task.profile)) return;  // Which the search says.
  const auto order = pruning_order(task.profile);
  const auto add = [&](std::size_t n_outside, double load, std::size_t n_plans) {
    auto made = place_around_core(task.profile, order, task.servers, task.costs, n_outside,
                                  loaded(task, load), n_plans, task.options.should_stop);
    for (std::size_t i = 0; made && i < made->size(); ++i) {
      add_plan(task, std::move((*made)[i]), variants);
      variants.back().cut = n_outside;
    }
  };
  for (const double share : fixed_shares) add(share_of_experts(task, share), 1, n_most);
  if (task.options.cut.value_or(0) == 0) return;
  for (const auto cut : cuts_up_to(*task.options.cut))
    for (const double load : planned_loads) add(cut, load, n_pruned_plans);
}

/// The plans of `edge-llm` that by the search's estimate take not much more than the fastest of `others`: where most experts fit on one
/// server, requests as wholes are as fast as chains.
std::vector<strategy_options> wholes_as_fast(const planning_task& task,
                                             std::span<const strategy_options> others) {
  constexpr std::size_t n_most = 2;
  constexpr double most_of_fastest = 1.2;
  std::vector<strategy_options> wholes;
  add_plan(task, place_whole(task), wholes);
  add_whole_variants(task, wholes);
  std::vector<plan> plans;
  for (const auto& each : wholes) plans.push_back(*each.plan);
  for (const auto& each : others) plans.push_back(*each.plan);
  search_options under;
  under.concurrency = loaded(task, 1);
  under.should_stop = task.options.should_stop;
  const auto rated = estimate_plans(task.profile, plans, task.servers, task.costs, under);
  const auto of_wholes = std::span(rated).first(wholes.size());
  const auto of_others = std::span(rated).subspan(wholes.size());
  const double most = of_others.empty() ? infinity : most_of_fastest * std::ranges::min(of_others);
  std::vector<std::size_t> order(wholes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return of_wholes[i]; });
  std::vector<strategy_options> kept;
  for (const auto i : order) {
    if (kept.size() == n_most || of_wholes[i] > most) break;
    if (std::ranges::none_of(kept,
                             [&](const auto& each) { return are_alike(*each.plan, plans[i]); }))
      kept.push_back(std::move(wholes[i]));
  }
  return kept;
}

}  // namespace

void add_exact_rivals(const planning_task& task, std::vector<strategy_options>& variants) {
  std::vector<strategy_options> found;
  add_chain_variants(task, found);  // Those of `layer-shards`, too.
  add_plan(task, place_ranges(task), found);
  add_range_variants(task, found);
  std::ranges::move(wholes_as_fast(task, found), std::back_inserter(found));
  std::ranges::move(found, std::back_inserter(variants));
}

void add_anywhere_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  add_exact_variants(task, variants);
  add_exact_rivals(task, variants);
}

result<plan> place_as_published(const planning_task& task) {
  return place_by_similarity(task.profile, task.servers, task.costs, seeded(task));
}

result<plan> place_similar_at_access(const planning_task& task) {
  return at_access(place_as_published(task), task);
}

result<plan> place_expert_parallel(const planning_task& task) {
  auto by_popularity = popular(task);
  auto similar = place_as_published(task);
  if (!by_popularity || !similar)
    return by_popularity ? std::move(by_popularity) : std::move(similar);
  const auto dispatch_ns = [&](const plan& placed) {
    return expected_dispatch_ns(task.profile, placed, task.servers, task.costs);
  };
  return at_access(dispatch_ns(*by_popularity) <= dispatch_ns(*similar) ? std::move(by_popularity)
                                                                        : std::move(similar),
                   task);
}

result<plan> place_shards(const planning_task& task) {
  return place_layer_shards(task.profile, task.servers, task.costs);
}

result<plan> place_chains(const planning_task& task) {
  shard_chain_options options;
  options.concurrency = loaded(task, 1);
  options.should_stop = task.options.should_stop;
  auto made = place_shard_chains(task.profile, task.servers, task.costs, options, 1);
  if (!made) return made.error();
  return std::move(made->front());
}

namespace {

result<plan> searched(const planning_task& task, bool may_leave_out) {
  const auto& options = task.options;
  search_options search;
  search.may_leave_out = may_leave_out;
  search.quality_nats =
      options.planned_budget_scale == 0
          ? 0
          : nats_of_percent(options.quality_percent) * options.planned_budget_scale;
  search.seed = options.seed;
  search.n_steps = options.search_steps;
  search.concurrency = options.concurrency;
  search.should_stop = options.should_stop;
  return place_with_helpers(task.profile, task.servers, task.costs, search);
}

}  // namespace

result<plan> place_searched(const planning_task& task) {
  return searched(task, task.options.leaves_slots_out);
}

result<plan> place_searched_whole(const planning_task& task) {
  return searched(task, false);
}

result<plan> place_random(const planning_task& task) {
  return place_at_random(task.profile, task.servers, task.costs, seeded(task));
}

result<plan> place_popular(const planning_task& task) {
  return popular(task);
}

void add_exact_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  std::vector<strategy_options> all;
  for (std::uint64_t i = 0; i < 3; ++i) add_plan(task, at_access(popular(task, i), task), all);
  // The same seed as the last popularity placement, like every published figure.
  add_plan(
      task,
      at_access(place_by_similarity(task.profile, task.servers, task.costs, seeded(task, 2)), task),
      all);
  if (!all.empty()) variants = std::move(all);
  add_plan(task, roaming(popular(task), task), variants);
  add_whole_variants(task, variants);
}

void add_shard_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  add_shards(task, shard_objective::latency, shard_return::direct, variants);
  add_shards(task, shard_objective::throughput, shard_return::by_access, variants);
  add_shards(task, shard_objective::throughput, shard_return::direct, variants);
}

void add_chain_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  constexpr std::size_t n_of_each = 6, n_most = 4;
  auto chains = side_by_side(task, {.units_per_layer = 1}, n_of_each);
  std::ranges::move(side_by_side(task, {}, n_of_each), std::back_inserter(chains));
  for (const double load : {planned_loads[0], 1.0}) add_best(task, load, chains, n_most, variants);
  add_plan(task, place_shards(task), variants);
  add_shard_variants(task, variants);
}

void add_searched_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  const auto& options = task.options;
  if (options.quality_percent > 0) {
    for (const double scale : {0.5, 0.25, 0.0}) {
      variants.push_back(options);
      variants.back().planned_budget_scale = scale;
    }
    for (const double scale : {1.0, 0.5}) add_copies(task, scale, variants);
  } else {
    if (options.quality_percent < 0) add_copies(task, 1, variants);
    for (const double load : {0.5, 2.0}) {
      variants.push_back(options);
      variants.back().concurrency = std::max(1.0, load * options.concurrency);
    }
  }
  add_exact_rivals(task, variants);
  for (auto& each : variants) each.cut.reset();
  if (options.quality_percent > 0) add_cores(task, variants);
}

result<plan> place_few_remote(const planning_task& task) {
  return place_by_entropy(task.profile, task.servers, task.costs, seeded(task));
}

result<plan> place_ranges(const planning_task& task) {
  return ranges(task, shard_objective::latency, loaded(task, 1) - 1);
}

void add_few_remote_elsewhere(const planning_task& task, std::vector<strategy_options>& variants) {
  add_elsewhere(task, place_few_remote(task), variants);
}

void add_range_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  // One more than a request meets makes users share less, which may be faster.
  for (const double more : {0.0, 1.0})
    for (const auto objective : {shard_objective::latency, shard_objective::throughput})
      for (const double load : planned_loads)
        if (more > 0 || objective != shard_objective::latency || load != 1)
          add_plan(task, ranges(task, objective, loaded(task, load) - 1 + more), variants);
}

void add_random_elsewhere(const planning_task& task, std::vector<strategy_options>& variants) {
  add_elsewhere(task, place_random(task), variants);
}

void add_popular_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  constexpr std::uint64_t n_seeds = 3;
  for (std::uint64_t i = 1; i < n_seeds; ++i) add_plan(task, popular(task, i), variants);
  for (std::uint64_t i = 0; i < n_seeds; ++i) add_elsewhere(task, popular(task, i), variants);
}

namespace {

/// theta_l comes down to nothing in so many equal steps.
constexpr std::size_t n_threshold_steps = 4;

placement_options with_lowered_thresholds(const planning_task& task) {
  auto placement = seeded(task);
  const auto lowered = std::min(task.options.cut.value_or(0), n_threshold_steps);
  const double kept = 1 - static_cast<double>(lowered) / n_threshold_steps;
  if (!task.options.threshold) {
    placement.theta_min *= kept;
    placement.theta_max *= kept;
  }
  return placement;
}

}  // namespace

result<plan> place_with_lowered_thresholds(const planning_task& task) {
  return place_by_similarity(task.profile, task.servers, task.costs, with_lowered_thresholds(task));
}

void add_lowered_thresholds_at_access(const planning_task& task,
                                      std::vector<strategy_options>& variants) {
  if (task.profile.top_k > 1)
    add_plan(task, at_access(place_with_lowered_thresholds(task), task), variants);
}

std::size_t most_lowered_thresholds(const planning_task& task) {
  return task.options.threshold ? 0 : n_threshold_steps;
}

void add_similar_at_access(const planning_task& task, std::vector<strategy_options>& variants) {
  if (task.profile.top_k > 1) add_plan(task, place_similar_at_access(task), variants);
}

void add_similar_elsewhere(const planning_task& task, std::vector<strategy_options>& variants) {
  add_similar_at_access(task, variants);
  if (task.profile.top_k > 1) add_sole_homes(task, place_as_published(task), variants);
}

void add_homes_of_substitutes(const planning_task& task, std::vector<strategy_options>& variants) {
  add_sole_homes(task, place_as_published(task), variants);
  add_whole_variants(task, variants);
}

void add_local_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  add_plan(task, popular(task), variants);
  add_plan(task, place_as_published(task), variants);
  add_plan(task, roaming(popular(task), task), variants);
  add_homes_of_substitutes(task, variants);
  add_exact_rivals(task, variants);
}

std::size_t most_pruned(const planning_task& task) {
  return task.profile.n_layers * (task.profile.n_experts - task.profile.top_k);
}

std::size_t most_reaches(const planning_task& task) {
  return reaches_of(task.servers, task.costs).size() - 1;
}

namespace {

/// No limit of quality, and nobody says how much to cut.
bool cuts_all(const planning_task& task) {
  return !task.options.cut && task.options.quality_percent < 0;
}

result<plan> gated(const planning_task& task, std::size_t n_hubs) {
  const auto reaches = reaches_of(task.servers, task.costs);
  const auto cut = cuts_all(task) ? reaches.size() - 1
                                  : std::min(task.options.cut.value_or(0), reaches.size() - 1);
  return place_reachable(task.profile, task.servers, task.costs,
                         {reaches[cut], n_hubs, cut > 0 || cuts_all(task)});
}

/// Plans without as many experts as options.cut says, and without fewer: down to a quarter, and the shares that `ordermoe` has outside its
/// cores. With less pruned, more is left for slots to lose.
void add_plans_of_cuts(const planning_task& task, std::vector<strategy_options>& variants) {
  constexpr std::size_t n_of_shares = 2;
  const auto most = *task.options.cut;
  const auto add = [&](std::size_t cut, double load, std::size_t n_plans) {
    auto made = place_pruned(task.profile, task.servers, task.costs, cut, loaded(task, load),
                             n_plans, task.options.should_stop);
    for (std::size_t i = 0; made && i < made->size(); ++i) {
      add_plan(task, std::move((*made)[i]), variants);
      variants.back().cut = cut;
    }
  };
  auto cuts = cuts_up_to(most);
  if (most / 4 > 0 && most / 4 < cuts.back()) cuts.push_back(most / 4);
  for (const auto cut : cuts)
    for (const double load : planned_loads) add(cut, load, n_pruned_plans);
  for (const double share : fixed_shares) {
    const auto cut = share_of_experts(task, share);
    if (cut > 0 && cut < most && std::ranges::find(cuts, cut) == cuts.end())
      add(cut, 1, n_of_shares);
  }
}

/// Placed by a function of (profile, cluster, costs, load or homes).
template <class Place>
void add_homes(const planning_task& task, const Place& placed,
               std::vector<strategy_options>& variants) {
  for (const double load : {0.0, 2.0})
    add_plan(task, placed(task.profile, task.servers, task.costs, loaded(task, load)), variants);
  add_plan(task, placed(task.profile, task.servers, task.costs, own_homes(task.servers.size())),
           variants);
  for (const auto& where : sole_homes(task.profile, task.servers, task.costs, n_sole_homes))
    add_plan(task, placed(task.profile, task.servers, task.costs, where), variants);
}

}  // namespace

result<plan> place_static_pruning(const planning_task& task) {
  if (cuts_all(task))
    return place_pruned_sites(task.profile, task.servers, task.costs, task.servers.size(),
                              loaded(task, 1), task.options.should_stop);
  auto made = place_pruned(task.profile, task.servers, task.costs, task.options.cut.value_or(0),
                           loaded(task, 1), 1, task.options.should_stop);
  if (!made) return made.error();
  return std::move(made->front());
}

void add_pruned_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  if (cuts_all(task)) {
    for (auto n = task.servers.size() / 2; n >= 1; n /= 2)
      add_plan(task,
               place_pruned_sites(task.profile, task.servers, task.costs, n, loaded(task, 1),
                                  task.options.should_stop),
               variants);
    return;
  }
  if (task.options.cut.value_or(0) == 0) return add_chain_variants(task, variants);
  add_plans_of_cuts(task, variants);
  // No chains of what is kept need be faster than those of everything.
  const auto n_pruned = variants.size();
  add_plan(task, place_chains(task), variants);
  add_plan(task, place_ranges(task), variants);
  for (auto i = n_pruned; i < variants.size(); ++i) variants[i].cut.reset();
}

void add_exact_and_pruned_variants(const planning_task& task,
                                   std::vector<strategy_options>& variants) {
  add_exact_rivals(task, variants);
  for (auto& each : variants) each.cut.reset();  // They prune nothing.
  if (task.options.cut.value_or(0) > 0) add_plans_of_cuts(task, variants);
}

result<plan> place_gated(const planning_task& task) {
  return gated(task, task.servers.size());
}

void add_gated_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  for (auto n = task.servers.size() / 2; n >= 1; n /= 2) add_plan(task, gated(task, n), variants);
}

result<plan> place_whole(const planning_task& task) {
  return place_whole_requests(task.profile, task.servers, task.costs, loaded(task, 1));
}

void add_whole_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  add_homes(
      task, [](const auto&... of) { return place_whole_requests(of...); }, variants);
}

result<plan> place_with_host_memory(const planning_task& task) {
  return place_offloaded(task.profile, task.servers, task.costs, loaded(task, 1));
}

void add_host_memory_variants(const planning_task& task, std::vector<strategy_options>& variants) {
  add_homes(
      task, [](const auto&... of) { return place_offloaded(of...); }, variants);
}

}  // namespace ordermoe::planning
