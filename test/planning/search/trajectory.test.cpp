#include "planning/search/trajectory.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <vector>

#include "config/random.hpp"
#include "planning/infinity.hpp"
#include "planning/placement.hpp"
#include "planning/selection/selector.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;
using namespace ordermoe::planning::instances;

namespace {

struct instance {
  profile experts;
  cluster servers;
  plan placed;
};

/// Every expert on one server at least, random residencies of up to `max_members` servers.
instance drawn_instance(std::size_t n_servers, std::size_t n_layers, std::size_t n_experts,
                        std::size_t top_k, std::size_t max_members, std::uint64_t seed,
                        bool coarser = false) {
  instance out;
  out.experts = random_profile(n_layers, n_experts, top_k, seed);
  out.servers = drawn_cluster(n_servers, n_layers, n_experts, 2.0, seed);
  if (coarser) keep_coarser(out.servers, out.experts, seed);
  random_stream random(seed, 77);
  auto& placed = out.placed;
  placed.n_servers = n_servers;
  placed.n_layers = n_layers;
  placed.n_experts = n_experts;
  for (std::size_t l = 0; l < n_layers; ++l) {
    for (std::size_t e = 0; e < n_experts; ++e) {
      // The first and each third server keep experts as the model has them.
      const auto home = coarser ? random.below(n_servers) / 3 * 3 : random.below(n_servers);
      for (std::size_t m = 0; m < n_servers; ++m) {
        if (m == home || random.below(3) == 0)
          placed.experts.push_back({server_id{m}, layer_id{l}, expert_id{e}});
      }
    }
  }
  for (std::size_t a = 0; a < n_servers; ++a) {
    residency members;
    for (std::size_t l = 0; l < n_layers; ++l) {
      server_mask mask = 0;
      for (std::size_t i = 0; i < 1 + random.below(max_members); ++i)
        mask |= server_mask{1} << random.below(n_servers);
      members.layers.push_back(mask);
    }
    placed.residence.push_back(members);
  }
  return out;
}

/// The definition, spelt out: every residence, every server and every expert for every slot, and
/// plain value iteration for the average over positions.
class oracle {
 public:
  oracle(const instance& what, std::size_t access, double price)
      : what_(what),
        costs_(make_cost_model(what.servers, small_costs())),
        members_(what.placed.residence[access].layers),
        price_(price) {}

  /// Average of time + price * nats.
  double cost() {
    const auto n = what_.servers.size();
    std::vector<double> bias(n, 0);
    double average = 0;
    for (int round = 0; round < 100000; ++round) {
      auto next = start_values(bias);
      double low = infinity, high = -infinity, reference = infinity;
      for (std::size_t r = 0; r < n; ++r) {
        if (!is_member(0, r)) continue;
        low = std::min(low, next[r] - bias[r]);
        high = std::max(high, next[r] - bias[r]);
        if (reference == infinity) reference = next[r];
      }
      average = 0.5 * (low + high);
      if (high - low < 1e-9 * high) return average;
      for (std::size_t r = 0; r < n; ++r) {
        if (is_member(0, r)) bias[r] = 0.5 * bias[r] + 0.5 * (next[r] - reference);
      }
    }
    BOOST_FAIL("value iteration did not settle");
    return average;
  }

 private:
  bool is_member(std::size_t l, std::size_t s) const { return (members_[l] >> s) & 1u; }

  double nats(std::size_t l, const target_set& set, std::size_t j, std::size_t k) const {
    const auto& layer = what_.experts.layers[l];
    const auto r = set.experts[j];
    if (r == k) return 0;
    double regret = std::max(0.0, layer.token_gate_regret(r, k));
    if (std::find(set.experts.begin(), set.experts.end(), k) != set.experts.end()) {
      for (std::size_t x = 0; x < what_.experts.n_experts; ++x)
        regret = std::max(regret, layer.token_gate_regret(r, x));
    }
    return layer.damage[static_cast<std::size_t>(loss_metric::token_gate)] * regret;
  }

  double copy_nats(std::size_t l, const target_set& set, std::size_t j, std::size_t m,
                   std::size_t e) const {
    const auto kept = what_.servers.servers[m].expert_precision;
    if (kept == precision::stored) return 0;
    for (const auto& copy : what_.experts.layers[l].copies)
      if (copy.kept == kept) return copy.damage * std::pow(copy.distance[e] * set.mean_gate[j], 2);
    return infinity;
  }

