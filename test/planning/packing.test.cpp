#include "planning/packing.hpp"

#include <fmt/format.h>

#include <bit>
#include <boost/test/unit_test.hpp>
#include <numeric>

#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

/// Random sizes, limits and groups. `slack`: limits of all servers together over the bytes needed.
packing_problem random_problem(random_stream& random, std::size_t n_servers, std::size_t n_layers,
                               std::size_t n_experts, bool one_size, double slack) {
  packing_problem problem;
  problem.n_servers = n_servers;
  problem.n_layers = n_layers;
  problem.n_experts = n_experts;
  std::int64_t needed = 0;
  for (std::size_t i = 0; i < n_layers * n_experts; ++i) {
    problem.expert_bytes.push_back(one_size ? 10 : 3 + static_cast<std::int64_t>(random.below(18)));
    needed += problem.expert_bytes.back();
  }
  double weight = 0;
  std::vector<double> weights;
  for (std::size_t m = 0; m < n_servers; ++m)
    weight += weights.emplace_back(random.uniform(0.5, 1.5));
  for (std::size_t m = 0; m < n_servers; ++m) {
    problem.limit_bytes.push_back(
        static_cast<std::int64_t>(static_cast<double>(needed) * slack * weights[m] / weight));
    problem.arrival_share.push_back(random.unit());
    problem.server_names.push_back(fmt::format("s{}", m));
  }
  const auto experts = random_profile(n_layers, n_experts, 1, random.bits());
  for (std::size_t l = 0; l < n_layers; ++l)
    problem.grouping.push_back(
        group_layer(experts.layers[l], experts.layers[l].router_logit, 0.6, {}));
  return problem;
}

void check_constraints(const packing& state, std::size_t copies) {
  const auto& problem = state.problem();
  std::vector<std::int64_t> used(problem.n_servers, 0);
  std::vector<std::vector<bool>> seen(problem.n_servers,
                                      std::vector<bool>(problem.expert_bytes.size(), false));
  for (const auto& placed : state.placed()) {
    const auto flat = placed.layer.index() * problem.n_experts + placed.expert.index();
    BOOST_TEST(!seen[placed.server.index()][flat]);
    seen[placed.server.index()][flat] = true;
    used[placed.server.index()] += problem.expert_bytes[flat];
  }
  for (std::size_t m = 0; m < problem.n_servers; ++m) {
    BOOST_TEST(used[m] <= problem.limit_bytes[m]);
    BOOST_TEST(used[m] == state.used_bytes(m));
  }
  for (std::size_t flat = 0; flat < problem.expert_bytes.size(); ++flat) {
    std::size_t n = 0;
    for (std::size_t m = 0; m < problem.n_servers; ++m) n += seen[m][flat];
    BOOST_TEST(n >= copies);
  }
}

