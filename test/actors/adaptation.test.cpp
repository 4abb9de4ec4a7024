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

#include "actors/books.hpp"
#include "actors/observation.hpp"
#include "actors/trace_verify.hpp"
#include "fixture.hpp"

namespace ordermoe {

namespace {

using lines = std::vector<std::string>;

struct traced_run {
  actors::run_result outcome;
  lines content;
  actors::trace_summary summary;
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
  const auto summary = actors::verify_trace(world.setup.trace);
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
  auto recorder = actors::trace_recorder::open(path);
  BOOST_REQUIRE(recorder.has_value());
  for (std::size_t i = 0; i + 1 < content.size(); ++i) (*recorder)->line(content[i]);
  BOOST_REQUIRE((*recorder)->close().has_value());
  const auto summary = actors::verify_trace(path);
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
    options.request = spec.number;
    const auto expected = model::generate(*world.setup.model, nullptr, spec.prompt, options);
    BOOST_REQUIRE(expected.has_value());
    const auto& answer = outcome.outcomes[spec.number];
    BOOST_TEST(answer.token_ids == expected->token_ids, boost::test_tools::per_element());
    BOOST_TEST(answer.final_hidden == expected->final_hidden);
  }
}

test::world adaptive_world(double kappa) {
  test::world world("paper", 5);
  world.add_requests(16, 6, 0.8);
  world.setup.load_period_ns = 20'000'000;
  world.setup.monitor.on = true;
  world.setup.monitor.kappa = kappa;
  world.setup.monitor.window_requests = 3;
  return world;
}

/// An order to change to another plan in the middle of the requests' arrivals.
test::world replanned_world(const std::string& from, const std::string& to, std::size_t n = 16) {
  test::world world(from);
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
  for (const auto& layer : seen.activation) {
    BOOST_REQUIRE_EQUAL(layer.size(), world.setup.experts.n_experts);
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
      const auto& changes = run.outcome.weight_changes;
      BOOST_REQUIRE_GE(changes.size(), 2u);
      BOOST_TEST(run.summary.weight_changes == changes.size());
      BOOST_TEST(count(run.content, "install") == changes.size() * world.setup.servers.size());
      for (std::size_t i = 0; i < changes.size(); ++i) {
        BOOST_TEST(changes[i].weights == i + 1);
        BOOST_TEST(changes[i].requests.size() == 3u);
        BOOST_TEST(changes[i].value.omega_time + changes[i].value.omega_quality == 1);
      }
      BOOST_TEST(changes.back().value.omega_quality != world.setup.chosen.policy.omega_quality);
      BOOST_TEST(run.outcome.chosen.plan.experts.size() == world.setup.chosen.plan.experts.size());
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
  refuse("weights", [&](lines& c) { replace(c[weights], R"("weights":1)", R"("weights":2)"); });
  refuse("epoch", [&](lines& c) { replace(c[weights], R"("epoch":1)", R"("epoch":2)"); });
  refuse("window", [&](lines& c) { replace(c[weights], R"("requests":[)", R"("requests":[99,)"); });
  refuse("window", [&](lines& c) { c.insert(c.begin() + 1, c[weights]); });
  refuse("weights line first",
         [&](lines& c) { c.erase(c.begin() + static_cast<std::ptrdiff_t>(weights)); });
  refuse("snapshot", [&](lines& c) { c.erase(c.begin() + static_cast<std::ptrdiff_t>(install)); });
  refuse("epoch", [&](lines& c) { replace(c[install], R"("epoch":1)", R"("epoch":2)"); });
  refuse("weights", [&](lines& c) { replace(c[install], R"("weights":1)", R"("weights":0)"); });
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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
