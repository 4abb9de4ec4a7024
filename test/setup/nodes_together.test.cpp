#include "setup/nodes_together.hpp"

#include <boost/test/unit_test.hpp>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace ordermoe;

std::vector<node_file> three() {
  std::vector<node_file> files(3);
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = "s" + std::to_string(i);
    files[i].listen = {"10.0.0." + std::to_string(i + 1) + ":7400"};
    for (std::size_t j = 0; j < files.size(); ++j)
      if (i != j)
        files[i].members.push_back(
            {"s" + std::to_string(j), "10.0.0." + std::to_string(j + 1) + ":7400"});
  }
  return files;
}

void check_refused(const result<void>& found, const std::string& expected) {
  BOOST_REQUIRE(!found.has_value());
  BOOST_TEST((found.error().code == errc::mismatch));
  BOOST_TEST(found.error().message.find(expected) != std::string::npos, found.error().message);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(nodes_together)

BOOST_AUTO_TEST_CASE(nodes_that_are_alike_and_reach_each_other_pass) {
  BOOST_TEST(setup::check_reach(three()).has_value());
  BOOST_TEST(setup::check_alike(three()).has_value());
  BOOST_TEST(setup::check_alike({}).has_value());
  BOOST_TEST(setup::check_alike({node_file{}}).has_value());
}

BOOST_AUTO_TEST_CASE(one_of_two_that_can_dial_is_enough) {
  auto files = three();
  files[1].listen.clear();
  BOOST_TEST(setup::check_reach(files).has_value());
  files[2].listen.clear();
  check_refused(setup::check_reach(files), "nodes s1 and s2: neither has an address");
}

BOOST_AUTO_TEST_CASE(whatever_all_nodes_have_alike_is_compared_and_both_values_are_named) {
  const auto differs = [](const std::function<void(node_file&)>& change,
                          const std::string& expected) {
    auto files = three();
    change(files[2]);
    check_refused(setup::check_alike(files), expected);
  };
  differs([](auto& file) { file.channel = "caf"; }, "channel: node s0 has asio and node s2 caf");
  differs([](auto& file) { file.costs = "measured"; },
          "costs: node s0 has mixtral-8x7b and node s2 measured");
  differs([](auto& file) { file.kv_precision = "fp32"; },
          "kv_precision: node s0 has bf16 and node s2 fp32");
  differs(
      [](auto& file) {
        file.rehearsed = rehearsal{2, 3};
      },
      "rehearsal: node s0 has none and node s2 dilation 2, stretch 3");
  differs([](auto& file) { file.drift.half_life_s = 60; },
          "drift.half_life_s: node s0 has 1800 and node s2 60");
}

BOOST_AUTO_TEST_CASE(what_nodes_may_have_of_their_own_is_not_compared) {
  auto files = three();
  files[1].threads = 4;
  files[1].busy_poll_us = 0;
  files[1].trace = "trace.jsonl";
  files[1].drift.margin_percent = 3;
  BOOST_TEST(setup::check_alike(files).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
