#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <optional>

#include "planning/cost_model.hpp"
#include "planning/placement.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

const cost_profile costs = instances::small_costs();

/// Latency and slowest stage of a chain, straight from the definition; nothing where it is not
/// allowed.
struct chain_cost {
  double latency = 0, slowest = 0;
};
std::optional<chain_cost> evaluate(const std::vector<std::size_t>& holder,
                                   const planning::profile& experts, const cluster& servers,
                                   shard_return way_back = shard_return::by_access) {
  const auto model = make_cost_model(servers, costs);
  const auto layer_bytes = costs.expert_bytes * static_cast<std::int64_t>(experts.n_experts);
  chain_cost cost;
  std::vector<double> stage(servers.size(), 0);
  std::vector<std::int64_t> used(servers.size(), 0);
  std::vector<bool> left(servers.size(), false);
  for (std::size_t l = 0; l < holder.size(); ++l) {
    const auto m = holder[l];
    if (left[m]) return std::nullopt;
    const double time =
        model.attention_ns[m] + static_cast<double>(experts.top_k) * model.expert_ns[m];
    cost.latency += time;
    stage[m] += time;
    used[m] += layer_bytes;
    if (l > 0 && holder[l - 1] != m) {
      left[holder[l - 1]] = true;
      cost.latency += model.hidden(holder[l - 1], m);
      cost.slowest =
          std::max(cost.slowest,
                   static_cast<double>(transfer_ns(
                       servers.link(server_id{holder[l - 1]}, server_id{m}), costs.hidden_bytes)));
    }
  }
  for (std::size_t m = 0; m < servers.size(); ++m)
    if (used[m] > expert_memory_bytes(servers.servers[m], costs, experts.n_layers))
      return std::nullopt;
  cost.latency += model.head_ns[holder.back()];
  stage[holder.back()] += model.head_ns[holder.back()];
  if (way_back == shard_return::direct)
    cost.latency += model.message(holder.back(), holder.front());
  else
    for (std::size_t a = 0; a < servers.size(); ++a)
      cost.latency += servers.servers[a].arrival_share *
                      (model.message(a, holder.front()) + model.message(holder.back(), a));
  for (const double time : stage) cost.slowest = std::max(cost.slowest, time);
  return cost;
}

/// The best over every assignment of layers to servers.
std::optional<chain_cost> best_of_all(const planning::profile& experts, const cluster& servers,
                                      shard_objective objective, shard_return way_back) {
  std::optional<chain_cost> best;
  std::vector<std::size_t> holder(experts.n_layers, 0);
  while (true) {
    if (const auto cost = evaluate(holder, experts, servers, way_back)) {
      const bool better = !best || (objective == shard_objective::latency
                                        ? cost->latency < best->latency
                                        : cost->slowest < best->slowest * (1 - 1e-12) ||
                                              (cost->slowest <= best->slowest * (1 + 1e-12) &&
                                               cost->latency < best->latency));
      if (better) best = cost;
    }
    std::size_t l = 0;
    while (l < holder.size() && ++holder[l] == servers.size()) holder[l++] = 0;
    if (l == holder.size()) return best;
  }
}

std::vector<std::size_t> holders(const planning::plan& placed) {
  std::vector<std::size_t> holder;
  for (const auto mask : placed.residence[0].layers)
    holder.push_back(static_cast<std::size_t>(std::countr_zero(mask)));
  return holder;
}

/// A cluster where some servers hold no layer, some one, some several.
cluster uneven_cluster(std::size_t n_servers, const planning::profile& experts,
                       random_stream& random, std::uint64_t seed) {
  auto servers = instances::drawn_cluster(n_servers, experts.n_layers, experts.n_experts, 1, seed);
  const auto layer_bytes = costs.expert_bytes * static_cast<std::int64_t>(experts.n_experts);
  std::vector<std::int64_t> memory;
  for (std::size_t m = 0; m < n_servers; ++m)
    memory.push_back(
        static_cast<std::int64_t>(random.uniform(0, 3.5) * static_cast<double>(layer_bytes)));
  instances::set_expert_memory(servers, memory, costs, experts.n_layers);
  return servers;
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::abs(b);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(layer_shards)

BOOST_AUTO_TEST_CASE(the_dynamic_program_equals_exhaustive_enumeration) {
  std::vector<layer_shard_options> every_option;
  for (const auto objective : {shard_objective::latency, shard_objective::throughput})
    for (const auto way_back : {shard_return::by_access, shard_return::direct}) {
      layer_shard_options options;
      options.objective = objective;
      options.way_back = way_back;
      every_option.push_back(options);
    }
  std::size_t n_feasible = 0, n_infeasible = 0, n_split = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed);
      const auto experts = random_profile(1 + random.below(5), 3, 1 + random.below(2), seed % 7);
      const auto servers = uneven_cluster(1 + random.below(4), experts, random, seed);
      for (const auto& options : every_option) {
        const auto placed = place_layer_shards(experts, servers, costs, options);
        const auto best = best_of_all(experts, servers, options.objective, options.way_back);
        BOOST_REQUIRE(placed.has_value() == best.has_value());
        if (!placed) {
          ++n_infeasible;
          BOOST_TEST((placed.error().code == errc::infeasible));
          continue;
        }
        ++n_feasible;
        const auto checked = validate(*placed, servers, costs);
        BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
        const auto chosen = evaluate(holders(*placed), experts, servers, options.way_back);
        BOOST_REQUIRE(chosen.has_value());
        BOOST_TEST(near(chosen->latency, best->latency));
        BOOST_TEST(near(placed->estimated_token_ns, best->latency));
        if (options.objective == shard_objective::throughput)
          BOOST_TEST(near(chosen->slowest, best->slowest));
        n_split += holders(*placed).front() != holders(*placed).back();
      }
    }
  }
  BOOST_TEST(n_feasible > 150u);
  BOOST_TEST(n_infeasible > 20u);
  BOOST_TEST(n_split > 100u);
}

