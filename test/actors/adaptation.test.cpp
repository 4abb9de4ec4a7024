#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <sstream>

#include "planning/strategies/adaptation.hpp"
#include "test/actors/fixture.hpp"
#include "test/support/random_profile.hpp"
#include "trace/sink.hpp"
#include "trace/verify.hpp"

namespace ordermoe {

namespace {

using lines = std::vector<std::string>;

struct traced_run {
  actors::run_result outcome;
  lines content;
  trace::trace_summary summary;
};

lines read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  lines content;
  for (std::string line; std::getline(file, line);) content.push_back(line);
  return content;
}

std::filesystem::path scratch_path() {
  static int count = 0;
  return std::filesystem::temp_directory_path() /
         fmt::format("ordermoe-adaptation-{}-{}.jsonl", ::getpid(), count++);
}

/// Runs with a trace, which must hold.
traced_run run_traced(test::world& world) {
  world.setup.trace = scratch_path();
  auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  const auto summary = trace::verify_trace(world.setup.trace);
  BOOST_REQUIRE_MESSAGE(summary.has_value(), (summary ? "" : summary.error().message));
  traced_run made{std::move(*outcome), read_lines(world.setup.trace), *summary};
  std::filesystem::remove(world.setup.trace);
  world.setup.trace.clear();
  BOOST_TEST(made.outcome.outcomes.size() == world.setup.requests.size());
  return made;
}

/// The error of a trace with these lines under a closing line of their own.
std::string refusal(lines content) {
  const auto path = scratch_path();
  auto recorder = trace::sink::open(path);
  BOOST_REQUIRE(recorder.has_value());
  for (std::size_t i = 0; i + 1 < content.size(); ++i) (*recorder)->line(content[i]);
  BOOST_REQUIRE((*recorder)->close().has_value());
  const auto summary = trace::verify_trace(path);
  std::filesystem::remove(path);
  return summary ? "" : summary.error().message;
}

bool is(const std::string& line, const std::string& type) {
  return line.starts_with(fmt::format(R"({{"type":"{}")", type));
}

std::size_t find(const lines& content, const std::string& type, std::size_t from = 0) {
  for (std::size_t i = from; i < content.size(); ++i)
    if (is(content[i], type)) return i;
  BOOST_FAIL("the trace has no such line of type " + type);
  return 0;
}

std::size_t count(const lines& content, const std::string& type) {
  return static_cast<std::size_t>(
      std::count_if(content.begin(), content.end(), [&](const auto& l) { return is(l, type); }));
}

void replace(std::string& line, const std::string& old, const std::string& by) {
  const auto at = line.find(old);
  BOOST_REQUIRE_MESSAGE(at != std::string::npos, "no " + old + " in " + line.substr(0, 200));
  line.replace(at, old.size(), by);
}

void check_equals_reference(const test::world& world, const actors::run_result& outcome) {
  for (const auto& spec : world.setup.requests) {
    model::generation_options options;
    options.max_new_tokens = spec.max_new_tokens;
    options.sampling = {spec.temperature, spec.sampling_seed};
    options.request = test::number_of(world.setup, spec);
    const auto expected = model::generate(*world.setup.model, nullptr, spec.prompt, options);
    BOOST_REQUIRE(expected.has_value());
    const auto& answer = outcome.outcomes[test::number_of(world.setup, spec)];
    BOOST_TEST(answer.token_ids == expected->token_ids, boost::test_tools::per_element());
    BOOST_TEST(answer.final_hidden == expected->final_hidden);
  }
}

test::world adaptive_world(double kappa) {
  test::world world("paper", 5);
  world.add_requests(16, 6, 0.8);
  world.setup.load_period_ns = 200'000;
  world.setup.monitor.on = true;
  world.setup.monitor.kappa = kappa;
  world.setup.monitor.window_requests = 3;
  return world;
}

/// An order to change to another plan in the middle of the requests' arrivals.
test::world replanned_world(const std::string& from, const std::string& to, std::size_t n = 16,
                            double memory_ratio = 2.5) {
  test::world world(from, 0, 1, 5, test::tiny_model(), memory_ratio);
  world.add_requests(n, 8, 0.8);
  world.setup.load_period_ns = 1'000'000'000;
  std::vector<std::int64_t> arrivals;
  for (const auto& spec : world.setup.requests) arrivals.push_back(spec.arrival_ns);
  std::sort(arrivals.begin(), arrivals.end());
  // Moving weights takes minutes of virtual time; the last of the requests come later.
  constexpr std::int64_t later_ns = 600'000'000'000;
  for (auto& spec : world.setup.requests)
    if (spec.arrival_ns > arrivals[arrivals.size() * 3 / 4]) spec.arrival_ns += later_ns;
  actors::replan_order order;
  order.at_ns = arrivals[arrivals.size() / 2] + 1;
  order.strategy = to;
  order.planning.search_steps = 200;
  world.setup.replans = {order};
  return world;
}

/// Arrivals before the order, while the plans change, and after.
void check_before_during_after(const test::world& world, const actors::run_result& outcome) {
  BOOST_REQUIRE_EQUAL(outcome.plan_changes.size(), world.setup.replans.size());
  const auto& change = outcome.plan_changes[0];
  BOOST_REQUIRE_MESSAGE(change.refused.empty(), change.refused);
  BOOST_TEST(change.held);
  std::size_t before = 0, in_flight = 0, during = 0, after = 0;
  for (const auto& answer : outcome.outcomes) {
    before += answer.done_ns <= change.asked_ns;
    in_flight += answer.arrival_ns <= change.asked_ns && answer.done_ns > change.asked_ns;
    during += answer.arrival_ns > change.asked_ns && answer.arrival_ns <= change.done_ns;
    after += answer.arrival_ns > change.done_ns;
    if (answer.arrival_ns > change.asked_ns) BOOST_TEST(answer.first_token_ns > change.done_ns);
    if (answer.arrival_ns <= change.asked_ns) BOOST_TEST(answer.done_ns <= change.drained_ns);
  }
  BOOST_TEST(before > 0u);
  BOOST_TEST(in_flight > 0u);
  BOOST_TEST(during > 0u);
  BOOST_TEST(after > 0u);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(adaptation)

BOOST_AUTO_TEST_CASE(a_monitor_that_changes_nothing_leaves_the_trace_as_it_is_without_one) {
  auto world = adaptive_world(0);
  const auto with = run_traced(world);
  world.setup.monitor = {};
  const auto without = run_traced(world);
  BOOST_TEST((with.content == without.content));
  BOOST_TEST(!without.outcome.observed.has_value());
  BOOST_REQUIRE(with.outcome.observed.has_value());
}

BOOST_AUTO_TEST_CASE(the_monitor_measures_loads_activation_and_requests) {
  auto world = adaptive_world(0);
  const auto run = run_traced(world);
  const auto& seen = *run.outcome.observed;
  BOOST_TEST(seen.requests == world.setup.requests.size());
  BOOST_TEST(seen.budget_use > 0);
  BOOST_TEST(seen.budget_use <= 1);
  BOOST_TEST(seen.normalised_delay > 0);
  BOOST_TEST(*std::max_element(seen.link_use.begin(), seen.link_use.end()) > 0);
  BOOST_TEST(*std::max_element(seen.link_use.begin(), seen.link_use.end()) <= 1);
  BOOST_TEST(*std::max_element(seen.wait_ns.begin(), seen.wait_ns.end()) > 0);
  for (const auto& layer : seen.activation.shares) {
    BOOST_REQUIRE_EQUAL(layer.size(), world.setup.profile.n_experts);
    BOOST_TEST(std::accumulate(layer.begin(), layer.end(), 0.0) == 1,
               boost::test_tools::tolerance(1e-12));
  }
}

BOOST_AUTO_TEST_CASE(weights_adapt_by_window_and_the_trace_holds) {
  for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
    BOOST_TEST_CONTEXT(to_string(mode)) {
      auto world = adaptive_world(0.02);
      world.setup.mode = mode;
      const auto run = run_traced(world);
      const auto& changes = run.outcome.policy_changes;
      BOOST_REQUIRE_GE(changes.size(), 2u);
      BOOST_TEST(run.summary.policy_changes == changes.size());
      BOOST_TEST(count(run.content, "install") == changes.size() * world.setup.servers.size());
      for (std::size_t i = 0; i < changes.size(); ++i) {
        BOOST_TEST(changes[i].version == i + 1);
        BOOST_TEST(changes[i].requests.size() == 3u);
        BOOST_TEST(changes[i].weights.omega_time + changes[i].weights.omega_quality == 1);
      }
      BOOST_TEST(changes.back().weights.omega_quality != world.setup.chosen.policy.omega_quality);
    }
  }
}

BOOST_AUTO_TEST_CASE(policies_that_do_not_weigh_by_omega_keep_their_weights) {
  for (const std::string strategy : {"exact", "local-only", "ordermoe"}) {
    BOOST_TEST_CONTEXT(strategy) {
      auto world = adaptive_world(0.3);
      world.setup.chosen = test::world(strategy, 5).setup.chosen;
      BOOST_TEST(run_traced(world).outcome.policy_changes.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(adapted_weights_change_decisions_and_repeat_byte_for_byte) {
  auto still = adaptive_world(0), moving = adaptive_world(0.3);
  const auto kept = run_traced(still), adapted = run_traced(moving), again = run_traced(moving);
  BOOST_TEST((adapted.content == again.content));
  BOOST_TEST((adapted.outcome.executions != kept.outcome.executions));
}

BOOST_AUTO_TEST_CASE(a_changed_line_of_weights_or_tables_is_refused) {
  auto world = adaptive_world(0.02);
  const auto run = run_traced(world);
  const auto weights = find(run.content, "weights"), install = find(run.content, "install");
  const auto refuse = [&](const std::string& complaint, const std::function<void(lines&)>& change) {
    auto content = run.content;
    change(content);
    const auto message = refusal(content);
    BOOST_TEST(message.find(complaint) != std::string::npos,
               (message.empty() ? "not refused" : message) << " does not say: " << complaint);
  };
  BOOST_TEST(refusal(run.content).empty());
  refuse("omega_quality",
         [&](lines& c) { replace(c[weights], R"("kappa":0.0)", R"("kappa":0.1)"); });
  refuse("policy", [&](lines& c) { replace(c[weights], R"("policy":1)", R"("policy":2)"); });
  refuse("epoch", [&](lines& c) { replace(c[weights], R"("epoch":1)", R"("epoch":2)"); });
  refuse("window", [&](lines& c) { replace(c[weights], R"("requests":[)", R"("requests":[99,)"); });
  refuse("window", [&](lines& c) { c.insert(c.begin() + 1, c[weights]); });
  refuse("weights or policy line first",
         [&](lines& c) { c.erase(c.begin() + static_cast<std::ptrdiff_t>(weights)); });
  refuse("snapshot", [&](lines& c) { c.erase(c.begin() + static_cast<std::ptrdiff_t>(install)); });
  refuse("epoch", [&](lines& c) { replace(c[install], R"("epoch":1)", R"("epoch":2)"); });
  refuse("policy", [&](lines& c) { replace(c[install], R"("policy":1)", R"("policy":0)"); });
}

BOOST_AUTO_TEST_CASE(plans_change_between_requests_and_every_answer_equals_the_reference) {
  const std::vector<std::pair<std::string, std::string>> pairs{{"exact", "layer-shards"},
                                                               {"layer-shards", "exact"},
                                                               {"exact", "ordermoe"},
                                                               {"ordermoe", "paper"}};
  for (const auto& [from, to] : pairs) {
    BOOST_TEST_CONTEXT(from << " to " << to) {
      auto world = replanned_world(from, to);
      const auto run = run_traced(world);
      check_before_during_after(world, run.outcome);
      check_equals_reference(world, run.outcome);
      BOOST_TEST(run.summary.plans == 2u);
      const auto& change = run.outcome.plan_changes[0];
      BOOST_TEST(change.epoch == 2u);
      BOOST_TEST(change.done_ns >= change.drained_ns);
      BOOST_TEST((change.moved_bytes > 0) == (change.done_ns > change.drained_ns));
      const auto again = run_traced(world);
      BOOST_TEST((again.content == run.content));
    }
  }
}

BOOST_AUTO_TEST_CASE(where_both_plans_fit_nobody_waits_and_every_answer_equals_the_reference) {
  const std::vector<std::pair<std::string, std::string>> pairs{{"exact", "layer-shards"},
                                                               {"layer-shards", "exact"},
                                                               {"ordermoe", "layer-shards"},
                                                               {"layer-shards", "paper"}};
  std::size_t together = 0;
  for (const auto& [from, to] : pairs) {
    BOOST_TEST_CONTEXT(from << " to " << to) {
      auto world = replanned_world(from, to, 24, test::world::roomy);
      const auto run = run_traced(world);
      check_equals_reference(world, run.outcome);
      BOOST_TEST(run.summary.plans == 2u);
      BOOST_REQUIRE_EQUAL(run.outcome.plan_changes.size(), 1u);
      const auto& change = run.outcome.plan_changes[0];
      BOOST_REQUIRE_MESSAGE(change.refused.empty(), change.refused);
      BOOST_TEST(!change.held);
      std::size_t begun = 0, ended = 0;
      for (const auto& answer : run.outcome.outcomes) {
        begun += answer.arrival_ns >= change.done_ns;
        ended += answer.arrival_ns < change.done_ns && answer.done_ns > change.done_ns;
      }
      BOOST_TEST(begun > 0u);
      together += ended;
      const auto again = run_traced(world);
      BOOST_TEST((again.content == run.content));
    }
  }
  // Requests were in flight under two plans.
  BOOST_TEST(together > 0u);
}

BOOST_AUTO_TEST_CASE(no_third_plan_comes_while_a_request_goes_by_the_first) {
  auto world = replanned_world("exact", "layer-shards", 24, test::world::roomy);
  auto back = world.setup.replans[0];
  back.strategy = "exact";
  world.setup.replans.push_back(back);
  const auto run = run_traced(world);
  BOOST_TEST(run.summary.plans == 3u);
  check_equals_reference(world, run.outcome);
  // The second change waited for the requests that were in flight at the first.
  const auto first = find(run.content, "plan"), second = find(run.content, "plan", first + 1);
  BOOST_TEST(find(run.content, "done", first) < second);
  auto content = run.content;
  auto line = content[second];
  const auto time_of = [](const std::string& text) {
    const auto from = text.find(R"("time_ns":)");
    return text.substr(from, text.find_first_of(",}", from) - from);
  };
  replace(line, time_of(line), time_of(content[first]));
  content.erase(content.begin() + static_cast<std::ptrdiff_t>(second));
  content.insert(content.begin() + static_cast<std::ptrdiff_t>(first) + 1, line);
  const auto message = refusal(content);
  BOOST_TEST(message.find("found a third plan") != std::string::npos, message);
}

BOOST_AUTO_TEST_CASE(plans_change_on_the_wall_clock_and_every_answer_equals_the_reference) {
  for (const double memory_ratio : {2.5, test::world::roomy}) {
    auto world = replanned_world("exact", "layer-shards", 16, memory_ratio);
    world.setup.mode = actors::run_mode::local;
    std::int64_t i = 0;
    for (auto& spec : world.setup.requests) spec.arrival_ns = 10'000'000 * i++;
    world.setup.replans[0].at_ns = 75'000'000;
    world.setup.replans.push_back(world.setup.replans[0]);
    world.setup.replans[1].strategy = "exact";
    world.setup.replans[1].at_ns = 76'000'000;
    const auto run = run_traced(world);
    check_equals_reference(world, run.outcome);
    // A busy machine may bring an order after the last answer: refused then, which is no failure.
    BOOST_TEST(run.outcome.plan_changes.size() == 2u);
    std::size_t changed = 0;
    for (const auto& change : run.outcome.plan_changes) {
      changed += change.refused.empty();
      if (!change.refused.empty())
        BOOST_TEST(
            (change.refused == "no request is left" || change.refused == "it is the plan in force"),
            change.refused);
    }
    BOOST_TEST(run.summary.plans == 1 + changed);
  }
}

BOOST_AUTO_TEST_CASE(weights_and_plans_change_in_one_run) {
  auto world = replanned_world("paper", "exact", 24);
  const auto other = test::world("paper", 5);
  world.setup.chosen.token_budget = other.setup.chosen.token_budget;
  world.setup.monitor.on = true;
  world.setup.monitor.kappa = 0.05;
  world.setup.monitor.window_requests = 2;
  const auto run = run_traced(world);
  BOOST_REQUIRE_EQUAL(run.outcome.plan_changes.size(), 1u);
  BOOST_TEST(run.outcome.plan_changes[0].refused == "");
  const auto& changes = run.outcome.policy_changes;
  BOOST_REQUIRE_GE(changes.size(), 2u);
  BOOST_TEST(changes.front().epoch == 1u);
  BOOST_TEST(changes.back().epoch == 2u);
}

BOOST_AUTO_TEST_CASE(drifted_activation_makes_the_planner_change_plans_and_answers_stay_exact) {
  // The profile is random: what the model's routers really choose is far from it.
  test::world world("ordermoe");
  world.add_requests(30, 10, 0.8);
  for (auto& spec : world.setup.requests) spec.arrival_ns *= 40;
  world.setup.load_period_ns = 200'000;
  world.setup.monitor.planning.search_steps = 500;
  world.setup.monitor.on = true;
  world.setup.monitor.drift_margin = 0.002;
  world.setup.monitor.least_rows = 60;
  const auto run = run_traced(world);
  BOOST_REQUIRE(run.outcome.observed.has_value());
  BOOST_REQUIRE_GT(run.outcome.observed->proposals, 0u);
  BOOST_REQUIRE(!run.outcome.plan_changes.empty());
  std::size_t changed = 0;
  for (const auto& change : run.outcome.plan_changes) {
    BOOST_TEST(change.reason == "drift");
    if (!change.refused.empty()) continue;
    ++changed;
    BOOST_TEST(change.cost_after_ns < change.cost_before_ns * (1 - 0.002));
  }
  BOOST_TEST(changed > 0u);
  BOOST_TEST(run.summary.plans == changed + 1);
  check_equals_reference(world, run.outcome);

  world.setup.monitor.drift_margin = 1e9;
  const auto calm = run_traced(world);
  BOOST_TEST(calm.outcome.observed->proposals == 0u);
  BOOST_TEST(calm.summary.plans == 1u);
}

BOOST_AUTO_TEST_CASE(an_order_that_cannot_be_followed_leaves_the_plan_and_says_why) {
  const auto refused = [](const std::string& why, auto change) {
    auto world = replanned_world("exact", "layer-shards");
    change(world);
    const auto run = run_traced(world);
    BOOST_REQUIRE_EQUAL(run.outcome.plan_changes.size(), 1u);
    const auto& told = run.outcome.plan_changes[0];
    BOOST_TEST(told.refused.find(why) != std::string::npos, told.refused + " is not " + why);
    BOOST_TEST(told.epoch == 1u);
    BOOST_TEST(run.summary.plans == 1u);
    check_equals_reference(world, run.outcome);
  };
  refused("is not known", [](auto& world) { world.setup.replans[0].strategy = "none"; });
  refused("plan in force", [](auto& world) { world.setup.replans[0].strategy = "exact"; });
  refused("no request is left",
          [](auto& world) { world.setup.replans[0].at_ns = std::int64_t{1} << 60; });
  refused("KV rows", [](auto& world) {
    // Roaming needs KV memory at every server; the last one has none.
    world.setup.replans[0].planning.residency = "roaming";
    for (auto& spec : world.setup.requests) spec.access = 0;
    auto& last = world.setup.servers.servers.back();
    last.memory_bytes -= last.kv_bytes;
    last.kv_bytes = 0;
  });
}

BOOST_AUTO_TEST_CASE(a_changed_plan_line_is_refused) {
  auto world = replanned_world("exact", "layer-shards", 8);
  const auto run = run_traced(world);
  const auto plan = find(run.content, "plan");
  const auto refuse = [&](const std::string& complaint, const std::function<void(lines&)>& change) {
    auto content = run.content;
    change(content);
    const auto message = refusal(content);
    BOOST_TEST(message.find(complaint) != std::string::npos,
               (message.empty() ? "not refused" : message) << " does not say: " << complaint);
  };
  const auto at = [](std::size_t i) { return static_cast<std::ptrdiff_t>(i); };
  BOOST_TEST(refusal(run.content).empty());
  refuse("epoch", [&](lines& c) { replace(c[plan], R"("epoch":2)", R"("epoch":3)"); });
  refuse("moved_bytes",
         [&](lines& c) { replace(c[plan], R"("moved_bytes":)", R"("moved_bytes":1)"); });
  refuse("moved_ns", [&](lines& c) { replace(c[plan], R"("moved_ns":)", R"("moved_ns":1)"); });
  refuse("reason", [&](lines& c) { replace(c[plan], R"("order")", R"("whim")"); });
  refuse("another form",
         [&](lines& c) { replace(c[plan], R"("profile":{)", R"("profile":{"x":1,)"); });
  refuse("expert_bytes_used", [&](lines& c) {
    replace(c[plan], R"("expert_bytes_used":[)", R"("expert_bytes_used":[1)");
  });
  refuse("plan in force", [&](lines& c) { c.erase(c.begin() + at(plan)); });
  // A server that decides by the tables of the plan before.
  refuse("", [&](lines& c) {
    const auto last = find(c, "install", plan);
    c.erase(c.begin() + at(last));
  });
}

BOOST_AUTO_TEST_CASE(a_window_moves_the_weights_by_equation_45) {
  planning::answered_request request;
  request.access = 1;
  request.prompt_tokens = 9;
  request.new_tokens = 4;
  request.budget = 100;
  request.spent = 25;
  request.admitted_ns = 1000;
  request.done_ns = 13000;
  // Three chunks of at most 4 rows and three more positions, 1000 ns each.
  const auto seen = planning::observe(request, 4, std::vector<double>{1, 1000});
  BOOST_TEST(seen.budget_use == 0.25);
  BOOST_TEST(seen.normalised_delay == 2);
  const std::vector<planning::observed_request> window{seen, {0.75, 1}};
  const auto moved = planning::adapt_to_window(0.5, 0.1, window);
  BOOST_TEST(moved.omega_quality == 0.4, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(moved.omega_time + moved.omega_quality == 1);
}

BOOST_AUTO_TEST_CASE(moved_weights_come_over_the_fastest_link_one_after_the_other) {
  test::world world("exact", 0, 1, 3);
  auto& servers = world.setup.servers;
  for (auto& link : servers.links) link = {1e9, 1'000'000};
  const auto& costs = world.setup.costs;
  servers.links[0 * 3 + 2].bandwidth_bytes_per_s = 2e9;
  planning::plan from;
  from.n_servers = 3;
  from.n_layers = 1;
  from.n_experts = 2;
  const auto placed = [](std::uint32_t server, std::uint32_t expert) {
    planning::placed_expert made;
    made.server = server_id{server};
    made.expert = expert_id{expert};
    return made;
  };
  from.experts = {placed(0, 0), placed(1, 0), placed(1, 1)};
  auto to = from;
  to.experts = {placed(1, 0), placed(2, 0), placed(2, 1)};
  const auto move = planning::weights_to_move(from, to, servers, costs);
  BOOST_TEST(move.bytes == 2 * costs.expert_bytes);
  const auto ns = [&](double rate) {
    return static_cast<std::int64_t>(
        std::ceil(static_cast<double>(costs.expert_bytes) / rate * 1e9));
  };
  BOOST_TEST(move.ns == ns(2e9) + ns(1e9) + 2'000'000);
  BOOST_TEST(planning::weights_to_move(from, from, servers, costs).ns == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
