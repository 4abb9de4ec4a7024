#include "bench/experiments/testbed/point.hpp"

#include <boost/test/unit_test.hpp>

#include "bench/experiments/testbed/experiment_table.hpp"

namespace ordermoe::experiments::testbed::test {

BOOST_AUTO_TEST_SUITE(point)

BOOST_AUTO_TEST_CASE(every_point_of_every_experiment_reads_back_from_its_cells) {
  for (const auto& of : experiments())
    for (const auto how_much : {scale::whole, scale::quick})
      for (const auto& what : of.points(how_much, 17)) {
        const auto read = point_of(point_cells(what));
        BOOST_REQUIRE(read.has_value());
        BOOST_TEST((*read == what), key_of(what));
      }
}

BOOST_AUTO_TEST_CASE(a_cell_that_is_no_number_is_named) {
  auto cells = point_cells({.strategy = "paper"});
  cells[9] = "10ms";
  const auto read = point_of(cells);
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().message == "column site_ms: found '10ms', expected a number");
  cells.pop_back();
  BOOST_TEST(!point_of(cells).has_value());
}

BOOST_AUTO_TEST_CASE(a_strategys_own_horizon_is_the_same_point_as_none) {
  testbed::point what{.strategy = "paper", .percent = 7};
  what.horizon = 3;
  BOOST_TEST(!normal_form(what).horizon.has_value());
  what.horizon = 1;
  BOOST_TEST(normal_form(what).horizon.value() == 1u);
  what.strategy = "ordermoe";
  what.horizon = 0;
  BOOST_TEST(!normal_form(what).horizon.has_value());
}

BOOST_AUTO_TEST_CASE(names_say_the_budget_and_what_is_left_out) {
  testbed::point what{.strategy = "paper", .percent = 7, .without = "redundancy"};
  BOOST_TEST(variant_name(what) == "paper 7 % without redundancy");
  what.without.clear();
  what.horizon = 1;
  BOOST_TEST(variant_name(what) == "paper 7 % without look-ahead");
  BOOST_TEST(variant_name({.strategy = "moe2", .percent = -1}) == "moe2 (adapted) unbounded");
  BOOST_TEST(variant_name({.strategy = "exact"}) == "exact");
}

BOOST_AUTO_TEST_CASE(servers_of_different_sites_are_as_far_apart_as_the_point_says) {
  testbed::point what{.strategy = "exact"};
  what.n_sites = 2;
  what.site_ms = 40;
  const auto costs = named_cost_profile("mixtral-8x7b");
  BOOST_REQUIRE(costs.has_value());
  const auto servers = servers_of(what, *costs, 6, 8);
  for (std::uint32_t i = 0; i < 8; ++i)
    for (std::uint32_t j = 0; j < 8; ++j) {
      if (i == j) continue;
      const auto ns = servers.link(server_id(i), server_id(j)).latency_ns;
      if (i % 2 == j % 2)
        BOOST_TEST(ns <= 1'000'000);
      else
        BOOST_TEST(ns == 40'000'000);
    }
  what.uplink_mbit = 100;
  const auto shared = servers_of(what, *costs, 6, 8);
  for (std::size_t i = 0; i < 8; ++i) {
    BOOST_TEST(shared.servers[i].uplink_bytes_per_s == 12.5e6);
    BOOST_TEST(shared.link(server_id{i}, server_id{(i + 1) % 8}).bandwidth_bytes_per_s == 12.5e6);
  }
  // What is drawn is a cluster that a file may say.
  BOOST_TEST(parse_cluster(cluster_toml(servers), "drawn").has_value());
}

BOOST_AUTO_TEST_CASE(overheads_of_a_point_are_charged_instead_of_the_profiles) {
  const auto costs = *named_cost_profile("mixtral-8x7b:batch-us=2:message-us=1");
  testbed::point what{.strategy = "exact"};
  BOOST_TEST(costs_of(what, costs).batch_ns == 2000);
  BOOST_TEST(costs_of(what, costs).message_ns == 1000);
  what.batch_us = 40;
  what.message_us = 15;
  BOOST_TEST(costs_of(what, costs).batch_ns == 40'000);
  BOOST_TEST(costs_of(what, costs).message_ns == 15'000);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
