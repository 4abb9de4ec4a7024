#include "actors/admin/admin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "test/actors/admin/steered.hpp"

namespace ordermoe {

namespace {

using nlohmann::ordered_json;
using test::asked_requests;
using test::check_answers;
using test::eventually;
using test::nodes;
using test::request_of;
using test::says;
using test::steered;

}  // namespace

BOOST_AUTO_TEST_SUITE(admin)

/// Requests at every node while the plan changes four times, led by each node in turn.
void check_changes_under_load(double memory_ratio, const std::string& admission) {
  steered cluster("exact", memory_ratio);
  std::deque<asked_requests> asked;
  std::vector<std::unique_ptr<actors::cluster_client>> users;
  for (std::uint32_t m = 0; m < nodes::n; ++m) {
    users.push_back(cluster.client(m, "bob"));
    auto& of_node = asked.emplace_back(*users.back());
    for (std::uint32_t i = 0; i < 40; ++i) of_node.ask(request_of(100 * m + i));
  }
  std::uint64_t epoch = 1;
  for (const auto* strategy : {"layer-shards", "exact", "layer-shards", "exact"}) {
    const auto leader = static_cast<std::uint32_t>(epoch % nodes::n);
    const auto told = cluster.change_to(leader, strategy);
    BOOST_TEST(says(told, admission), told);
    epoch = cluster.epoch(leader);
    cluster.await_epochs(epoch);
  }
  for (auto& each : asked) each.await_all();
  for (const auto& each : asked) check_answers(cluster, each);
  for (std::uint32_t m = 0; m < nodes::n; ++m) {
    BOOST_TEST(cluster.kept_epochs[m] == epoch);
    BOOST_TEST(cluster.status_of(m).at("refused_frames") == 0);
    BOOST_TEST(eventually(
        [&] { return cluster.order(m, "plan.history")["result"]["changes"].size() == epoch - 1; }));
    // Nothing of the plans before is left.
    BOOST_TEST(eventually([&] {
      const auto members = cluster.order(m, "members")["result"];
      return members["change"] == "none" && members["epochs"] == std::vector<std::uint64_t>{epoch};
    }));
  }
}

BOOST_AUTO_TEST_CASE(plans_change_under_load_and_every_answer_is_the_references) {
  check_changes_under_load(test::world::roomy, "never stops");
}

BOOST_AUTO_TEST_CASE(plans_that_do_not_fit_together_are_reached_over_others) {
  check_changes_under_load(2.5, "plans one after the other, since experts of both plans take");
}

BOOST_AUTO_TEST_CASE(requests_begin_under_the_next_plan_while_others_end_under_the_one_before) {
  steered cluster("exact", test::world::roomy);
  const auto user = cluster.client(1, "bob");
  cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  // So many that the change is done before they are, on a busy machine, too.
  asked_requests before(*user);
  for (std::uint32_t i = 0; i < 200; ++i) before.ask(request_of(i, 55));
  BOOST_REQUIRE(eventually([&] { return before.any_token(); }));
  cluster.apply(0);
  const auto of_plan = [&](std::uint64_t epoch) {
    const auto requests = cluster.order(1, "requests.list")["result"]["requests"];
    return std::ranges::count_if(requests,
                                 [&](const auto& each) { return each["epoch"] == epoch; });
  };
  // The change is done, and they are not.
  BOOST_TEST(of_plan(1) > 0);
  // As many, so that some are seen before all have ended.
  asked_requests after(*user);
  for (std::uint32_t i = 0; i < 200; ++i) after.ask(request_of(999 + i, 55));
  BOOST_TEST(eventually([&] { return of_plan(2) > 0; }));
  // One that comes now waits for those of the first plan to end.
  cluster.change_to(2, "exact");
  BOOST_TEST(of_plan(1) == 0);
  before.await_all();
  after.await_all();
  check_answers(cluster, before);
  check_answers(cluster, after);
  cluster.await_epochs(3);
}

BOOST_AUTO_TEST_CASE(a_node_that_was_away_is_named_and_nothing_changes) {
  steered cluster;
  cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  cluster.stop(2);
  BOOST_REQUIRE(eventually([&] {
    const auto members = cluster.order(0, "members")["result"]["members"];
    return !members[2]["up"].get<bool>();
  }));
  BOOST_TEST(says(cluster.refused(0, "plan.apply"), "server 2 is not connected"));
  BOOST_TEST(cluster.epoch(0) == 1u);
  BOOST_TEST(cluster.epoch(1) == 1u);
}

BOOST_AUTO_TEST_CASE(requests_that_take_longer_than_the_drain_end_by_name) {
  steered cluster("exact", test::world::roomy);
  const auto user = cluster.client(1, "bob");
  cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  asked_requests asked(*user);
  // More than are answered while the change is prepared.
  for (std::uint32_t i = 0; i < 200; ++i) asked.ask(request_of(i, 55));
  BOOST_REQUIRE(eventually([&] { return asked.any_token(); }));
  cluster.order(0, "plan.apply", {{"drain_s", 0}});
  asked.await_all();
  BOOST_TEST(asked.n_failed() > 0u);
  for (const auto& each : asked.all()) {
    if (each.ended->problem)
      BOOST_TEST(says(each.ended->problem->message, "the plan changes"),
                 each.ended->problem->message);
    else
      BOOST_TEST(each.streamed == test::reference_ids(cluster.model(), each.spec, 0),
                 boost::test_tools::per_element());
  }
  cluster.await_epochs(2);
}

BOOST_AUTO_TEST_CASE(a_drained_node_refuses_new_requests_by_name_until_it_is_resumed) {
  steered cluster;
  const auto user = cluster.client(1, "bob");
  asked_requests before(*user);
  before.ask(request_of(1));
  cluster.order(1, "drain");
  asked_requests refused(*user);
  refused.ask(request_of(2));
  before.await_all();
  refused.await_all();
  check_answers(cluster, before);
  BOOST_REQUIRE_EQUAL(refused.n_failed(), 1u);
  BOOST_TEST(says(refused.all().front().ended->problem->message, "is drained"));
  BOOST_TEST(cluster.order(1, "members")["result"]["drained"] == true);
  // Its experts serve others.
  const auto other = cluster.client(0, "eve");
  asked_requests elsewhere(*other);
  elsewhere.ask(request_of(3));
  elsewhere.await_all();
  check_answers(cluster, elsewhere);
  cluster.order(1, "resume");
  asked_requests after(*user);
  after.ask(request_of(4));
  after.await_all();
  check_answers(cluster, after);
}

BOOST_AUTO_TEST_CASE(a_policy_changes_on_all_nodes_and_only_as_far_as_it_was_named) {
  steered cluster("ordermoe");
  const auto before = cluster.order(2, "policy.get")["result"]["policy"];
  cluster.order(0, "policy.set", {{"policy", R"({"omega_time":0.625})"}});
  for (std::uint32_t m = 0; m < nodes::n; ++m) {
    BOOST_TEST(eventually(
        [&] { return cluster.order(m, "policy.get")["result"]["policy"]["omega_time"] == 0.625; }));
    auto now = cluster.order(m, "policy.get")["result"]["policy"];
    now["omega_time"] = before["omega_time"];
    BOOST_TEST(now == before);
  }
  BOOST_TEST(says(cluster.refused(0, "policy.set", {{"policy", R"({"omega":1})"}}), "'omega'"));
  // Deeper than a worker's stack.
  constexpr std::size_t deep = 100'000;
  BOOST_TEST(says(cluster.refused(0, "policy.set",
                                  {{"policy", R"({"horizon":)" + std::string(deep, '[') +
                                                  std::string(deep, ']') + "}"}}),
                  "expected an object"));
  // A position may not stay with its slot where it has two.
  const auto version = cluster.order(0, "policy.get")["result"]["version"];
  BOOST_TEST(says(cluster.refused(0, "policy.set", {{"policy", R"({"residence":0})"}}), "top-1"));
  BOOST_TEST(cluster.order(0, "policy.get")["result"]["version"] == version);
  // What is changed at once by several is changed by all of them.
  for (int i = 1; i <= 8; ++i) {
    {
      const std::jthread other([&] {
        cluster.order(0, "policy.set", {{"policy", fmt::format(R"({{"horizon":{}}})", i)}});
      });
      cluster.order(0, "policy.set", {{"policy", fmt::format(R"({{"omega_time":{}}})", 1.0 / i)}});
    }
    const auto now = cluster.order(0, "policy.get")["result"]["policy"];
    BOOST_TEST(now["horizon"] == i);
    BOOST_TEST(now["omega_time"] == 1.0 / i);
  }
  BOOST_TEST(says(cluster.refused(0, "policy.set", {{"policy", "nonsense"}}), "an object"));
  BOOST_TEST(cluster.refused(0, "policy.set", {{"policy", R"({"omega_time":"x"})"}}) != "");
}

BOOST_AUTO_TEST_CASE(verbs_ask_for_their_role) {
  steered cluster;
  struct one {
    const char* verb;
    ordered_json arguments;
    net::role least;
  };
  const one all[] = {
      {"members", {}, net::role::viewer},
      {"requests.list", {}, net::role::viewer},
      {"plan.show", {}, net::role::viewer},
      {"plan.diff", {}, net::role::viewer},
      {"plan.history", {}, net::role::viewer},
      {"policy.get", {}, net::role::viewer},
      {"events", {}, net::role::viewer},
      {"status", {}, net::role::viewer},
      {"topology", {}, net::role::viewer},
      {"peers", {}, net::role::viewer},
      {"experts", {}, net::role::viewer},
      {"requests.show", {{"request", 1}}, net::role::viewer},
      {"log.level", {}, net::role::viewer},
      {"log.set_level", {{"level", "info"}}, net::role::operate},
      {"token.list", {}, net::role::admin},
      {"token.create", {{"name", "x"}, {"role", "viewer"}, {"for_s", 60}}, net::role::admin},
      {"token.revoke", {{"name", "x"}}, net::role::admin},
      {"requests.cancel", {{"request", 1}}, net::role::operate},
      {"drain", {}, net::role::operate},
      {"resume", {}, net::role::operate},
      {"plan.propose", {}, net::role::operate},
      {"plan.apply", {}, net::role::admin},
      {"plan.abort", {}, net::role::admin},
      {"policy.set", {{"policy", R"({"horizon":2})"}}, net::role::admin},
      {"audit", {}, net::role::admin}};
  for (const auto role : {net::role::viewer, net::role::operate, net::role::admin}) {
    const auto who = cluster.client(0, fmt::format("who-{}", net::to_string(role)), role);
    for (const auto& each : all) {
      BOOST_TEST_CONTEXT(each.verb << " as " << net::to_string(role)) {
        const auto arguments = each.arguments.is_null() ? ordered_json::object() : each.arguments;
        const auto reply = who->order(each.verb, arguments.dump(), true, test::patience);
        const auto text = reply ? *reply : reply.error().message;
        BOOST_TEST(says(text, "takes a certificate of role") == (role < each.least), text);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_dry_run_changes_nothing_and_every_change_is_audited) {
  steered cluster("exact", test::world::roomy);
  cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  const auto plan = cluster.order(0, "plan.show")["result"];
  const auto told = cluster.order(0, "plan.apply", ordered_json::object(), true);
  BOOST_TEST(told["dry_run"] == true);
  BOOST_TEST(told["epoch_after"] == 2);
  cluster.order(0, "drain", ordered_json::object(), true);
  cluster.order(0, "policy.set", {{"policy", R"({"horizon":2})"}}, true);
  const auto audited = cluster.order(0, "audit")["result"]["orders"];
  BOOST_TEST(cluster.order(0, "plan.show")["result"] == plan);
  const auto members = cluster.order(0, "members")["result"];
  BOOST_TEST(members["drained"] == false);
  BOOST_TEST(members["policy"] == 0);
  // Ordered and what came of it, with who it was.
  BOOST_REQUIRE_EQUAL(audited.size(), 8u);
  for (const auto& line : audited) {
    BOOST_TEST(line["who"] == "ada");
    BOOST_TEST(line["role"] == "admin");
  }
  BOOST_TEST(audited[2]["what"] == "ordered");
  BOOST_TEST(audited[3]["what"] == "would be done");
  BOOST_TEST(cluster.log_of(0).has("audit.ordered operation=s0.1.2 who=ada role=admin"));
}

BOOST_AUTO_TEST_CASE(a_dry_run_of_a_proposal_tells_what_it_would_be_and_keeps_none) {
  steered cluster("exact", test::world::roomy);
  const auto would = cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}}, true);
  BOOST_TEST(!would["result"].contains("proposal"));
  BOOST_TEST(would["result"]["servers"][0].contains("gains"));
  BOOST_TEST(says(cluster.refused(0, "plan.apply"), "nothing was proposed"));
  BOOST_TEST(!cluster.log_of(0).has("plan.proposed"));
  const auto made = cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}})["result"];
  BOOST_TEST(made["proposal"] == 1);
  BOOST_TEST(made["cost_after_ms"] == would["result"]["cost_after_ms"]);
}

