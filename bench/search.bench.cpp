#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "planning/placement.hpp"
#include "planning/search.hpp"
#include "planning/trajectory.hpp"

/// What the planner of `ordermoe` expects of its plans, beside the baselines under the same
/// estimate: milliseconds of one decoded position on clusters drawn with seeds 1 to 10. Arguments:
/// profile.json (default: a random profile), number of search steps.
namespace {

using namespace ordermoe;
using namespace ordermoe::planning;

constexpr double infinity = std::numeric_limits<double>::infinity();

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

}  // namespace

int main(int argc, char** argv) {
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
