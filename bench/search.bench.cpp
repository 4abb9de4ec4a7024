#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "planning/infinity.hpp"
#include "planning/placement.hpp"
#include "planning/search/search.hpp"
#include "planning/search/trajectory.hpp"
#include "test/support/random_profile.hpp"

/// What the planner of `ordermoe` expects of its plans, beside the baselines under the same
/// estimate: milliseconds of one decoded position.
///
///     bench_search [profile.json or - for a random profile] [steps] [concurrency]
///
/// on clusters drawn with seeds 1 to 10, and
///
///     bench_search many [shape or all] [steps] [seed]
///
/// for the shapes of models with many experts on eight drawn servers.
namespace {

using namespace ordermoe;
using namespace ordermoe::planning;

double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/// Servers that the largest memories need to hold every expert once.
std::size_t fewest_servers(const cluster& servers, const cost_profile& costs, std::size_t n_layers,
                           std::size_t n_experts) {
  std::vector<std::int64_t> holds;
  for (const auto& server : servers.servers) {
    holds.push_back(std::max<std::int64_t>(0, expert_memory_bytes(server, costs, n_layers)) /
                    costs.expert_bytes);
  }
  std::sort(holds.rbegin(), holds.rend());
  std::int64_t left = static_cast<std::int64_t>(n_layers * n_experts);
  std::size_t n = 0;
  while (n < holds.size() && left > 0) left -= holds[n++];
  return n;
}

std::string chain_of(const plan& placed) {
  std::string text;
  for (const auto members : placed.residence[0].layers) {
    if (!text.empty()) text += '-';
    for (std::size_t m = 0; m < placed.n_servers; ++m) {
      if ((members >> m) & 1u) text += std::to_string(m);
    }
  }
  return text;
}

struct named_shape {
  const char* name;
  std::size_t n_layers, n_experts, top_k;
  std::int64_t expert_bytes, hidden_bytes;
};
constexpr named_shape many_experts[] = {
    {"qwen1.5-moe", 24, 60, 4, 3 * 2048 * 1408 * 2, 2048 * 2},
    {"olmoe", 16, 64, 8, 3 * 2048 * 1024 * 2, 2048 * 2},
    {"qwen3-moe", 48, 128, 8, 3 * 2048 * 768 * 2, 2048 * 2},
};

/// Experts and hidden states of the shape in 16 bits; the rest is Qwen1.5-MoE's.
cost_profile costs_of(const named_shape& shape) {
  auto costs = *named_cost_profile("qwen1.5-moe-a2.7b");
  costs.name = shape.name;
  costs.hidden_bytes = shape.hidden_bytes;
  costs.expert_bytes = shape.expert_bytes;
  costs.expert_flops = shape.expert_bytes;  // Two operations for each weight of two bytes.
  return costs;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// Prints what plans cost before the search and after it, and what the search took.
void plan_many(const named_shape& shape, std::size_t n_steps, std::uint64_t seed) {
  const auto costs = costs_of(shape);
  const auto experts = random_profile(shape.n_layers, shape.n_experts, shape.top_k, seed);
  draw_options draw;
  draw.seed = seed;
  draw.costs = costs;
  draw.n_layers = shape.n_layers;
  draw.n_experts = shape.n_experts;
  const auto servers = draw_cluster(draw);
  const auto n_fewest = fewest_servers(servers, costs, shape.n_layers, shape.n_experts);
  const auto n_servers = servers.size();
  auto popular = place_by_popularity(experts, servers, costs, {});
  auto similar = place_by_similarity(experts, servers, costs, {});
  const auto shards = place_layer_shards(experts, servers, costs);
  const std::vector<std::pair<const char*, double>> budgets = {
      {"0", 0.0}, {"1%", std::log(1.01)}, {"7%", std::log(1.07)}};
  for (const auto& [name, nats] : budgets) {
    search_options options;
    options.n_steps = n_steps;
    options.quality_nats = nats;
    options.seed = seed;
    std::printf("%-12s %2zu x %3zu top-%zu seed %llu fewest %zu budget %-2s |", shape.name,
                shape.n_layers, shape.n_experts, shape.top_k, static_cast<unsigned long long>(seed),
                n_fewest, name);
    const auto begin = std::chrono::steady_clock::now();
    const auto rate = [&](const result<plan>& placed) {
      return placed ? 1e-6 * estimate_plan(experts, *placed, servers, costs, options) : infinity;
    };
    const auto access = access_residency(n_servers, shape.n_layers);
    if (popular) popular->residence = access;
    if (similar) similar->residence = access;
    std::printf(" popularity %7.3f  paper %7.3f  shards %7.3f ms (%.1f s) |", rate(popular),
                rate(similar), rate(shards), seconds_since(begin));
    std::fflush(stdout);
    const auto started = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    const auto placed = place_by_search(experts, servers, costs, options);
    const double took = seconds_since(started), used = cpu_seconds() - cpu;
    if (!placed) {
      std::printf(" %s\n", placed.error().message.c_str());
      continue;
    }
    std::printf(" search %7.3f ms in %5.1f s, %5.1f s of processor time%s\n",
                1e-6 * placed->estimated_token_ns, took, used,
                validate(*placed, servers, costs) ? "" : ", INVALID");
    std::printf("    residence %s\n", chain_of(*placed).c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "many") {
    const std::string wanted = argc > 2 ? argv[2] : "all";
    const std::size_t n_steps = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 10000;
    const std::uint64_t seed = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 1;
    for (const auto& shape : many_experts)
      if (wanted == "all" || wanted == shape.name) plan_many(shape, n_steps, seed);
    return 0;
  }
  const auto costs = *named_cost_profile("mixtral-8x7b");
  profile experts = random_profile(6, 8, 2, 1);
  if (argc > 1 && std::string(argv[1]) != "-") {
    auto read = read_profile(argv[1]);
    if (!read) {
      std::fprintf(stderr, "%s\n", read.error().message.c_str());
      return 2;
    }
    experts = std::move(*read);
  }
  search_options options;
  if (argc > 2) options.n_steps = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) options.concurrency = std::strtod(argv[3], nullptr);
  const std::vector<std::pair<const char*, double>> budgets = {
      {"0", 0.0}, {"1%", std::log(1.01)}, {"7%", std::log(1.07)}, {"any", infinity}};
  std::printf("profile %s, costs %s, %zu steps; expected ms of one decoded position\n",
              experts.model_name.c_str(), costs.name.c_str(), options.n_steps);
  std::printf("%4s %6s | %7s %7s %7s", "seed", "fewest", "exact", "shards", "roaming");
  for (const auto& [name, nats] : budgets) std::printf(" | %6s", name);
  std::printf(" | plan s\n");
  std::vector<std::vector<double>> against_exact(budgets.size()), against_best(budgets.size());
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    draw_options draw;
    draw.seed = seed;
    draw.costs = costs;
    draw.n_layers = experts.n_layers;
    draw.n_experts = experts.n_experts;
    const auto servers = draw_cluster(draw);
    auto popular = place_by_popularity(experts, servers, costs, {});
    auto similar = place_by_similarity(experts, servers, costs, {});
    const auto shards = place_layer_shards(experts, servers, costs);
    double exact = infinity, layer_shards = infinity, roaming = infinity;
    options.quality_nats = 0;
    const auto rate = [&](const plan& placed) {
      return 1e-6 * estimate_plan(experts, placed, servers, costs, options);
    };
    const auto access = access_residency(servers.size(), experts.n_layers);
    if (popular) {
      popular->residence = access;
      exact = rate(*popular);
    }
    if (similar) {
      similar->residence = access;
      exact = std::min(exact, rate(*similar));
      similar->residence = roaming_residency(servers.size(), experts.n_layers);
      roaming = rate(*similar);
    }
    if (shards) layer_shards = rate(*shards);
    if (const auto fast =
            place_layer_shards(experts, servers, costs, {.objective = shard_objective::throughput}))
      layer_shards = std::min(layer_shards, rate(*fast));
    std::printf("%4llu %6zu | %7.2f %7.2f %7.2f", static_cast<unsigned long long>(seed),
                fewest_servers(servers, costs, experts.n_layers, experts.n_experts), exact,
                layer_shards, roaming);
    const auto begin = std::chrono::steady_clock::now();
    std::string chains;
    for (std::size_t b = 0; b < budgets.size(); ++b) {
      options.quality_nats = budgets[b].second;
      const auto placed = place_by_search(experts, servers, costs, options);
      if (!placed) {
        std::printf(" | %s", placed.error().message.c_str());
        continue;
      }
      against_exact[b].push_back(1 - placed->estimated_token_ns * 1e-6 / exact);
      against_best[b].push_back(placed->estimated_token_ns * 1e-6 / std::min(exact, layer_shards));
      std::printf(" | %6.2f", placed->estimated_token_ns * 1e-6);
      chains += "  " + chain_of(*placed);
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf(" | %5.1f%s\n", seconds, chains.c_str());
    std::fflush(stdout);
  }
  for (std::size_t b = 0; b < budgets.size(); ++b) {
    if (against_exact[b].empty()) continue;
    std::printf(
        "budget %-3s: below exact by median %.1f %%, least %.1f %%; of the better baseline median "
        "%.3f, most %.3f\n",
        budgets[b].first, 100 * median(against_exact[b]),
        100 * *std::min_element(against_exact[b].begin(), against_exact[b].end()),
        median(against_best[b]), *std::max_element(against_best[b].begin(), against_best[b].end()));
  }
  return 0;
}