BOOST_AUTO_TEST_CASE(any_node_tells_how_all_do_and_names_those_that_are_away) {
  steered cluster;
  const auto user = cluster.client(1, "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 5; ++i) asked.ask(request_of(i));
  asked.await_all();
  for (std::uint32_t m = 0; m < nodes::n; ++m) {
    const auto told = cluster.order(m, "status")["result"];
    BOOST_TEST(told["answering"] == 3);
    BOOST_REQUIRE_EQUAL(told["nodes"].size(), 3u);
    for (std::uint32_t other = 0; other < nodes::n; ++other) {
      const auto& line = told["nodes"][other];
      BOOST_TEST(line["state"] == "UN");
      BOOST_TEST(line["server"] == other);
      BOOST_TEST(line["connected"] == 2);
      BOOST_TEST(line["epoch"] == 1);
      BOOST_TEST(line["answered"] == (other == 1 ? 5 : 0));
      // 5 answers of 12 tokens or fewer.
      BOOST_TEST((line["tokens"] > 0) == (other == 1));
      BOOST_TEST(!line.contains("peers"));
    }
  }
  cluster.order(1, "drain");
  BOOST_TEST(cluster.order(0, "status")["result"]["nodes"][1]["state"] == "UL");
  cluster.stop(2);
  BOOST_REQUIRE(eventually(
      [&] { return cluster.order(0, "status")["result"]["nodes"][2]["state"] == "DN"; }));
  const auto told = cluster.order(0, "status")["result"];
  BOOST_TEST(told["answering"] == 2);
  BOOST_TEST(told["nodes"][1]["connected"] == 1);
}

BOOST_AUTO_TEST_CASE(a_node_that_does_not_answer_in_time_is_named_and_holds_nobody_up) {
  nodes cluster;
  cluster.start_bare(2);
  cluster.start(1);
  cluster.start(0);
  cluster.await_up(0, {1, 2});
  const auto admin = cluster.client(0, "ada", net::role::admin);
  const auto reply = admin->order("status", "{}", false, test::patience);
  BOOST_REQUIRE_MESSAGE(reply.has_value(), (reply ? "" : reply.error().message));
  const auto told = ordered_json::parse(*reply)["result"];
  BOOST_TEST(told["nodes"][1]["state"] != "?N");
  BOOST_TEST(told["nodes"][2]["state"] == "?N");
  BOOST_TEST(told["answering"] == 2);
}

BOOST_AUTO_TEST_CASE(peers_topology_and_experts_are_told_as_they_are) {
  steered cluster;
  const auto peers = cluster.order(1, "peers")["result"];
  BOOST_REQUIRE_EQUAL(peers["peers"].size(), 2u);
  for (const auto& each : peers["peers"]) BOOST_TEST(each["state"] == "UN");
  // Each lane of each peer.
  BOOST_REQUIRE_EQUAL(peers["lanes"].size(), 2 * net::n_lanes);
  for (const auto& each : peers["lanes"]) {
    BOOST_TEST(each["credit_bytes"] > 0);
    BOOST_TEST(each["sent_bytes"].is_number());
  }
  const auto topology = cluster.order(0, "topology")["result"];
  BOOST_TEST(topology["servers"].size() == 3u);
  BOOST_REQUIRE_EQUAL(topology["links"].size(), 6u);
  for (const auto& each : topology["links"]) {
    BOOST_TEST(each["up"] == true);
    BOOST_TEST(each["stated_round_trip_ms"] > 0);
  }
  const auto plan = cluster.order(0, "plan.show")["result"]["plan"];
  const auto experts = cluster.order(0, "experts")["result"];
  std::size_t hosted = 0;
  for (const auto& line : experts["hosted"]) hosted += line["experts"].size();
  BOOST_TEST(hosted == plan["experts"].size());
  const auto of_layer = cluster.order(0, "experts", {{"layer", 1}})["result"];
  BOOST_TEST(!of_layer["hosted"].empty());
  for (const auto& line : of_layer["hosted"]) BOOST_TEST(line["layer"] == 1);
  const auto of_server = cluster.order(0, "experts", {{"server", "s2"}})["result"];
  BOOST_TEST(!of_server["hosted"].empty());
  for (const auto& line : of_server["hosted"]) BOOST_TEST(line["server"] == "s2");
  BOOST_TEST(says(cluster.refused(0, "experts", {{"server", "s9"}}), "'s9'"));
  BOOST_TEST(says(cluster.refused(0, "experts", {{"layer", 99}}), "layer 99"));
}

BOOST_AUTO_TEST_CASE(one_request_is_shown_with_its_memory) {
  steered cluster;
  const auto user = cluster.client(1, "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 40; ++i) asked.ask(request_of(i, 55));
  BOOST_REQUIRE(eventually([&] {
    const auto listed = cluster.order(1, "requests.list")["result"]["requests"];
    if (listed.empty()) return false;
    const auto shown =
        cluster.try_order(1, "requests.show", {{"request", listed.front()["request"]}});
    // Or it has ended meanwhile.
    return shown && ordered_json::parse(*shown)["result"].value("memory_bytes", 0) > 0;
  }));
  asked.await_all();
  BOOST_TEST(says(cluster.refused(1, "requests.show", {{"request", 77}}), "request 77"));
}

BOOST_AUTO_TEST_CASE(what_routers_choose_at_all_nodes_is_told_and_plans_are_made_by_it) {
  // Less memory than all experts need twice, so that what routers choose changes where they go.
  // It asks several times what is to stay the same: nothing fades.
  drift_watch watch;
  watch.half_life_s = std::numeric_limits<double>::infinity();
  steered cluster("exact", 1.2, watch);
  const auto none = cluster.order(1, "drift")["result"];
  BOOST_TEST(none["rows"] == 0);
  BOOST_TEST(none["cost_measured_ms"] == none["cost_planned_ms"]);
  BOOST_TEST(says(cluster.refused(1, "plan.propose", {{"measured", true}}), "chosen nothing yet"));
  std::deque<asked_requests> asked;
  std::vector<std::unique_ptr<actors::cluster_client>> users;
  for (std::uint32_t m = 0; m < nodes::n; ++m) {
    users.push_back(cluster.client(m, "bob"));
    auto& of_node = asked.emplace_back(*users.back());
    for (std::uint32_t i = 0; i < 4; ++i) of_node.ask(request_of(100 * m + i));
  }
  // A prompt's rows are not counted.
  double n_decoded = 0;
  for (auto& of_node : asked) {
    of_node.await_all();
    for (const auto& each : of_node.all())
      n_decoded += static_cast<double>(each.streamed.size()) - 1;
  }
  // The profile is random: what the model's routers really choose is far from it.
  ordered_json drift;
  BOOST_TEST(eventually([&] {
               drift = cluster.order(1, "drift")["result"];
               return std::abs(drift["rows"].get<double>() - n_decoded) < 1e-3;
             }),
             drift.dump());
  BOOST_TEST(drift["nodes"] == ordered_json::array({"s0", "s1", "s2"}));
  BOOST_TEST(drift["layers"][0]["moved_percent"].get<double>() > 1);
  BOOST_TEST(
      std::abs(drift["cost_measured_ms"].get<double>() / drift["cost_planned_ms"].get<double>() -
               1) > 0.01);
  // Who has not answered within a second is not waited for.
  BOOST_TEST(eventually([&] {
    const auto proposed =
        cluster.order(2, "plan.propose", {{"strategy", "layer-shards"}, {"measured", true}});
    return std::abs(proposed["result"]["measured_rows"].get<double>() - n_decoded) < 1e-3;
  }));
  const auto applied = cluster.order(2, "plan.apply", {{"drain_s", 30}});
  // Over plans between, where both do not fit.
  cluster.await_epochs(applied["epoch_after"].get<std::uint64_t>());
  // What is promised and what is measured is by the links as each node knows them then, which a busy machine changes.
  const auto check_costs = [&](std::uint32_t m) {
    ordered_json now;
    BOOST_TEST(eventually([&] {
                 now = cluster.order(m, "drift")["result"];
                 return std::abs(now["rows"].get<double>() - n_decoded) < 1e-3;
               }),
               now.dump());
    const auto tolerance = boost::test_tools::tolerance(1e-3);
    BOOST_TEST(now["cost_planned_ms"].get<double>() == now["cost_measured_ms"].get<double>(),
               tolerance);
  };
  for (std::uint32_t m = 0; m < nodes::n; ++m) check_costs(m);
  for (const auto& each : asked) check_answers(cluster, each);
  // Counting goes on where it was when a node begins again.
  const auto rows = [&](std::uint32_t m) {
    return cluster.order(m, "drift")["result"]["rows"].get<double>();
  };
  const auto before = rows(0);
  users.clear();
  for (std::uint32_t m = 0; m < nodes::n; ++m) cluster.stop(m);
  for (std::uint32_t m = nodes::n; m-- > 0;) {
    cluster.start(m);
    cluster.admins[m] = cluster.client(m, "ada", net::role::admin);
  }
  BOOST_TEST(eventually([&] { return std::abs(rows(0) - before) < 1e-3; }));
}

BOOST_AUTO_TEST_CASE(
    what_was_counted_before_a_node_began_again_counts_as_much_less_as_it_is_older) {
  // What passes in the test is nothing beside it.
  constexpr double half_life_s = 1e8;
  drift_watch watch;
  watch.half_life_s = half_life_s;
  steered cluster("exact", 2.5, watch);
  {
    const auto user = cluster.client(1, "bob");
    asked_requests asked(*user);
    for (std::uint32_t i = 0; i < 12; ++i) asked.ask(request_of(i));
    asked.await_all();
  }
  const auto rows = [&] { return cluster.order(0, "drift")["result"]["rows"].get<double>(); };
  BOOST_REQUIRE(eventually([&] { return rows() > 20; }));
  const auto now_ms = [] {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const auto begin_again = [&](double written_before_s) {
    cluster.admins.clear();
    for (std::uint32_t m = 0; m < nodes::n; ++m) cluster.stop(m);
    cluster.counted_at_ms = now_ms() - static_cast<std::int64_t>(1000 * written_before_s);
    cluster.start_all();
    for (std::uint32_t m = 0; m < nodes::n; ++m)
      cluster.admins.push_back(cluster.client(m, "ada", net::role::admin));
  };
  // Some report of a row may come after its answer has ended.
  auto before = rows();
  BOOST_REQUIRE(eventually([&] {
    const auto last = before;
    before = rows();
    return before <= last;
  }));
  const auto comes_to = [&](double share) {
    return eventually([&] { return std::abs(rows() / before - share) < 1e-5; });
  };
  begin_again(2 * half_life_s);
  BOOST_TEST(comes_to(0.25));
  for (std::uint32_t m = 0; m < nodes::n; ++m)
    BOOST_TEST(!cluster.log_of(m).has("counts.not_faded"));
  // Nothing was counted since: what is kept is what was kept, and as old as it says.
  begin_again(half_life_s);
  BOOST_TEST(comes_to(0.5));
  // So little that nothing is planned by it.
  begin_again(16 * half_life_s);
  BOOST_TEST(comes_to(std::exp2(-16)));
  BOOST_TEST(rows() > 0);
  BOOST_TEST(says(cluster.refused(0, "plan.propose", {{"measured", true}}), "expected 1 at least"));
  begin_again(-7200);
  BOOST_TEST(comes_to(1));
  // Whoever had counted something says so.
  std::string told;
  for (std::uint32_t m = 0; m < nodes::n; ++m) told += cluster.log_of(m).with("counts.not_faded");
  BOOST_TEST(says(told, "s after now"), told);
}

BOOST_AUTO_TEST_CASE(counts_that_wait_for_the_last_node_are_weighed_when_it_is_there) {
  constexpr double half_life_s = 4;
  nodes cluster;
  cluster.place_by_hand();
  cluster.drift.half_life_s = half_life_s;
  // It is there, and answers no admin.
  auto& silent = cluster.start_bare(2);
  cluster.start(1);
  cluster.start(0);
  cluster.await_up(0, {1, 2});
  const auto user = cluster.client(0, "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 4; ++i) asked.ask(request_of(i));
  asked.await_all();
  const auto admin = cluster.client(0, "ada", net::role::admin);
  const auto order = [&](const char* verb) {
    const auto reply = admin->order(verb, "{}", false, test::patience);
    BOOST_REQUIRE_MESSAGE(reply.has_value(), (reply ? "" : reply.error().message));
    return ordered_json::parse(*reply)["result"];
  };
  const auto rows = [&] { return order("drift")["rows"].get<double>(); };
  // Whatever was counted has been told by then.
  rows();
  const auto begin = std::chrono::steady_clock::now();
  const auto waited = rows();
  silent.stop();
  BOOST_REQUIRE(eventually([&] { return order("members")["members"][2]["up"] == false; }));
  const auto at_once = rows();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  // A second of it passed before the first was weighed: what lies between the two is shorter by that at least.
  BOOST_REQUIRE(at_once > 0);
  BOOST_TEST(waited / at_once <= std::exp2((passed.count() - 1) / half_life_s) * (1 + 1e-6));
}

BOOST_AUTO_TEST_CASE(where_routers_choose_other_experts_the_first_node_proposes_a_plan) {
  steered cluster("exact", 1.2, {0.1, 0.05, 20});
  cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  const auto user = cluster.client(1, "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 12; ++i) asked.ask(request_of(i));
  asked.await_all();
  BOOST_TEST(eventually([&] { return cluster.log_of(0).has("plan.drifted"); }),
             cluster.order(0, "drift").dump());
  BOOST_TEST(eventually([&] {
    return cluster.try_order(0, "plan.diff", {{"proposal", 2}}).has_value();
  }));
  // What is meant without a number is what somebody ordered.
  BOOST_TEST(cluster.order(0, "plan.diff")["result"]["proposal"] == 1);
  BOOST_TEST(eventually([&] { return cluster.log_of(0).has("plan.proposed"); }));
  for (const auto* event : {"plan.drifted", "plan.proposed"})
    BOOST_TEST(!cluster.log_of(1).has(event), event);
  // It proposes; an operator applies.
  BOOST_TEST(cluster.epoch(0) == 1u);
}

BOOST_AUTO_TEST_CASE(a_log_level_is_one_nodes_and_changes_at_once) {
  steered cluster;
  cluster.order(0, "log.set_level", {{"level", "error"}});
  BOOST_TEST(cluster.order(0, "log.level")["result"]["level"] == "error");
  BOOST_TEST(cluster.order(1, "log.level")["result"]["level"] == "debug");
  // Who made it tell less stands in it.
  for (const auto* event : {"log.level_changed", "audit.done"})
    BOOST_TEST(cluster.log_of(0).has(event), event);
  cluster.order(0, "drain");
  BOOST_TEST(!cluster.log_of(0).has("node.drained"));
  cluster.order(0, "log.set_level", {{"level", "info"}}, true);
  BOOST_TEST(cluster.order(0, "log.level")["result"]["level"] == "error");
  cluster.order(0, "log.set_level", {{"level", "info"}});
  cluster.order(0, "resume");
  BOOST_TEST(cluster.log_of(0).has("node.resumed"));
  BOOST_TEST(says(cluster.refused(0, "log.set_level", {{"level", "loud"}}), "'loud'"));
}

BOOST_AUTO_TEST_CASE(a_policy_outlives_its_node_and_one_that_was_away_takes_the_newer) {
  steered cluster("ordermoe");
  const auto omega = [&](std::uint32_t m) {
    return cluster.order(m, "policy.get")["result"]["policy"]["omega_time"].get<double>();
  };
  BOOST_TEST(cluster.order(0, "policy.get")["result"]["version"] == 0);
  cluster.order(0, "policy.set", {{"policy", R"({"omega_time":0.625})"}});
  for (std::uint32_t m = 0; m < nodes::n; ++m)
    BOOST_TEST(eventually([&] { return omega(m) == 0.625; }));
  cluster.stop(2);
  BOOST_REQUIRE(eventually(
      [&] { return cluster.order(0, "members")["result"]["members"][2]["up"] == false; }));
  const auto told =
      cluster.order(0, "policy.set", {{"policy", R"({"omega_time":0.75})"}})["result"];
  BOOST_TEST(told["version"] == 2);
  BOOST_TEST(told["not_told"] == ordered_json::array({"s2"}));
  cluster.start(2);
  cluster.admins[2] = cluster.client(2, "ada", net::role::admin);
  // At first by what it kept, then by what the others tell.
  BOOST_TEST(eventually([&] { return omega(2) == 0.75; }));
  const auto now = cluster.order(2, "policy.get")["result"];
  BOOST_TEST(now["version"] == 2);
  BOOST_TEST(now["set_at"] == "s0");
  BOOST_TEST(now["kept"] == true);
  // All end and start again: nobody is there to tell.
  for (std::uint32_t m = 0; m < nodes::n; ++m) cluster.stop(m);
  cluster.start(2);
  cluster.admins[2] = cluster.client(2, "ada", net::role::admin);
  BOOST_TEST(eventually([&] { return omega(2) == 0.75; }));
}

BOOST_AUTO_TEST_CASE(a_token_raises_the_role_of_its_bearer_at_every_node_until_it_is_revoked) {
  steered cluster;
  cluster.stop(2);
  BOOST_REQUIRE(eventually(
      [&] { return cluster.order(0, "members")["result"]["members"][2]["up"] == false; }));
  const auto made = cluster.order(
      0, "token.create", {{"name", "deploy"}, {"role", "operator"}, {"for_s", 3600}})["result"];
  const auto secret = made["token"].get<std::string>();
  BOOST_TEST(made["not_told"] == ordered_json::array({"s2"}));
  cluster.start(2);
  cluster.admins[2] = cluster.client(2, "ada", net::role::admin);
  const auto resumes = [&](std::uint32_t m, const std::string& token) {
    const auto viewer = cluster.client(m, "eve", net::role::viewer);
    const auto reply = viewer->order("resume", "{}", false, test::patience, token);
    return reply ? std::string("done") : reply.error().message;
  };
  BOOST_TEST(says(resumes(0, ""), "takes a certificate of role operator"));
  // Also at the one that was away when it was made.
  for (std::uint32_t m = 0; m < nodes::n; ++m)
    BOOST_TEST(eventually([&] { return resumes(m, secret) == "done"; }));
  // Not beyond its role.
  const auto viewer = cluster.client(0, "eve", net::role::viewer);
  const auto reply = viewer->order("audit", "{}", false, test::patience, secret);
  BOOST_REQUIRE(!reply.has_value());
  BOOST_TEST(says(reply.error().message, "takes a certificate of role admin"));
  auto wrong = secret;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  for (const auto& each : {wrong, std::string("nonsense"), secret + "0"})
    BOOST_TEST(resumes(0, each) != "done");
  BOOST_TEST(cluster.log_of(0).has("token.refused client=eve"));
  // Who did it, by certificate and token; the secret is nowhere.
  const auto audited = cluster.order(0, "audit")["result"]["orders"];
  BOOST_TEST(std::ranges::any_of(audited, [](const ordered_json& line) {
    return line["who"] == "eve" && line.value("token", "") == "deploy" &&
           line["role"] == "operator";
  }));
  const auto secret_part = secret.substr(secret.rfind('_') + 1);
  BOOST_TEST(!says(audited.dump(), secret_part));
  BOOST_TEST(!says(cluster.order(0, "token.list")["result"].dump(), secret_part));
  for (std::uint32_t m = 0; m < nodes::n; ++m) {
    BOOST_TEST(!cluster.log_of(m).has(secret_part));
    BOOST_TEST(eventually([&] { return cluster.kept_at(m, "tokens.json") != ""; }));
    BOOST_TEST(!says(cluster.kept_at(m, "tokens.json"), secret_part));
  }
  cluster.order(1, "token.revoke", {{"name", "deploy"}});
  for (std::uint32_t m = 0; m < nodes::n; ++m)
    BOOST_TEST(eventually([&] { return says(resumes(m, secret), "does not hold"); }));
  BOOST_TEST(says(cluster.refused(0, "token.revoke", {{"name", "deploy"}}), "no token deploy"));
}

BOOST_AUTO_TEST_CASE(orders_that_make_no_sense_are_answered_and_do_nothing) {
  steered cluster;
  BOOST_TEST(says(cluster.refused(0, "nonsense"), "found verb 'nonsense'"));
  BOOST_TEST(says(cluster.refused(0, "plan.diff"), "nothing was proposed"));
  BOOST_TEST(says(cluster.refused(0, "plan.apply"), "nothing was proposed"));
  BOOST_TEST(says(cluster.refused(0, "plan.abort"), "none is under way"));
  BOOST_TEST(says(cluster.refused(0, "requests.cancel"), "request"));
  BOOST_TEST(says(cluster.refused(0, "requests.cancel", {{"request", 77}}), "request 77"));
  BOOST_TEST(says(cluster.refused(0, "plan.propose", {{"strategy", "nonsense"}}), "nonsense"));
  BOOST_TEST(says(cluster.refused(0, "plan.propose", {{"steps", "many"}}), "steps"));
  cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  BOOST_TEST(says(cluster.refused(0, "plan.apply", {{"proposal", 9}}), "found proposal 9"));
  BOOST_TEST(says(cluster.refused(0, "plan.apply", {{"drain_s", -1}}), "drain_s"));
  BOOST_TEST(says(cluster.refused(0, "plan.propose", {{"strategy", "exact"}}), "plan in force"));
  BOOST_TEST(cluster.epoch(0) == 1u);
}

BOOST_AUTO_TEST_CASE(consoles_that_send_garbage_or_go_away_are_noticed_by_nobody_else) {
  steered cluster;
  const auto user = cluster.client(1, "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 40; ++i) asked.ask(request_of(i));
  random_stream draws(1, 2);
  const std::string whole =
      R"({"ref":1,"verb":"plan.propose","arguments":{"strategy":"layer-shards"},"dry_run":false})";
  for (int i = 0; i < 60; ++i) {
    test::bare_end console;
    console.start(cluster.dialling(static_cast<std::uint32_t>(i) % nodes::n));
    BOOST_REQUIRE(eventually([&] { return console.is_up(); }));
    auto text = whole;
    for (std::uint64_t flips = draws.below(6); flips > 0; --flips)
      text[draws.below(text.size())] = static_cast<char>(draws.below(256));
    text.resize(draws.below(text.size() + 1));
    console.say(actors::control_kind::order, text);
    console.say(actors::control_kind::admin, text);
    if (i % 2 == 0) console.stop();
  }
  asked.await_all();
  check_answers(cluster, asked);
  for (std::uint32_t m = 0; m < nodes::n; ++m) BOOST_TEST(cluster.epoch(m) == 1u);
}

BOOST_AUTO_TEST_CASE(a_request_is_cancelled_by_an_operator_and_events_say_so) {
  steered cluster;
  const auto user = cluster.client(1, "bob");
  asked_requests asked(*user);
  asked.ask(request_of(1, 55));
  for (std::uint32_t i = 2; i < 40; ++i) asked.ask(request_of(i, 55));
  std::uint64_t number = 0;
  BOOST_REQUIRE(eventually([&] {
    const auto listed = cluster.order(1, "requests.list")["result"]["requests"];
    if (listed.empty()) return false;
    number = listed.back()["request"].get<std::uint64_t>();
    return true;
  }));
  cluster.order(1, "requests.cancel", {{"request", number}});
  asked.await_all();
  const auto cancelled = std::ranges::count_if(
      asked.all(), [](const auto& each) { return each.ended->finish == "cancelled"; });
  BOOST_TEST(cancelled == 1);
  const auto events = cluster.order(1, "events", {{"since", 0}})["result"];
  BOOST_TEST(std::ranges::any_of(events["events"], [](const ordered_json& each) {
    return each["event"] == "request.cancelled";
  }));
  BOOST_TEST(cluster.order(1, "events", {{"since", events["latest"]}})["result"]["events"].empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
