#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "planning/search/search.hpp"
#include "planning/strategies/adaptation.hpp"
#include "planning/strategies/helpers.hpp"
#include "planning/strategies/left_out.hpp"
#include "planning/strategies/strategies.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"
#include "test/support/seeds.hpp"

/// What holds of the plans of every strategy, on clusters and profiles that are drawn by seed.
namespace ordermoe::planning {

namespace {

const cost_profile costs = instances::small_costs();

struct drawn {
  std::size_t n_servers, n_layers, n_experts, top_k;
  profile experts;
  cluster servers;

  explicit drawn(std::uint64_t seed) {
    random_stream random(seed, 0x9709);
    n_servers = 2 + random.below(5);
    n_layers = 2 + random.below(4);
    n_experts = 4 + random.below(5);
    top_k = 1 + random.below(2);
    experts = random_profile(n_layers, n_experts, top_k, seed);
    servers =
        instances::drawn_cluster(n_servers, n_layers, n_experts, random.uniform(1.2, 3), seed);
  }
};

strategy_options quick(std::uint64_t seed) {
  strategy_options options;
  options.seed = seed;
  options.search_steps = 200;
  options.dry_run_requests = 0;
  return options;
}

/// Those that cut what routers may choose do so for most seeds.
strategy_options quick(const drawn& at, const strategy_record& record, std::uint64_t seed) {
  auto options = quick(seed);
  if (record.most_cut != nullptr)
    options.cut =
        std::min<std::size_t>(seed % 5, record.most_cut({at.experts, at.servers, costs, options}));
  return options;
}

search_options searched(std::uint64_t seed, double quality_nats) {
  search_options options;
  options.seed = seed;
  options.n_steps = 400;
  options.quality_nats = quality_nats;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(properties)

BOOST_AUTO_TEST_CASE(every_plan_keeps_to_memory_and_hosts_what_may_be_chosen) {
  const auto range = test::seeds(60);
  std::size_t n_plans = 0, n_refused = 0;
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    for (const auto& record : strategy_records())
      BOOST_TEST_CONTEXT("seed " << seed << ", " << record.name) {
        auto options = quick(at, record, seed);
        if (seed % 2 == 0 && record.has_budget) options.quality_percent = 3;
        const auto made = make_strategy(record.name, at.experts, at.servers, costs, options);
        if (!made) {
          BOOST_TEST((made.error().code == errc::infeasible), made.error().message);
          ++n_refused;
          continue;
        }
        ++n_plans;
        const auto valid = validate(made->plan, at.servers, costs);
        BOOST_TEST(valid.has_value(), (valid ? "" : valid.error().message));
      }
  }
  BOOST_TEST(n_plans > 5 * n_refused);
}

BOOST_AUTO_TEST_CASE(a_slower_clock_changes_no_plan) {
  const auto slowed = [](cluster servers, std::int64_t times) {
    for (auto& each : servers.servers) {
      each.flops_per_s /= static_cast<double>(times);
      each.memory_bandwidth_bytes_per_s /= static_cast<double>(times);
      each.host_bandwidth_bytes_per_s /= static_cast<double>(times);
    }
    for (auto& each : servers.links) {
      each.bandwidth_bytes_per_s /= static_cast<double>(times);
      each.latency_ns *= times;
    }
    return servers;
  };
  const auto range = test::seeds(40);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    // So slow that whole nanoseconds are nothing beside what they round.
    const auto before = slowed(at.servers, 1024), after = slowed(at.servers, 4096);
    for (const auto& record : strategy_records()) {
      // A search takes or leaves moves by the last bit: of 300 seeds two end elsewhere.
      if (record.name == "ordermoe" || record.name == "router-ledger") continue;
      BOOST_TEST_CONTEXT("seed " << seed << ", " << record.name) {
        const auto options = quick(at, record, seed);
        const auto made = make_strategy(record.name, at.experts, before, costs, options);
        const auto again = make_strategy(record.name, at.experts, after, costs, options);
        BOOST_REQUIRE(made.has_value() == again.has_value());
        if (made)
          BOOST_TEST(placement_cost_ns(at.experts, again->plan, after, costs) ==
                         4 * placement_cost_ns(at.experts, made->plan, before, costs),
                     boost::test_tools::tolerance(1e-6));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(servers_in_another_order_get_plans_of_the_same_cost) {
  // The others begin where servers tie, as empty ones do, and go by their order there; or draw.
  const char* names[] = {"layer-shards", "shard-chains",   "parallax", "edge-llm",
                         "offload",      "static-pruning", "moe2"};
  const auto range = test::seeds(40);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    random_stream random(seed, 0x0bde);
    const auto other = instances::relabelled(at.servers, instances::shuffled(at.n_servers, random));
    for (const auto* name : names) BOOST_TEST_CONTEXT("seed " << seed << ", " << name) {
        const auto options = quick(at, *find_strategy(name), seed);
        const auto made = make_strategy(name, at.experts, at.servers, costs, options);
        const auto again = make_strategy(name, at.experts, other, costs, options);
        BOOST_REQUIRE(made.has_value() == again.has_value());
        if (made)
          BOOST_TEST(placement_cost_ns(at.experts, again->plan, other, costs) ==
                         placement_cost_ns(at.experts, made->plan, at.servers, costs),
                     boost::test_tools::tolerance(1e-9));
      }
  }
}

/// A link between two servers split in its middle by one that has no room for an expert, and no users.
cluster with_split_link(const cluster& servers, std::size_t a, std::size_t b,
                        std::size_t n_layers) {
  const auto n = servers.size();
  auto made = servers;
  made.links.assign((n + 1) * (n + 1), {});
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to)
      made.links[from * (n + 1) + to] = servers.links[from * n + to];
  auto between = servers.servers[a];
  between.name = "between";
  between.arrival_share = 0;
  between.memory_bytes = between.kv_bytes + costs.resident_bytes(n_layers);
  made.servers.push_back(between);
  const auto part = [&](std::size_t end, std::size_t other) {
    const auto& whole = servers.link(server_id{a}, server_id{b});
    const auto half = end == a ? whole.latency_ns / 2 : whole.latency_ns - whole.latency_ns / 2;
    if (other == end) return link_spec{whole.bandwidth_bytes_per_s, half};
    const auto& rest = servers.link(server_id{end}, server_id{other});
    return link_spec{std::min(whole.bandwidth_bytes_per_s, rest.bandwidth_bytes_per_s),
                     half + rest.latency_ns};
  };
  for (std::size_t k = 0; k < n; ++k) {
    const auto by_a = part(a, k), by_b = part(b, k);
    made.links[k * (n + 1) + n] = made.links[n * (n + 1) + k] =
        by_a.latency_ns < by_b.latency_ns ? by_a : by_b;
  }
  return made;
}

BOOST_AUTO_TEST_CASE(a_link_that_is_split_in_two_changes_no_chain) {
  const char* names[] = {"layer-shards", "shard-chains", "parallax", "static-pruning"};
  const auto range = test::seeds(40);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    random_stream random(seed, 0x5b11);
    const auto a = random.below(at.n_servers), b = (a + 1) % at.n_servers;
    const auto other = with_split_link(at.servers, a, b, at.n_layers);
    for (const auto* name : names) BOOST_TEST_CONTEXT("seed " << seed << ", " << name) {
        const auto options = quick(at, *find_strategy(name), seed);
        const auto made = make_strategy(name, at.experts, at.servers, costs, options);
        const auto again = make_strategy(name, at.experts, other, costs, options);
        BOOST_REQUIRE(made.has_value() == again.has_value());
        if (made)
          BOOST_TEST(placement_cost_ns(at.experts, again->plan, other, costs) ==
                         placement_cost_ns(at.experts, made->plan, at.servers, costs),
                     boost::test_tools::tolerance(1e-9));
      }
  }
}

/// The search's own estimate of what it finds; none where nothing fits.
std::optional<double> searched_cost(const drawn& at, const cluster& servers,
                                    const search_options& options) {
  const auto made = place_by_search(at.experts, servers, costs, options);
  if (!made) return std::nullopt;
  return estimate_plan(at.experts, *made, servers, costs, options);
}

BOOST_AUTO_TEST_CASE(more_memory_makes_no_searched_plan_dearer) {
  const auto range = test::seeds(40);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    const auto options = searched(seed, seed % 3 == 0 ? 0 : 0.01);
    auto roomy = at.servers;
    for (auto& each : roomy.servers) each.memory_bytes += 2 * costs.expert_bytes;
    const auto before = searched_cost(at, at.servers, options);
    const auto after = searched_cost(at, roomy, options);
    if (!before) continue;
    BOOST_REQUIRE(after.has_value());
    BOOST_TEST(*after <= *before * (1 + 1e-9), "seed " << seed << ": " << *before << " " << *after);
  }
}

/// A drawn cluster whose last `n_helpers` servers have no users.
cluster with_helpers(const drawn& at, std::size_t n_helpers, std::uint64_t seed) {
  auto made =
      instances::drawn_cluster(at.n_servers + n_helpers, at.n_layers, at.n_experts, 3, seed);
  double share = 0;
  for (std::size_t m = 0; m < at.n_servers; ++m) share += made.servers[m].arrival_share;
  for (std::size_t m = 0; m < made.size(); ++m)
    made.servers[m].arrival_share = m < at.n_servers ? made.servers[m].arrival_share / share : 0;
  return made;
}

/// By a search alone a fifth of 300 such plans are dearer, by 22 % at most, since what it finds hangs on where its random
/// moves lead: with 10,000 steps the best of six seeds is 1.3 % cheaper than one of them in the mean of 40.
BOOST_AUTO_TEST_CASE(a_helper_more_makes_no_searched_plan_dearer) {
  const auto range = test::seeds(40);
  std::size_t n_cheaper = 0;
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    const auto n_helpers = 1 + seed % 2;
    const auto more = with_helpers(at, n_helpers, seed);
    auto options = searched(seed, seed % 3 == 0 ? 0 : 0.01);
    if (seed % 4 == 0) options.concurrency = 3;
    std::optional<double> before;
    for (std::size_t n = 0; n <= n_helpers; ++n) {
      // The first `n` of them are there.
      const auto left_out = all_servers(more.size()) & ~all_servers(at.n_servers + n);
      const auto servers = without(more, left_out);
      const auto made = place_with_helpers(at.experts, servers, costs, options);
      if (!made) {
        BOOST_REQUIRE(!before);
        continue;
      }
      BOOST_TEST(validate(*made, servers, costs).has_value());
      const auto cost = estimate_plan(at.experts, *made, servers, costs, options);
      if (before)
        BOOST_TEST(cost <= *before * (1 + 1e-9),
                   "seed " << seed << ", helper " << n << ": " << *before << " " << cost);
      n_cheaper += before && cost < *before * 0.99;
      before = cost;
    }
  }
  BOOST_TEST(n_cheaper > 10u);
}

