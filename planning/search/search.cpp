#include "planning/search/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "planning/placement.hpp"
#include "planning/search/searcher.hpp"

namespace ordermoe::planning {

namespace {

using searching::infinity;
using searching::layout;
using searching::searcher;
using rated_layout = searcher::rated_layout;

}  // namespace

double estimate_plan(const profile& experts, const plan& placed, const cluster& servers,
                     const cost_profile& costs, const search_options& options) {
  searcher search(experts, servers, costs, options);
  return search.evaluate(search.layout_of(placed)).token_ns;
}

double price_of_budget(const profile& experts, const plan& placed, const cluster& servers,
                       const cost_profile& costs, std::size_t access,
                       const search_options& options) {
  searcher search(experts, servers, costs, options);
  const auto content = search.layout_of(placed);
  return search.evaluate(content).prices[content.chain_of[access]];
}

namespace {

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
    start = search.improve_homes(search.with_one_residency(std::move(start)), n_steps / 48);
  }
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  starts = search.diverse(starts, n_middle);
  for (auto& start : starts) {
    start = search.exchange_experts(std::move(start), n_rounds);
    start = search.widen_boundaries(std::move(start),
                                    std::max<std::size_t>(1, search.n_layers() / 12), n_rounds);
    if (start.second.cost < best.second.cost) best = std::move(start);
  }
  best = search.anneal(std::move(best.first), n_steps / 16, random);
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

}  // namespace

result<plan> place_by_search(const profile& experts, const cluster& servers,
                             const cost_profile& costs, const search_options& options) {
  if (experts.top_k > max_trajectory_slots) {
    return error{
        errc::unsupported,
        fmt::format("profile: found top-{}, expected at most top-{}; choose another strategy",
                    experts.top_k, max_trajectory_slots)};
  }
  auto as_stored = servers;
  for (auto& server : as_stored.servers) {
    if (server.expert_precision != precision::stored &&
        std::ranges::any_of(experts.layers, [&](const layer_profile& layer) {
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
  auto popular = place_by_popularity(experts, as_stored, costs, simple);
  if (!popular) return popular.error();

  const auto plans = [&] {
    std::vector<result<plan>> made;
    made.push_back(std::move(popular));
    made.push_back(place_by_similarity(experts, as_stored, costs, simple));
    made.push_back(place_layer_shards(experts, as_stored, costs));
    made.push_back(
        place_layer_shards(experts, as_stored, costs, {.objective = shard_objective::throughput}));
    return made;
  }();

  // Starts for one position at a time; for a load, what is best without queues is a start as well.
  const auto starts_of = [&](searcher& search, std::vector<layout> more) {
    std::vector<rated_layout> starts;
    double least = infinity, last_price = 0;
    const auto offer = [&](layout content) {
      if (!starts.empty() && search.stopped()) return;
      const auto enough = [&](server_mask hosts) {
        return static_cast<std::size_t>(std::popcount(hosts)) >= options.min_copies &&
               search.is_exact_at(hosts);
      };
      if (!std::all_of(content.hosts.begin(), content.hosts.end(), enough)) return;
      auto rated = search.evaluate(content, std::vector<double>(content.chains.size(), last_price));
      last_price = rated.prices.front();
      if (rated.cost < least && !search.is_loaded()) {
        least = rated.cost;
        search.set_cutoff(1.5 * least, last_price);
      }
      starts.emplace_back(std::move(content), std::move(rated));
    };
    for (auto& content : more) offer(std::move(content));
    for (const auto& made : plans) {
      if (!made) continue;
      auto content = search.layout_of(*made);
      offer(content);
      if (search.has_many_experts()) continue;
      search.fill_free_memory(content);
      offer(content);
      offer(search.merge_chains(content));
      // Every pair of servers at every layer: worth the while only where a layer is quick to solve.
      if (experts.top_k > 2) continue;
      content.chains = {roaming_residency(search.n_servers(), search.n_layers())[0].layers};
      std::fill(content.chain_of.begin(), content.chain_of.end(), 0u);
      offer(std::move(content));
    }
    search.set_cutoff(infinity, 0);
    return starts;
  };

  random_stream random(options.seed, 0x5ea4c4);
  auto alone = options;
  alone.concurrency = 1;
  searcher single(experts, servers, costs, alone);
  const std::size_t n_pipelines =
      std::max<std::size_t>(32, options.n_steps / (single.has_many_experts() ? 64 : 10));
  auto starts = starts_of(single, single.pipelines(n_pipelines));
  if (starts.empty())
    return error{errc::infeasible,
                 "placement: servers that keep experts as the model has them cannot hold a copy of "
                 "each; let more servers do so or give them more memory"};
  const auto best_of = [&](searcher& search, std::vector<rated_layout> from) {
    return search.has_many_experts() && !search.is_loaded()
               ? coarse_to_fine(search, std::move(from), options.n_steps, random)
               : anneal_best(search, std::move(from),
                             options.n_steps / (search.has_many_experts() ? 16 : 1), random);
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
  searcher search(experts, servers, costs, options);
  auto more = search.parallel(starts);
  constexpr std::size_t n_singles = 64;
  for (std::size_t i = 0; i < std::min(n_singles, starts.size()); ++i)
    more.push_back(starts[i].first);
  more.push_back(fastest.first);
  auto loaded = starts_of(search, std::move(more));
  auto best = best_of(search, std::move(loaded));
  search.tidy(best.first, best.second);
  return search.to_plan(best.first, best.second, servers, costs);
}

}  // namespace ordermoe::planning
