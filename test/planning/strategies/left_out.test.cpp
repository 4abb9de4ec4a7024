#include "planning/strategies/left_out.hpp"

#include <boost/test/unit_test.hpp>

#include "planning/strategies/strategies.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

constexpr std::size_t n_servers = 5, n_layers = 4, n_experts = 8;

struct small_world {
  cost_profile costs = instances::small_costs();
  profile experts = random_profile(n_layers, n_experts, 2, 7);
  cluster servers = instances::drawn_cluster(n_servers, n_layers, n_experts, 3.5, 3);

  result<strategy> make(std::string_view name, server_mask left_out) const {
    strategy_options options;
    options.search_steps = 300;
    options.dry_run_requests = 0;
    options.without = left_out;
    return make_strategy(name, experts, servers, costs, options);
  }
};

bool is_in(server_mask mask, std::size_t server) {
  return ((mask >> server) & 1u) != 0;
}

}  // namespace

}  // namespace ordermoe::planning

namespace ordermoe {

using namespace planning;

BOOST_FIXTURE_TEST_SUITE(left_out, small_world)

BOOST_AUTO_TEST_CASE(every_strategy_places_nothing_on_servers_that_are_left_out) {
  for (const auto& record : strategy_records())
    for (const server_mask out : {0b00100u, 0b10001u}) {
      // The cluster is checked against the plan by make_strategy.
      const auto made = make(record.name, out);
      BOOST_TEST_CONTEXT(record.name << " without " << out) {
        BOOST_REQUIRE_MESSAGE(made.has_value(), std::string(made ? "" : made.error().message));
        for (const auto& each : made->plan.experts) BOOST_TEST(!is_in(out, each.server.index()));
        for (std::size_t access = 0; access < n_servers; ++access)
          for (const auto members : made->plan.residence[access].layers)
            BOOST_TEST((members & out) == (is_in(out, access) ? server_mask{1} << access : 0));
      }
    }
}

BOOST_AUTO_TEST_CASE(no_way_in_which_a_strategy_can_be_planned_uses_who_is_left_out) {
  for (const auto& record : strategy_records())
    for (const char* residency : {"", "roaming"}) {
      strategy_options options;
      options.search_steps = 100;
      options.dry_run_requests = 0;
      options.without = 0b01010;
      if (*residency != 0) options.residency = residency;
      const auto variants = plan_variants(record.name, experts, servers, costs, options);
      BOOST_REQUIRE(!variants.empty());
      for (const auto& variant : variants) {
        const auto made = make_strategy(record.name, experts, servers, costs, variant);
        if (!made) {
          BOOST_TEST((made.error().code == errc::infeasible), made.error().message);
          continue;
        }
        const auto members = all_servers(n_servers) & ~options.without;
        BOOST_TEST((needed(made->plan, members) & options.without) == 0u,
                   record.name << " " << residency);
      }
    }
}

BOOST_AUTO_TEST_CASE(what_a_plan_newly_needs_of_servers_that_are_left_out_is_found) {
  const auto whole = make("exact", 0), without_two = make("exact", 0b00100);
  BOOST_REQUIRE(whole.has_value() && without_two.has_value());
  BOOST_TEST(newly_needed(whole->plan, without_two->plan, 0b00100) == 0b00100u);
  BOOST_TEST(newly_needed(without_two->plan, whole->plan, 0b00100) == 0u);
  // It was lost while the plan in force needs it: that the next one does, too, is nothing new.
  BOOST_TEST(newly_needed(whole->plan, whole->plan, 0b00100) == 0u);
  auto roams = without_two->plan;
  roams.residence[0].layers[1] |= 0b00100u;
  BOOST_TEST(newly_needed(roams, without_two->plan, 0b00100) == 0b00100u);
  // Rows of its own users alone.
  BOOST_TEST(newly_needed(roams, without_two->plan, 0b00101) == 0u);
}

BOOST_AUTO_TEST_CASE(the_others_are_planned_as_a_cluster_of_their_own) {
  const server_mask out = 0b00010;
  const auto narrow = without(servers, out);
  BOOST_REQUIRE(narrow.size() == n_servers - 1);
  BOOST_TEST(narrow.servers[1].name == servers.servers[2].name);
  BOOST_TEST(narrow.link(server_id(0), server_id(1)).latency_ns ==
             servers.link(server_id(0), server_id(2)).latency_ns);
  double share = 0;
  for (const auto& each : narrow.servers) share += each.arrival_share;
  BOOST_TEST(share == 1.0, boost::test_tools::tolerance(1e-12));
  strategy_options options;
  const auto alone = make_strategy("layer-shards", experts, narrow, costs, options);
  const auto wide = make("layer-shards", out);
  BOOST_REQUIRE(alone.has_value() && wide.has_value());
  BOOST_REQUIRE(alone->plan.experts.size() == wide->plan.experts.size());
  for (std::size_t i = 0; i < alone->plan.experts.size(); ++i) {
    const auto before = alone->plan.experts[i].server.index();
    BOOST_TEST(wide->plan.experts[i].server.index() == (before == 0 ? 0 : before + 1));
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_is_said) {
  const auto nobody = make("exact", 0b11111);
  BOOST_REQUIRE(!nobody.has_value());
  BOOST_TEST(nobody.error().message.find("no server is left") != std::string::npos);
  const auto few = make("exact", 0b11110);
  BOOST_REQUIRE(!few.has_value());
  BOOST_TEST((few.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