  double best_step(std::size_t l, std::size_t s, std::size_t n, const target_set& set) const {
    const auto k = set.experts.size();
    const auto n_servers = what_.servers.size(), n_experts = what_.experts.n_experts;
    std::vector<std::size_t> servers(k), experts(k);
    double best = infinity;
    const auto assign = [&](auto&& self, std::size_t j, double spent) -> void {
      if (j == k) {
        double time = costs_.hidden(s, n);
        for (std::size_t m = 0; m < n_servers; ++m) {
          std::vector<std::size_t> distinct;
          for (std::size_t i = 0; i < k; ++i) {
            if (servers[i] == m &&
                std::find(distinct.begin(), distinct.end(), experts[i]) == distinct.end())
              distinct.push_back(experts[i]);
          }
          if (distinct.empty()) continue;
          time = std::max(time, costs_.hidden(s, m) +
                                    static_cast<double>(distinct.size()) * costs_.expert_ns[m] +
                                    costs_.hidden(m, n));
        }
        best = std::min(best, time + (spent == 0 ? 0 : price_ * spent));
        return;
      }
      for (std::size_t m = 0; m < n_servers; ++m) {
        for (std::size_t e = 0; e < n_experts; ++e) {
          if (!what_.placed.hosts(server_id{m}, layer_id{l}, expert_id{e})) continue;
          const double copy = copy_nats(l, set, j, m, e);
          if (std::isinf(price_) && (e != set.experts[j] || copy > 0)) continue;
          if (std::find(experts.begin(), experts.begin() + static_cast<std::ptrdiff_t>(j), e) !=
              experts.begin() + static_cast<std::ptrdiff_t>(j))
            continue;
          servers[j] = m;
          experts[j] = e;
          self(self, j + 1, spent + nats(l, set, j, e) + copy);
        }
      }
    };
    assign(assign, 0, 0);
    return best;
  }

  std::vector<double> start_values(const std::vector<double>& bias) {
    const auto n = what_.servers.size();
    const auto n_layers = what_.experts.n_layers;
    const bool first_call = steps_.empty();
    std::size_t at = 0;
    std::vector<std::vector<double>> after;  // [server][set] of the layer above
    for (std::size_t l = n_layers; l-- > 0;) {
      const auto& layer = what_.experts.layers[l];
      std::vector<std::vector<double>> here(n, std::vector<double>(layer.sets.size(), infinity));
      for (std::size_t s = 0; s < n; ++s) {
        if (!is_member(l, s)) continue;
        for (std::size_t q = 0; q < layer.sets.size(); ++q) {
          for (std::size_t t = 0; t < n; ++t) {
            const bool last = l + 1 == n_layers;
            if (!(last ? is_member(l, t) || is_member(0, t) : is_member(l + 1, t))) continue;
            double onward = 0;
            if (last) {
              onward = infinity;
              for (std::size_t r = 0; r < n; ++r) {
                if (is_member(0, r)) onward = std::min(onward, costs_.message(t, r) + bias[r]);
              }
              onward += costs_.head_ns[t];
            } else {
              onward = costs_.attention_ns[t];
              for (std::size_t p = 0; p < after[t].size(); ++p)
                onward += layer.set_transition(q, p) * after[t][p];
            }
            if (first_call) steps_.push_back(best_step(l, s, t, layer.sets[q]));
            here[s][q] = std::min(here[s][q], steps_[at++] + onward);
          }
        }
      }
      after = std::move(here);
    }
    std::vector<double> starts(n, 0);
    for (std::size_t r = 0; r < n; ++r) {
      if (!is_member(0, r)) continue;
      starts[r] = costs_.attention_ns[r];
      for (std::size_t q = 0; q < after[r].size(); ++q)
        starts[r] += what_.experts.layers[0].sets[q].probability * after[r][q];
    }
    return starts;
  }