BOOST_AUTO_TEST_CASE(who_comes_to_a_helper_that_is_left_out_is_served_as_at_the_nearest_server) {
  const auto range = test::seeds(40);
  std::size_t n_left_out = 0, n_otherwise = 0;
  for (auto seed = range.first; seed <= range.last; ++seed) {
    const drawn at(seed);
    auto more = with_helpers(at, 1, seed);
    // Far from everybody, but least from the second.
    const auto n = more.size();
    for (std::size_t m = 0; m + 1 < n; ++m)
      for (const auto link : {m * n + n - 1, (n - 1) * n + m})
        more.links[link].latency_ns += (m == 1 ? 1 : 2) * 1'000'000'000LL;
    // Under a load users of different servers go different ways.
    auto options = searched(seed, 0.01);
    options.concurrency = 6;
    const auto helper = server_bit(n - 1);
    const auto whole = place_by_search(at.experts, more, costs, options);
    const auto fewer = place_by_search(at.experts, without(more, helper), costs, options);
    if (!whole || !fewer) continue;
    const auto wide = widened(*fewer, more, costs, helper);
    const auto cost = [&](const plan& of) {
      return estimate_plan(at.experts, of, more, costs, options);
    };
    if (cost(wide) >= cost(*whole)) continue;
    const auto made = place_with_helpers(at.experts, more, costs, options);
    BOOST_REQUIRE(made.has_value());
    ++n_left_out;
    BOOST_TEST((made->residence[0].layers == fewer->residence[0].layers));
    BOOST_TEST((made->residence[n - 1].layers == made->residence[1].layers));
    n_otherwise += made->residence[0].layers != made->residence[1].layers;
  }
  BOOST_TEST(n_left_out > 0u);
  BOOST_TEST(n_otherwise > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
