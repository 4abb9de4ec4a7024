#include "planning/search/trajectory_fronts.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <vector>

#include "planning/infinity.hpp"
#include "planning/search/trajectory.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;
using namespace ordermoe::planning::instances;

namespace {

struct instance {
  std::size_t n_layers, n_experts, n_slots, n_servers;
  trajectory_model model;
  std::vector<server_mask> hosts, residence;
  random_stream random;

  explicit instance(std::uint64_t seed)
      : n_layers(2 + seed % 3),
        n_experts(18 + seed % 15),
        n_slots(3 + seed % 6),
        n_servers(2 + seed % 5),
        model(random_profile(n_layers, n_experts, n_slots, seed),
              make_cost_model(drawn_cluster(n_servers, n_layers, n_experts, 2.0, seed),
                              small_costs())),
        random(seed, 0x66726f6e) {
    hosts.resize(n_layers * n_experts);
    for (auto& on : hosts) on = draw_servers();
    residence.resize(n_layers);
    for (auto& members : residence) members = draw_servers();
  }

  server_mask draw_servers() { return 1 + random.below((server_mask{1} << n_servers) - 1); }
  /// One expert comes to a server or leaves it, or a layer's residence changes.
  std::size_t change() {
    const auto l = random.below(n_layers);
    if (random.below(5) == 0) {
      residence[l] = draw_servers();
      return l;
    }
    auto& on = hosts[l * n_experts + random.below(n_experts)];
    const auto other = on ^ (server_mask{1} << random.below(n_servers));
    if (other != 0) on = other;
    return l;
  }
};

bool same(const trajectory_estimate& a, const trajectory_estimate& b) {
  return a.token_ns == b.token_ns && a.token_nats == b.token_nats;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(trajectory_fronts)

// What is taken over is copied and what is not is swept in the same order, so that nothing but
// equality is allowed.
BOOST_AUTO_TEST_CASE(layers_rebuilt_after_each_change_equal_layers_built_anew) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    instance what(seed);
    trajectory kept(what.model);
    const double price = seed % 4 == 0 ? infinity : 1e6 * static_cast<double>(1 + seed % 7);
    kept.set_price(price);
    kept.forbid_losses(seed % 8 == 0);
    kept.rebuild(what.hosts, what.residence);
    for (int step = 0; step < 24; ++step) {
      const auto hosts = what.hosts, residence = what.residence;
      const auto before = kept.solve();
      const auto l = what.change();
      kept.rebuild_layer(l, what.hosts, what.residence);
      kept.rebuild_layer((l + what.n_layers - 1) % what.n_layers, what.hosts, what.residence);
      if (l == 0 || l + 1 == what.n_layers)
        kept.rebuild_layer(what.n_layers - 1, what.hosts, what.residence);
      trajectory fresh(what.model);
      fresh.set_price(price);
      fresh.forbid_losses(seed % 8 == 0);
      fresh.rebuild(what.hosts, what.residence);
      BOOST_TEST_CONTEXT("seed " << seed << " step " << step) {
        BOOST_TEST_REQUIRE(same(kept.solve(), fresh.solve()));
        if (step % 3 == 0) {
          kept.roll_back();
          what.hosts = hosts;
          what.residence = residence;
          BOOST_TEST_REQUIRE(same(kept.solve(), before));
        } else {
          kept.commit();
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(fronts_of_one_price_serve_every_other_and_other_waits) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    instance what(seed);
    trajectory kept(what.model);
    kept.set_price(3e6);
    kept.rebuild(what.hosts, what.residence);
    double last_nats = infinity;
    std::vector<double> waits(what.n_servers, 0);
    for (const double price : {0.0, 1e5, 1e6, 1e7, 1e9, infinity})
      for (const double wait : {0.0, 2e5}) {
        waits[0] = wait;
        kept.set_price(price);
        kept.set_waits(waits);
        kept.rebuild(what.hosts, what.residence);
        trajectory fresh(what.model);
        fresh.set_price(price);
        fresh.set_waits(waits);
        fresh.rebuild(what.hosts, what.residence);
        BOOST_TEST_CONTEXT("seed " << seed << " price " << price)
        BOOST_TEST_REQUIRE(same(kept.solve(), fresh.solve()));
        if (wait != 0) continue;
        // A dearer nat is never spent more of, and at last none is.
        BOOST_TEST(kept.solve().token_nats <= last_nats * (1 + 1e-6) + 1e-12);
        last_nats = kept.solve().token_nats;
      }
    BOOST_TEST(last_nats == 0);
  }
}

BOOST_AUTO_TEST_CASE(only_sets_that_a_change_concerns_are_swept_again) {
  std::uint64_t n_anew = 0, n_again = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    instance what(seed);
    front_builder builder(what.model);
    const std::vector<std::uint8_t> ends{0};
    const std::vector<double> waits(what.n_servers, 0);
    std::span<server_mask> hosts(what.hosts.data(), what.n_experts);
    layer_fronts none, known, again;
    builder.build(0, hosts, ends, ends, waits, true, none, known);
    const auto n_first = builder.n_sweeps();
    BOOST_TEST_REQUIRE(n_first == what.model.layers[0].n_sets);
    hosts[seed % what.n_experts] ^= hosts[seed % what.n_experts] == 1 ? 2 : 1;
    if (hosts[seed % what.n_experts] == 0) hosts[seed % what.n_experts] = 1;
    builder.build(0, hosts, ends, ends, waits, true, known, again);
    n_anew += n_first;
    n_again += builder.n_sweeps() - n_first;
  }
  BOOST_TEST(n_again > 0u);
  BOOST_TEST(2 * n_again < n_anew);
}

BOOST_AUTO_TEST_CASE(a_held_policy_bounds_what_a_change_of_a_layer_costs) {
  std::size_t n_changed = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    instance what(seed);
    what.residence[0] = 1;
    trajectory problem(what.model);
    problem.set_price(2e6);
    problem.rebuild(what.hosts, what.residence);
    problem.solve();
    problem.hold_policy();
    const double before = problem.solve_cost();
    for (int step = 0; step < 12; ++step) {
      const auto l = what.random.below(what.n_layers);
      const auto item = l * what.n_experts + what.random.below(what.n_experts);
      const auto on = what.hosts[item];
      what.hosts[item] ^= server_mask{1} << what.random.below(what.n_servers);
      if (what.hosts[item] != 0) {
        const double held = problem.held_cost(l);
        problem.rebuild_layer(l, what.hosts, what.residence);
        const double bound = problem.held_cost(l) - held;
        const double change = problem.solve_cost() - before;
        problem.roll_back();
        BOOST_TEST_CONTEXT("seed " << seed << " step " << step)
        BOOST_TEST(change <= bound + 1e-9 * before);
        n_changed += std::abs(change) > 1e-9 * before ? 1 : 0;
      }
      what.hosts[item] = on;
    }
  }
  BOOST_TEST(n_changed > 20u);
}

BOOST_AUTO_TEST_SUITE_END()