  const instance& what_;
  cost_model costs_;
  std::vector<server_mask> members_;
  double price_;
  std::vector<double> steps_;  // In the order of the sweep.
};

double estimated_cost(const instance& what, std::size_t access, double price) {
  const auto estimate =
      estimate_trajectory(what.experts, what.placed, what.servers, small_costs(), access, price);
  return estimate.token_ns + (std::isinf(price) ? 0 : price * estimate.token_nats);
}

std::vector<server_mask> hosts_of(const plan& placed) {
  const placement_index index(placed);
  std::vector<server_mask> hosts;
  for (std::size_t l = 0; l < placed.n_layers; ++l) {
    for (std::size_t e = 0; e < placed.n_experts; ++e) hosts.push_back(index.hosts(l, e));
  }
  return hosts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(trajectory)

BOOST_AUTO_TEST_CASE(estimate_equals_the_spelt_out_expectation_for_one_and_two_slots) {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const std::size_t top_k = 1 + seed % 2;
    const auto what = drawn_instance(4, 3, 4, top_k, 1 + seed % 3, seed);
    for (const double price : {1e5, 3e6, 1e8, infinity}) {
      const double expected = oracle(what, seed % 4, price).cost();
      BOOST_TEST_CONTEXT("seed " << seed << " price " << price)
      BOOST_TEST(estimated_cost(what, seed % 4, price) == expected,
                 boost::test_tools::tolerance(1e-6));
    }
  }
}

BOOST_AUTO_TEST_CASE(estimate_with_coarser_copies_equals_the_spelt_out_expectation) {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    const std::size_t top_k = 1 + seed % 2;
    const auto what = drawn_instance(4, 3, 4, top_k, 1 + seed % 3, seed, true);
    for (const double price : {1e5, 3e6, 1e8, 1e10, infinity}) {
      const double expected = oracle(what, seed % 4, price).cost();
      BOOST_TEST_CONTEXT("seed " << seed << " price " << price)
      BOOST_TEST(estimated_cost(what, seed % 4, price) == expected,
                 boost::test_tools::tolerance(1e-6));
    }
  }
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto what = drawn_instance(4, 2, 5, 3, 2, seed, true);
    for (const double price : {1e6, 1e8, 1e10, infinity}) {
      const double expected = oracle(what, 0, price).cost();
      const double found = estimated_cost(what, 0, price);
      BOOST_TEST_CONTEXT("three slots, seed " << seed << " price " << price) {
        BOOST_TEST(found >= expected * (1 - 1e-6));
        BOOST_TEST(found <= expected * 1.03);
      }
    }
  }
}

// Where three slots would have to change places at once the sweep may miss the best.
BOOST_AUTO_TEST_CASE(
    estimate_for_three_slots_is_never_below_the_optimum_and_19_in_20_are_at_most_3_percent_above) {
  std::size_t n = 0, n_above = 0;
  double excess = 0, largest = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    const auto what = drawn_instance(4, 2, 5, 3, 2, seed);
    for (const double price : {1e6, 1e8, infinity}) {
      const double expected = oracle(what, 0, price).cost();
      const double found = estimated_cost(what, 0, price);
      BOOST_TEST_CONTEXT("seed " << seed << " price " << price)
      BOOST_TEST(found >= expected * (1 - 1e-7));
      // Each of these, ever since they were first tried.
      if (seed <= 12 && seed % 2 == 1) BOOST_TEST(found <= expected * 1.03);
      ++n;
      n_above += found > expected * 1.03;
      excess += found / expected - 1;
      largest = std::max(largest, found / expected - 1);
    }
  }
  BOOST_TEST_MESSAGE(n_above << " of " << n << " above, mean excess "
                             << excess / static_cast<double>(n) << ", largest " << largest);
  BOOST_TEST(20 * n_above <= n);
  BOOST_TEST(excess <= 0.01 * static_cast<double>(n));
}

