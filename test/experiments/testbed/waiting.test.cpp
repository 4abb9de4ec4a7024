#include "bench/experiments/testbed/waiting.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include "config/files.hpp"
#include "planning/cost_model.hpp"

namespace ordermoe::experiments::testbed::test {

namespace {

cluster two_servers() {
  cluster made;
  made.name = "two";
  for (const auto* name : {"a", "b"}) {
    server_spec server;
    server.name = name;
    server.flops_per_s = 1e12;
    server.memory_bandwidth_bytes_per_s = name[0] == 'a' ? 1e9 : 2e9;
    made.servers.push_back(server);
  }
  made.links.assign(4, {});
  made.links[1] = made.links[2] = {1e9, 3'000'000};
  return made;
}

cost_profile charges() {
  cost_profile costs;
  costs.hidden_bytes = 1000;
  costs.expert_bytes = 1'000'000;
  costs.attention_bytes = 500'000;
  costs.head_bytes = 2'000'000;
  return costs;
}

planning::plan two_layers() {
  planning::plan made;
  made.n_servers = 2;
  made.n_layers = 2;
  made.n_experts = 4;
  return made;
}

struct slot {
  int position, layer, number, server, residence, expert, executor;
  std::int64_t time_ns;
  const char* kind = "local_exact";
};

std::string line(const slot& s) {
  return fmt::format(
      R"({{"type":"slot","request":0,"attempt":0,"first":{},"position":{},"layer":{},"slot":{},"access":0,"server":{},"residence":{},"target":0,"gate":0.5,"expert":{},"executor":{},"kind":"{}","loss":0,"allowance_left":0,"pool_left":0,"snapshot":1,"time_ns":{},"logits":[1,2]}})"
      "\n",
      s.position, s.position, s.layer, s.number, s.server, s.residence, s.expert, s.executor,
      s.kind, s.time_ns);
}

result<time_parts> parts_of(const std::vector<slot>& slots) {
  auto text = std::string(
      R"({"type":"request","request":0,"access":0,"prompt_tokens":1,"max_new_tokens":4,"time_ns":0})"
      "\n");
  for (const auto& each : slots) text += line(each);
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("waiting-test-{}.jsonl", ::getpid());
  BOOST_REQUIRE(write_file(file, text).has_value());
  auto found = time_parts_of(file, two_servers(), charges(), two_layers());
  std::filesystem::remove(file);
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(waiting)

BOOST_AUTO_TEST_CASE(a_slot_elsewhere_is_two_ways_and_a_batch_and_the_rest_is_waiting) {
  // One layer of decoding: expert 0 here (1 ms on a), expert 1 at b (0.5 ms) and back.
  const auto found = parts_of({{1, 0, 0, 0, 0, 0, 0, 0},
                               {1, 0, 1, 0, 0, 1, 1, 0, "remote_exact"},
                               {1, 1, 0, 0, 0, 0, 0, 10'000'000},
                               {1, 1, 1, 0, 0, 1, 0, 10'000'000}});
  BOOST_REQUIRE(found.has_value());
  // Per position of two layers: twice what one decision took.
  BOOST_TEST(found->network_ms == 2 * (2 * 3.001), boost::test_tools::tolerance(1e-9));
  BOOST_TEST(found->compute_ms == 2 * (0.5 + 0.5), boost::test_tools::tolerance(1e-9));
  BOOST_TEST(found->network_ms + found->compute_ms + found->waiting_ms == 20,
             boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(slots_that_share_a_substitute_run_once_and_what_is_left_out_not_at_all) {
  const auto shared = parts_of(
      {{1, 0, 0, 0, 0, 2, 0, 0}, {1, 0, 1, 0, 0, 2, 0, 0}, {1, 1, 0, 0, 0, 2, 0, 3'000'000}});
  BOOST_TEST(shared->compute_ms == 2 * (1 + 0.5), boost::test_tools::tolerance(1e-9));
  const auto two = parts_of(
      {{1, 0, 0, 0, 0, 2, 0, 0}, {1, 0, 1, 0, 0, 3, 0, 0}, {1, 1, 0, 0, 0, 2, 0, 3'000'000}});
  BOOST_TEST(two->compute_ms == 2 * (2 + 0.5), boost::test_tools::tolerance(1e-9));
  const auto left_out = parts_of({{1, 0, 0, 0, 0, 2, 0, 0},
                                  {1, 0, 1, 0, 0, 3, 0, 0, "left_out"},
                                  {1, 1, 0, 0, 0, 2, 0, 3'000'000}});
  BOOST_TEST(left_out->compute_ms == shared->compute_ms, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(the_next_position_costs_the_head_and_the_ids_way) {
  const auto found =
      parts_of({{1, 1, 0, 0, 1, 0, 1, 0, "remote_exact"}, {2, 0, 0, 0, 0, 0, 0, 20'000'000}});
  const auto prices = planning::make_cost_model(two_servers(), charges());
  // To b and its expert there, the head at b, the id back to a, and attention at a.
  BOOST_TEST(found->network_ms == 2e-6 * (prices.hidden(0, 1) + prices.message(1, 0)),
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(found->compute_ms == 2 * (0.5 + 1 + 0.5), boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(rows_of_the_prompt_are_not_counted) {
  const auto found = parts_of({{0, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 90'000'000}});
  BOOST_TEST(found->network_ms + found->compute_ms + found->waiting_ms == 0);
}

BOOST_AUTO_TEST_CASE(what_is_no_trace_is_refused) {
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("waiting-test-{}.txt", ::getpid());
  BOOST_REQUIRE(write_file(file, R"({"type":"slot","request":0})"
                                 "\n")
                    .has_value());
  const auto found = time_parts_of(file, two_servers(), charges(), two_layers());
  std::filesystem::remove(file);
  BOOST_REQUIRE(!found.has_value());
  BOOST_TEST((found.error().code == errc::malformed));
  BOOST_TEST(
      (time_parts_of(file, two_servers(), charges(), two_layers()).error().code == errc::io));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
