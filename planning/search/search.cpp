#include "planning/search/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "planning/placement.hpp"
#include "planning/search/searcher.hpp"

namespace ordermoe::planning {

namespace {

using searching::layout;
using searching::searcher;
using rated_layout = searcher::rated_layout;

}  // namespace

double estimate_plan(const profile& profile, const plan& placed, const cluster& servers,
                     const cost_profile& costs, const search_options& options) {
  searcher search(profile, servers, costs, options);
  return search.evaluate(search.layout_of(placed)).token_ns;
}

double price_of_budget(const profile& profile, const plan& placed, const cluster& servers,
                       const cost_profile& costs, std::size_t access,
                       const search_options& options) {
  searcher search(profile, servers, costs, options);
  const auto content = search.layout_of(placed);
  return search.evaluate(content).prices[content.chain_of[access]];
}

namespace {

/// Where experts are many: steps of the budget for each change of a whole layer, which is rated as
/// long as some dozen moves of single experts take; and the part of them left for single experts
/// at last, which decide little once layers and boundaries are where they should be.
constexpr std::size_t steps_per_layer_change = 48, single_experts_part = 16;
/// Under a load every move is rated for all residencies and their queues: there annealing over many
/// experts gets this part of the steps.
constexpr std::size_t loaded_part_of_many = 16;
/// Steps of the budget for each pipeline of homes that is tried as a start, and how many are at
/// least. Where experts are many a start is dear, and few of them differ.
constexpr std::size_t steps_per_pipeline = 10, steps_per_pipeline_of_many = 64,
                      least_pipelines = 32;
/// A start this many times as dear as the best so far needs no rating in full.
constexpr double hopeless = 1.5;
/// Starts for one position at a time that are starts for a load as well.
constexpr std::size_t n_singles = 64;
/// Boundaries between servers are widened by a layer for each so many layers of the model.
constexpr std::size_t layers_per_widening = 12;

bool by_cost(const rated_layout& a, const rated_layout& b) {
  return a.second.cost < b.second.cost;
}

/// Where experts are many: whole layers first, then many experts at a time, from the best starts;
/// single experts at last, of the best result alone.
rated_layout coarse_to_fine(searcher& search, std::vector<rated_layout> starts, std::size_t n_steps,
                            random_stream& random) {
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  auto best = search.with_one_residency(starts.front());
  constexpr std::size_t n_coarse = 6, n_middle = 3, n_rounds = 4;
  starts = search.diverse(starts, n_coarse);
  for (auto& start : starts) {
    start = search.improve_homes(search.with_one_residency(std::move(start)),
                                 n_steps / steps_per_layer_change);
  }
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  starts = search.diverse(starts, n_middle);
  for (auto& start : starts) {
    start = search.exchange_experts(std::move(start), n_rounds);
    start = search.widen_boundaries(
        std::move(start), std::max<std::size_t>(1, search.n_layers() / layers_per_widening),
        n_rounds);
    if (start.second.cost < best.second.cost) best = std::move(start);
  }
  best = search.anneal(std::move(best.first), n_steps / single_experts_part, random);
  best = search.exchange_experts(std::move(best), 2 * n_rounds);
  return best;
}

/// Half of the steps to the best starts, the rest to the best results among them.
rated_layout anneal_best(searcher& search, std::vector<rated_layout> starts, std::size_t n_steps,
                         random_stream& random) {
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  auto best = starts.front();
  constexpr std::size_t n_first = 8, n_second = 2;
  starts = search.diverse(starts, n_first);
  for (auto& start : starts) {
    start = search.anneal(search.merge_chains(start.first), n_steps / 2 / starts.size(), random);
  }
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  if (starts.size() > n_second) starts.resize(n_second);
  for (auto& start : starts) {
    if (start.second.cost < best.second.cost) best = start;
    auto improved = search.anneal(start.first, n_steps / 2 / starts.size(), random);
    if (improved.second.cost < best.second.cost) best = std::move(improved);
  }
  return best;
}

using plans_to_start_from = std::vector<result<plan>>;

/// The layouts given and those of the plans, and what can be made of these without a search, rated.
std::vector<rated_layout> rate_starts(searcher& search, const plans_to_start_from& plans,
                                      std::vector<layout> layouts, std::size_t min_copies) {
  std::vector<rated_layout> starts;
  double least = infinity, last_price = 0;
  const auto offer = [&](layout content) {
    if (!starts.empty() && search.stopped()) return;
    const auto enough = [&](server_mask hosts) {
      return static_cast<std::size_t>(std::popcount(hosts)) >= min_copies &&
             search.is_exact_at(hosts);
    };
    if (!std::all_of(content.hosts.begin(), content.hosts.end(), enough)) return;
    auto rated = search.evaluate(content, std::vector<double>(content.chains.size(), last_price));
    last_price = rated.prices.front();
    if (rated.cost < least && !search.is_loaded()) {
      least = rated.cost;
      search.set_cutoff(hopeless * least, last_price);
    }
    starts.emplace_back(std::move(content), std::move(rated));
  };
  for (auto& content : layouts) offer(std::move(content));
  for (const auto& made : plans) {
    if (!made) continue;
    auto content = search.layout_of(*made);
    offer(content);
    if (search.has_many_experts()) continue;
    search.fill_free_memory(content);
    offer(content);
    offer(search.merge_chains(content));
    // Every pair of servers at every layer: worth the while only where a layer is quick to solve.
    if (search.n_slots() > 2) continue;
    content.chains = {roaming_residency(search.n_servers(), search.n_layers())[0].layers};
    std::fill(content.chain_of.begin(), content.chain_of.end(), 0u);
    offer(std::move(content));
  }
  search.set_cutoff(infinity, 0);
  return starts;
}

}  // namespace

result<plan> place_by_search(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const search_options& options) {
  if (profile.top_k > max_trajectory_slots) {
    return error{
        errc::unsupported,
        fmt::format("profile: found top-{}, expected at most top-{}; choose another strategy",
                    profile.top_k, max_trajectory_slots)};
  }
  auto as_stored = servers;
  for (auto& server : as_stored.servers) {
    if (server.expert_precision != precision::stored &&
        std::ranges::any_of(profile.layers, [&](const layer_profile& layer) {
          return layer.copy_of(server.expert_precision) == nullptr;
        }))
      return error{errc::mismatch,
                   fmt::format("profile: server {} keeps its experts as {}, and what that costs is "
                               "not in it; calibrate the model again",
                               server.name, to_string(server.expert_precision))};
    server.expert_precision = precision::stored;
  }
  placement_options simple;
  simple.min_copies = options.min_copies;
  auto popular = place_by_popularity(profile, as_stored, costs, simple);
  if (!popular) return popular.error();

  plans_to_start_from plans{
      std::move(popular), place_by_similarity(profile, as_stored, costs, simple),
      place_layer_shards(profile, as_stored, costs),
      place_layer_shards(profile, as_stored, costs, {.objective = shard_objective::throughput})};

  random_stream random(options.seed, 0x5ea4c4);
  // On one server there is nothing to move.
  const auto n_steps = servers.size() > 1 ? options.n_steps : 0;
  auto alone = options;
  alone.concurrency = 1;
  searcher single(profile, servers, costs, alone);
  const std::size_t n_pipelines = std::max(
      least_pipelines,
      n_steps / (single.has_many_experts() ? steps_per_pipeline_of_many : steps_per_pipeline));
  auto starts = rate_starts(single, plans, single.pipelines(n_pipelines), options.min_copies);
  if (starts.empty())
    return error{errc::infeasible,
                 "placement: servers that keep experts as the model has them cannot hold a copy of "
                 "each; let more servers do so or give them more memory"};
  const auto best_of = [&](searcher& search, std::vector<rated_layout> from) {
    return search.has_many_experts() && !search.is_loaded()
               ? coarse_to_fine(search, std::move(from), n_steps, random)
               : anneal_best(search, std::move(from),
                             n_steps / (search.has_many_experts() ? loaded_part_of_many : 1),
                             random);
  };
  if (!(options.concurrency > 1)) {
    auto best = best_of(single, std::move(starts));
    single.tidy(best.first, best.second);
    return single.to_plan(best.first, best.second, servers, costs);
  }

  // The plan for one position at a time is a start, so that planning for the load never loses to
  // it.
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  auto fastest = best_of(single, starts);
  single.tidy(fastest.first, fastest.second);
  searcher search(profile, servers, costs, options);
  auto more = search.parallel(starts);
  for (std::size_t i = 0; i < std::min(n_singles, starts.size()); ++i)
    more.push_back(starts[i].first);
  more.push_back(fastest.first);
  auto loaded = rate_starts(search, plans, std::move(more), options.min_copies);
  auto best = best_of(search, std::move(loaded));
  search.tidy(best.first, best.second);
  return search.to_plan(best.first, best.second, servers, costs);
}

}  // namespace ordermoe::planning