BOOST_AUTO_TEST_CASE(exact_estimate_is_what_the_selector_expects_at_full_depth) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    auto what = drawn_instance(5, 4, 6, 2, 2, seed);
    for (auto& members : what.placed.residence) members.layers[0] = server_mask{1} << seed % 5;
    const auto costs = make_cost_model(what.servers, small_costs());
    selection_policy policy;
    policy.candidates = candidate_rule::exact;
    policy.horizon = 0;
    policy.omega_time = 1;
    policy.omega_quality = 0;
    policy.price_attention = true;
    const auto tables = selection_tables::build(what.experts, what.placed, costs, policy, 0);
    BOOST_REQUIRE(tables.has_value());
    double expected = 0, reference_ns = 0;
    const auto& sets = what.experts.layers[0].sets;
    for (std::size_t q = 0; q < sets.size(); ++q)
      expected += sets[q].probability * (*tables)->value(0, 0, seed % 5, q, 0);
    // A policy counts time in experts' mean times.
    for (const double ns : costs.expert_ns) reference_ns += ns / 5;
    BOOST_TEST_CONTEXT("seed " << seed)
    BOOST_TEST(estimated_cost(what, 0, infinity) == expected * reference_ns,
               boost::test_tools::tolerance(1e-6));
  }
}

BOOST_AUTO_TEST_CASE(estimate_does_not_depend_on_the_names_of_the_servers) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const auto what = drawn_instance(5, 3, 4, 2, 3, seed);
    random_stream random(seed, 5);
    const auto order = shuffled(5, random);
    std::vector<std::size_t> place(5);
    for (std::size_t i = 0; i < 5; ++i) place[order[i]] = i;
    auto changed = what;
    changed.servers = relabelled(what.servers, order);
    for (auto& entry : changed.placed.experts)
      entry.server = server_id{place[entry.server.index()]};
    for (std::size_t a = 0; a < 5; ++a) {
      for (std::size_t l = 0; l < 3; ++l) {
        server_mask mask = 0;
        for (std::size_t m = 0; m < 5; ++m) {
          if ((what.placed.residence[order[a]].layers[l] >> m) & 1u)
            mask |= server_mask{1} << place[m];
        }
        changed.placed.residence[a].layers[l] = mask;
      }
    }
    BOOST_TEST(estimated_cost(changed, place[2], 1e7) == estimated_cost(what, 2, 1e7),
               boost::test_tools::tolerance(1e-7));
  }
}

BOOST_AUTO_TEST_CASE(a_layer_rebuilt_and_rolled_back_leaves_the_estimate_as_it_was) {
  const auto what = drawn_instance(5, 4, 6, 2, 2, 3);
  const trajectory_model model(what.experts, make_cost_model(what.servers, small_costs()));
  planning::trajectory problem(model);
  problem.set_price(5e6);
  auto hosts = hosts_of(what.placed);
  auto members = what.placed.residence[1].layers;
  problem.rebuild(hosts, members);
  const double before = problem.solve_cost();

  auto moved = hosts;
  for (std::size_t e = 0; e < 6; ++e) moved[2 * 6 + e] = 1;
  auto rehomed = members;
  rehomed[2] = 2;
  problem.rebuild_layer(2, moved, rehomed);
  problem.rebuild_layer(1, moved, rehomed);
  const double during = problem.solve_cost();
  planning::trajectory fresh(model);
  fresh.set_price(5e6);
  fresh.rebuild(moved, rehomed);
  BOOST_TEST(during == fresh.solve_cost());
  BOOST_TEST(during != before);
  problem.roll_back();
  BOOST_TEST(problem.solve_cost() == before);
}