/// Whether any assignment at all places `copies` of every expert: every subset for every expert.
bool exists_packing(const packing_problem& problem, std::size_t copies, std::size_t item,
                    std::vector<std::int64_t>& free) {
  if (item == problem.expert_bytes.size()) return true;
  for (std::uint32_t subset = 0; subset < (1u << problem.n_servers); ++subset) {
    if (static_cast<std::size_t>(std::popcount(subset)) != copies) continue;
    bool fits = true;
    for (std::size_t m = 0; m < problem.n_servers; ++m)
      if ((subset >> m) & 1u) fits = fits && free[m] >= problem.expert_bytes[item];
    if (!fits) continue;
    for (std::size_t m = 0; m < problem.n_servers; ++m)
      if ((subset >> m) & 1u) free[m] -= problem.expert_bytes[item];
    const bool found = exists_packing(problem, copies, item + 1, free);
    for (std::size_t m = 0; m < problem.n_servers; ++m)
      if ((subset >> m) & 1u) free[m] += problem.expert_bytes[item];
    if (found) return true;
  }
  return false;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(packing)

BOOST_AUTO_TEST_CASE(the_score_adds_load_and_members_of_the_same_group) {
  packing_problem problem;
  problem.n_servers = 2;
  problem.n_layers = 1;
  problem.n_experts = 3;
  problem.expert_bytes = {10, 10, 10};
  problem.limit_bytes = {40, 20};
  problem.arrival_share = {0.25, 0.75};
  problem.server_names = {"a", "b"};
  problem.grouping = {{0.5, {{0, {0, 1}}, {2, {2}}}, {0, 0, 1}, {0.8, 0.8, 1}, {0.6, 0.5, 0.4}}};
  planning::packing state(problem);
  BOOST_TEST(packing_score(state, 0, 0, 0, 0.5) == 0.0);
  state.place(0, 0, 0, placement_reason::mandatory, 0);
  BOOST_TEST(packing_score(state, 0, 0, 1, 0.5) == 0.5 * 0.25 + 0.5 * 1);
  BOOST_TEST(packing_score(state, 0, 0, 2, 0.5) == 0.5 * 0.25);
  BOOST_TEST(memory_feasible(state, 0, 0) == 2u);
  BOOST_TEST(memory_feasible(state, 0, 1) == 3u);
  BOOST_TEST(lowest_score(state, 3, 0, 1, 0.5) == 1u);
  BOOST_TEST(group_is_covered(state, 0, 0, 0));
  BOOST_TEST(!group_is_covered(state, 1, 0, 0));
  // pi_m * I / p, and nothing where the group is covered.
  BOOST_TEST(redundancy_benefit(state, 1, 0, 0) == 0.75 * 0.6 / 10);
  BOOST_TEST(redundancy_benefit(state, 0, 0, 1) == 0.0);
  BOOST_TEST(redundancy_benefit(state, 0, 0, 2) == 0.25 * 0.4 / 10);
}

BOOST_AUTO_TEST_CASE(mandatory_placement_keeps_the_constraints_whenever_a_packing_exists) {
  std::size_t n_packed = 0, n_infeasible = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed);
      const auto n_servers = 2 + random.below(3);
      const auto copies = 1 + random.below(2);
      const bool one_size = random.below(2) == 0;
      const auto problem = random_problem(random, n_servers, 1 + random.below(2), 3, one_size,
                                          static_cast<double>(copies) * random.uniform(0.95, 1.35));
      planning::packing state(problem);
      placement_options options;
      options.min_copies = copies;
      const auto deployed = deploy_mandatory(state, options);
      auto free = problem.limit_bytes;
      const bool exists = exists_packing(problem, copies, 0, free);
      BOOST_TEST(deployed.has_value() == exists, (deployed ? "" : deployed.error().message));
      if (deployed) {
        ++n_packed;
        check_constraints(state, copies);
      } else {
        ++n_infeasible;
        BOOST_TEST((deployed.error().code == errc::infeasible));
      }
    }
  }
  BOOST_TEST(n_packed > 50u);
  BOOST_TEST(n_infeasible > 50u);
}

BOOST_AUTO_TEST_CASE(the_bytes_said_to_be_missing_make_it_fit) {
  std::size_t n_tried = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    random_stream random(seed, 9);
    auto problem = random_problem(random, 3, 2, 4, true, random.uniform(0.5, 1.0));
    planning::packing state(problem);
    const auto deployed = deploy_mandatory(state, {});
    if (deployed) continue;
    ++n_tried;
    // "...(s0 has A bytes for experts and lacks B; s1 ..."
    const auto& message = deployed.error().message;
    std::int64_t total = 0;
    for (std::size_t m = 0; m < 3; ++m) {
      const auto named = message.find(fmt::format("s{} has", m));
      if (named == std::string::npos) continue;  // It lacks nothing.
      const auto at = message.find("lacks ", named);
      const auto lacks = std::stoll(message.substr(at + 6));
      problem.limit_bytes[m] += lacks;
      total += lacks;
    }
    BOOST_TEST(message.find(fmt::format("{} bytes are missing in total", total)) !=
               std::string::npos);
    planning::packing again(problem);
    BOOST_TEST(deploy_mandatory(again, {}).has_value(), message);
  }
  BOOST_TEST(n_tried > 50u);
}

BOOST_AUTO_TEST_CASE(each_layer_is_placed_by_falling_size_and_then_importance) {
  random_stream random(11);
  auto problem = random_problem(random, 3, 2, 6, false, 1.6);
  for (auto& bytes : problem.expert_bytes) bytes = 5 * (1 + bytes / 8);
  planning::packing state(problem);
  BOOST_REQUIRE(deploy_mandatory(state, {}).has_value());
  const auto& placed = state.placed();
  BOOST_REQUIRE(placed.size() == 12u);
  std::size_t n_ties = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    BOOST_TEST(placed[i].layer.index() == i / 6);
    BOOST_TEST((placed[i].reason == placement_reason::mandatory));
    if (i % 6 == 0) continue;
    const auto l = i / 6, before = placed[i - 1].expert.index(), here = placed[i].expert.index();
    BOOST_TEST(problem.bytes(l, before) >= problem.bytes(l, here));
    if (problem.bytes(l, before) != problem.bytes(l, here)) continue;
    ++n_ties;
    BOOST_TEST(problem.grouping[l].importance[before] >= problem.grouping[l].importance[here]);
  }
  BOOST_TEST(n_ties > 0u);
  BOOST_TEST(n_ties < 10u);
}