BOOST_AUTO_TEST_CASE(whole_layers_lie_where_their_attention_runs_for_every_access_server) {
  const auto experts = random_profile(6, 4, 2, 1);
  const auto servers = instances::drawn_cluster(4, 6, 4, 2.0, 3);
  const auto placed = place_layer_shards(experts, servers, costs);
  BOOST_REQUIRE(placed.has_value());
  const placement_index index(*placed);
  for (std::size_t l = 0; l < 6; ++l) {
    const auto mask = placed->residence[0].layers[l];
    BOOST_TEST(std::popcount(mask) == 1);
    for (std::size_t a = 0; a < 4; ++a) BOOST_TEST(placed->residence[a].layers[l] == mask);
    for (std::size_t j = 0; j < 4; ++j) BOOST_TEST(index.hosts(l, j) == mask);
  }
  for (const auto& entry : placed->experts)
    BOOST_TEST((entry.reason == placement_reason::layer_shard));
}

BOOST_AUTO_TEST_CASE(relabelling_the_servers_keeps_the_time_of_a_token) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    random_stream random(seed);
    const auto experts = random_profile(6, 4, 2, 1);
    const auto servers = instances::drawn_cluster(6, 6, 4, 2.0, seed);
    const auto renamed = instances::relabelled(servers, instances::shuffled(6, random));
    const auto one = place_layer_shards(experts, servers, costs);
    const auto other = place_layer_shards(experts, renamed, costs);
    BOOST_REQUIRE(one.has_value() == other.has_value());
    if (one) BOOST_TEST(near(one->estimated_token_ns, other->estimated_token_ns));
  }
}

BOOST_AUTO_TEST_CASE(more_memory_never_makes_a_token_slower) {
  const auto experts = random_profile(8, 4, 2, 1);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    double before = std::numeric_limits<double>::infinity();
    for (const double ratio : {1.5, 2.0, 3.0, 6.0}) {
      const auto servers = instances::drawn_cluster(6, 8, 4, ratio, seed);
      const auto placed = place_layer_shards(experts, servers, costs);
      if (!placed) continue;
      BOOST_TEST(placed->estimated_token_ns <= before * (1 + 1e-12));
      before = placed->estimated_token_ns;
    }
  }
}

BOOST_AUTO_TEST_CASE(a_narrow_beam_finds_a_valid_chain_that_is_no_better_than_the_exact_one) {
  const auto experts = random_profile(8, 4, 2, 1);
  const auto servers = instances::drawn_cluster(8, 8, 4, 2.0, 1);
  const auto exact = place_layer_shards(experts, servers, costs);
  BOOST_REQUIRE(exact.has_value());
  for (const std::size_t beam : {1, 10, 100}) {
    layer_shard_options options;
    options.beam = beam;
    const auto placed = place_layer_shards(experts, servers, costs, options);
    BOOST_REQUIRE(placed.has_value());
    BOOST_TEST(validate(*placed, servers, costs).has_value());
    BOOST_TEST(placed->estimated_token_ns >= exact->estimated_token_ns);
  }
}

BOOST_AUTO_TEST_CASE(a_cluster_without_room_for_whole_layers_is_refused_with_the_missing_bytes) {
  const auto experts = random_profile(3, 4, 2, 1);
  auto servers = instances::drawn_cluster(2, 3, 4, 2.0, 1);
  // A layer weighs 4,000 bytes: one layer and none fit, although every expert would.
  const std::vector<std::int64_t> memory{7'900, 3'950};
  instances::set_expert_memory(servers, memory, costs, 3);
  const auto placed = place_layer_shards(experts, servers, costs);
  BOOST_REQUIRE(!placed.has_value());
  BOOST_TEST((placed.error().code == errc::infeasible));
  for (const auto* part :
       {"room for 1 whole layers of 4000 bytes, expected room for 3",
        "150 bytes are missing in total", "s0 has 7900 bytes for experts and lacks 100",
        "s1 has 3950 bytes for experts and lacks 50"})
    BOOST_TEST(placed.error().message.find(part) != std::string::npos,
               placed.error().message << " does not say: " << part);
}

BOOST_AUTO_TEST_SUITE_END()