// What goes by the hosts alone is kept while prices change, so that nothing but equality is allowed.
BOOST_AUTO_TEST_CASE(any_order_of_prices_and_hosts_gives_what_they_give_when_built_anew) {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    const bool coarse = seed % 4 < 2;
    const auto what = drawn_instance(4, 3, 5, 1 + seed % 2, 2, seed, coarse);
    const trajectory_model model(what.experts, make_cost_model(what.servers, small_costs()));
    const auto& members = what.placed.residence[0].layers;
    const auto placed = hosts_of(what.placed);
    auto hosts = placed;
    planning::trajectory kept(model);
    random_stream random(seed, 9);
    const double prices[] = {0, 1e5, 1e5, 1e8, infinity};
    for (int step = 0; step < 40; ++step) {
      if (random.below(2) == 0) {
        const auto item = random.below(hosts.size());
        hosts[item] =
            random.below(2) == 0 ? placed[item] : placed[item] | server_mask{1} << random.below(4);
      }
      const double price = prices[random.below(std::size(prices))];
      kept.set_price(price);
      kept.rebuild(hosts, members);
      planning::trajectory fresh(model);
      fresh.set_price(price);
      fresh.rebuild(hosts, members);
      const auto before = kept.solve(), anew = fresh.solve();
      BOOST_TEST_CONTEXT("seed " << seed << " step " << step) {
        BOOST_TEST_REQUIRE(before.token_ns == anew.token_ns);
        BOOST_TEST_REQUIRE(before.token_nats == anew.token_nats);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(exact_usage_runs_every_expert_as_often_as_the_router_asks_for_it) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const auto what = drawn_instance(4, 3, 5, 2, 3, seed);
    const auto costs = make_cost_model(what.servers, small_costs());
    const trajectory_model model(what.experts, costs);
    planning::trajectory problem(model);
    problem.track_usage(true);
    problem.rebuild(hosts_of(what.placed), what.placed.residence[0].layers);
    problem.solve();
    const auto usage = problem.usage();
    std::vector<double> sets;
    for (const auto& set : what.experts.layers[0].sets) sets.push_back(set.probability);
    double busy = 0;
    for (std::size_t l = 0; l < 3; ++l) {
      const auto& layer = what.experts.layers[l];
      std::vector<double> wanted(5, 0);
      for (std::size_t q = 0; q < sets.size(); ++q) {
        for (const auto e : layer.sets[q].experts) wanted[e] += sets[q];
      }
      for (std::size_t e = 0; e < 5; ++e) {
        double runs = 0;
        for (std::size_t m = 0; m < 4; ++m) {
          runs += usage.expert_runs[(m * 3 + l) * 5 + e];
          busy += usage.expert_runs[(m * 3 + l) * 5 + e] * costs.expert_ns[m];
          if (!what.placed.hosts(server_id{m}, layer_id{l}, expert_id{e}))
            BOOST_TEST(usage.expert_runs[(m * 3 + l) * 5 + e] == 0);
        }
        BOOST_TEST(runs == wanted[e], boost::test_tools::tolerance(1e-9));
      }
      double visits = 0;
      for (std::size_t m = 0; m < 4; ++m) {
        visits += usage.visits[l * 4 + m];
        busy += usage.visits[l * 4 + m] * costs.attention_ns[m];
        if (((what.placed.residence[0].layers[l] >> m) & 1u) == 0)
          BOOST_TEST(usage.visits[l * 4 + m] == 0);
      }
      BOOST_TEST(visits == 1, boost::test_tools::tolerance(1e-9));
      if (l == 2) break;
      std::vector<double> after(what.experts.layers[l + 1].sets.size(), 0);
      for (std::size_t q = 0; q < sets.size(); ++q) {
        for (std::size_t p = 0; p < after.size(); ++p)
          after[p] += sets[q] * layer.set_transition(q, p);
      }
      sets = after;
    }
    double told = 0;
    for (std::size_t m = 0; m < 4; ++m) {
      told += usage.busy_ns[m];
      busy += usage.head_runs[m] * costs.head_ns[m];
    }
    BOOST_TEST(told == busy, boost::test_tools::tolerance(1e-9));
  }
}

BOOST_AUTO_TEST_CASE(queues_are_empty_for_one_position_and_grow_with_their_number) {
  const auto what = drawn_instance(4, 3, 5, 2, 1, 2);
  const trajectory_model model(what.experts, make_cost_model(what.servers, small_costs()));
  planning::trajectory problem(model);
  problem.track_usage(true);
  problem.rebuild(hosts_of(what.placed), what.placed.residence[0].layers);
  const double alone = problem.solve().token_ns;
  const auto usage = problem.usage();
  BOOST_TEST(estimate_queues(model, usage, alone, 1, {}).token_ns == alone,
             boost::test_tools::tolerance(1e-9));
  double before = alone;
  for (const double n : {2.0, 4.0, 8.0, 16.0, 64.0, 1024.0}) {
    const auto queues = estimate_queues(model, usage, alone, n, {});
    BOOST_TEST(queues.token_ns > before);
    before = queues.token_ns;
    // Whatever waits, a row is served within two rounds of all the jobs that its server knows.
    for (std::size_t m = 0; m < 4; ++m) {
      const double round =
          3 * model.costs.attention_ns[m] + 15 * model.costs.expert_ns[m] + model.costs.head_ns[m];
      BOOST_TEST(queues.wait_ns[m] <= 2 * round);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