BOOST_AUTO_TEST_CASE(chains_of_moves_make_room_for_a_second_copy) {
  // Server 2 alone has room and holds expert 0 already: 0 can only get its second copy if 1 moves.
  packing_problem problem;
  problem.n_servers = 3;
  problem.n_layers = 1;
  problem.n_experts = 3;
  problem.expert_bytes = {10, 10, 10};
  problem.limit_bytes = {10, 10, 20};
  problem.arrival_share = {0.3, 0.3, 0.4};
  problem.server_names = {"a", "b", "c"};
  planning::packing state(problem);
  state.place(0, 0, 1, placement_reason::mandatory, 0);
  state.place(1, 0, 2, placement_reason::mandatory, 0);
  state.place(2, 0, 0, placement_reason::mandatory, 0);
  BOOST_TEST(make_room(state, 0, 0, placement_reason::min_copies));
  BOOST_TEST(std::popcount(state.hosts(0, 0)) == 2);
  check_constraints(state, 1);
  BOOST_TEST(!make_room(state, 0, 1, placement_reason::min_copies));
}

BOOST_AUTO_TEST_CASE(an_expert_that_waits_gets_room_by_moving_another) {
  // First fit by score spreads 6 and 5 over both servers; 10 fits nowhere until one of them moves.
  packing_problem problem;
  problem.n_servers = 2;
  problem.n_layers = 2;
  problem.n_experts = 2;
  problem.expert_bytes = {6, 5, 10, 1};
  problem.limit_bytes = {11, 11};
  problem.arrival_share = {0.5, 0.5};
  problem.server_names = {"a", "b"};
  problem.grouping.assign(2, {0.5, {{0, {0}}, {1, {1}}}, {0, 1}, {1, 1}, {0.5, 0.5}});
  planning::packing state(problem);
  const auto deployed = deploy_mandatory(state, {});
  BOOST_REQUIRE_MESSAGE(deployed.has_value(), (deployed ? "" : deployed.error().message));
  check_constraints(state, 1);
  std::size_t n_waited = 0, n_moved = 0;
  for (const auto& placed : state.placed()) {
    n_waited += placed.reason == placement_reason::waiting_list;
    n_moved += placed.reason == placement_reason::repair;
  }
  BOOST_TEST(n_waited == 1u);
  BOOST_TEST(n_moved == 1u);
}

BOOST_AUTO_TEST_CASE(replicas_come_in_the_order_of_a_search_from_scratch) {
  std::size_t n_replicas = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 2);
      const auto problem = random_problem(random, 2 + random.below(4), 1 + random.below(4), 6,
                                          random.below(2) == 0, random.uniform(1.3, 3.0));
      planning::packing state(problem);
      if (!deploy_mandatory(state, {})) continue;
      planning::packing naive = state;
      deploy_redundant(state);

      while (true) {
        double best = 0;
        std::size_t server = 0, layer = 0, expert = 0;
        for (std::size_t m = 0; m < problem.n_servers; ++m)
          for (std::size_t l = 0; l < problem.n_layers; ++l)
            for (std::size_t j = 0; j < problem.n_experts; ++j) {
              std::int64_t used = 0;
              bool covered = false;
              for (const auto& placed : naive.placed())
                if (placed.server.index() == m) {
                  used += problem.bytes(placed.layer.index(), placed.expert.index());
                  covered = covered || (placed.layer.index() == l &&
                                        problem.grouping[l].group_of[placed.expert.index()] ==
                                            problem.grouping[l].group_of[j]);
                }
              if (covered || used + problem.bytes(l, j) > problem.limit_bytes[m]) continue;
              const double benefit = problem.arrival_share[m] * problem.grouping[l].importance[j] /
                                     static_cast<double>(problem.bytes(l, j));
              if (benefit > best) {
                best = benefit;
                server = m, layer = l, expert = j;
              }
            }
        if (best == 0) break;
        naive.place(server, layer, expert, placement_reason::replica, best);
      }

      BOOST_REQUIRE(state.placed().size() == naive.placed().size());
      for (std::size_t i = 0; i < state.placed().size(); ++i) {
        const auto &a = state.placed()[i], &b = naive.placed()[i];
        BOOST_TEST((a.server == b.server && a.layer == b.layer && a.expert == b.expert &&
                    a.score == b.score));
        n_replicas += a.reason == placement_reason::replica;
      }
    }
  }
  BOOST_TEST(n_replicas > 200u);
}

BOOST_AUTO_TEST_CASE(exact_packing_says_when_it_was_cut_off) {
  random_stream random(4);
  const auto problem = random_problem(random, 3, 2, 4, false, 1.2);
  planning::packing state(problem);
  BOOST_TEST((pack_exactly(state, 1, 2) == packing_outcome::cut_off));
  BOOST_TEST((pack_exactly(state, 1) == packing_outcome::packed));
  check_constraints(state, 1);
  auto smaller = problem;
  smaller.limit_bytes[0] = 0;
  smaller.limit_bytes[1] = 0;
  planning::packing none(smaller);
  BOOST_TEST((pack_exactly(none, 1) == packing_outcome::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()
