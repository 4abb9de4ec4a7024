#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test/actors/cluster/nodes.hpp"

namespace ordermoe::test {

using nlohmann::ordered_json;

inline std::shared_ptr<const model::expert_reader> tiny_reader() {
  auto opened = model::expert_reader::open(ORDERMOE_TEST_DATA "/mixtral-tiny");
  ORDERMOE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
  return std::move(*opened);
}

/// Three nodes whose plans can change, and an operator at each.
struct steered : nodes {
  std::vector<std::unique_ptr<actors::cluster_client>> admins;

  explicit steered(const std::string& strategy = "exact", double memory_ratio = 2.5,
                   const drift_watch& watch = {},
                   std::function<void(std::uint32_t m, const log_record&)> listener = {})
      : nodes(strategy, memory_ratio) {
    drift = watch;
    on_record = std::move(listener);
    reader = tiny_reader();
    start_all();
    for (std::uint32_t m = 0; m < n; ++m) admins.push_back(client(m, "ada", net::role::admin));
  }

  result<std::string> try_order(std::uint32_t m, const std::string& verb,
                                const ordered_json& arguments = ordered_json::object(),
                                bool dry_run = false) {
    return admins[m]->order(verb, arguments.dump(), dry_run, patience);
  }
  ordered_json order(std::uint32_t m, const std::string& verb,
                     const ordered_json& arguments = ordered_json::object(), bool dry_run = false) {
    const auto reply = try_order(m, verb, arguments, dry_run);
    BOOST_REQUIRE_MESSAGE(reply.has_value(), (reply ? "" : reply.error().message));
    return ordered_json::parse(*reply);
  }
  std::string refused(std::uint32_t m, const std::string& verb,
                      const ordered_json& arguments = ordered_json::object()) {
    const auto reply = try_order(m, verb, arguments);
    BOOST_TEST(!reply.has_value(), verb);
    return reply ? *reply : reply.error().message;
  }
  std::uint64_t epoch(std::uint32_t m) {
    return order(m, "members")["result"]["epoch"].get<std::uint64_t>();
  }
  void await_epochs(std::uint64_t expected) {
    for (std::uint32_t m = 0; m < n; ++m)
      BOOST_TEST(eventually([&] { return epoch(m) == expected; }));
  }
  /// What the operator is told of requests meanwhile.
  std::string change_to(std::uint32_t m, const std::string& strategy) {
    order(m, "plan.propose", {{"strategy", strategy}});
    return apply(m);
  }
  std::string apply(std::uint32_t m) {
    const auto done = order(m, "plan.apply", {{"drain_s", 30}});
    BOOST_TEST(done["epoch_after"].get<int>() > done["epoch_before"].get<int>());
    return done["result"]["admission"].get<std::string>();
  }
};

inline void check_answers(const nodes& cluster, const asked_requests& asked) {
  for (const auto& each : asked.all()) {
    BOOST_REQUIRE(each.ended.has_value());
    BOOST_TEST(!each.ended->problem.has_value(),
               (each.ended->problem ? each.ended->problem->message : ""));
    BOOST_TEST(each.streamed == reference_ids(cluster.model(), each.spec, 0),
               boost::test_tools::per_element());
  }
}

}  // namespace ordermoe::test
