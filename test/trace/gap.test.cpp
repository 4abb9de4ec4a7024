#include "trace/gap.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "test/trace/changed_trace.hpp"

namespace ordermoe {

namespace {

using namespace test;

result<trace::gap_summary> gaps_of(const std::string& text, std::size_t max_labels = 20'000) {
  const scratch_file file;
  std::ofstream(file.path, std::ios::binary) << text;
  trace::gap_options options;
  options.search.max_labels = max_labels;
  return trace::find_gaps(file.path, options);
}

/// What verify_trace finds that was lost, and these decisions.
loss_units lost(const trace::gap_summary& found) {
  loss_units sum = 0;
  for (const auto& each : found.requests) sum += each.gap.taken_loss;
  return sum;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(gap)

BOOST_AUTO_TEST_CASE(no_strategy_is_ahead_of_its_best_in_hindsight) {
  for (const auto& record : planning::strategy_records()) BOOST_TEST_CONTEXT(record.name) {
      test::world world(std::string(record.name), record.has_budget ? 5 : 0, 1, 3);
      add_mixed_requests(world, 3);
      const auto text = test::record(world);
      const auto verified = verify_text(text);
      BOOST_REQUIRE_MESSAGE(verified.has_value(), (verified ? "" : verified.error().message));
      const auto found = gaps_of(text);
      BOOST_REQUIRE_MESSAGE(found.has_value(), (found ? "" : found.error().message));
      BOOST_TEST(found->strategy == world.setup.chosen.name);
      BOOST_TEST(found->requests.size() == world.setup.requests.size());
      BOOST_TEST(lost(*found) == verified->loss);
      std::uint64_t decisions = 0;
      for (const auto& each : found->requests) {
        decisions += each.positions * world.setup.profile.n_layers;
        BOOST_TEST(each.gap.taken_ns > 0);
        BOOST_TEST(each.gap.best.ns <= each.gap.taken_ns * (1 + 1e-9));
        BOOST_TEST(each.gap.best.bound_ns <= each.gap.best.ns);
        BOOST_TEST(each.gap.best.loss <= each.budget);
        BOOST_TEST(each.gap.best_at_loss.ns >= each.gap.best.bound_ns * (1 - 1e-9));
        // A pipeline has nothing to choose.
        if (record.name == "layer-shards") {
          BOOST_TEST(each.gap.gap_percent() < 1e-6);
          BOOST_TEST(each.gap.ahead_changes_nothing);
        }
      }
      BOOST_TEST(decisions == static_cast<std::uint64_t>(verified->decisions));
    }
}

BOOST_AUTO_TEST_CASE(requests_that_say_how_their_tokens_are_chosen_are_read) {
  test::world world("ordermoe", 5);
  add_mixed_requests(world, 4);
  world.setup.requests[0].choice.logprobs = 3;
  world.setup.requests[1].tells_executions = true;
  const auto found = gaps_of(record(world));
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(found->requests.size() == 5u);
}

BOOST_AUTO_TEST_CASE(few_labels_leave_a_bound_that_is_said_to_be_one) {
  test::world world("ordermoe", 5, 1, 4);
  add_mixed_requests(world, 6);
  const auto text = test::record(world);
  const auto known = gaps_of(text), bounded = gaps_of(text, 1);
  BOOST_REQUIRE_MESSAGE(known.has_value(), (known ? "" : known.error().message));
  BOOST_REQUIRE(bounded.has_value());
  std::size_t open = 0;
  for (std::size_t i = 0; i < known->requests.size(); ++i) {
    const auto &best = known->requests[i].gap.best, &other = bounded->requests[i].gap.best;
    BOOST_TEST(best.is_exact);
    BOOST_TEST(other.bound_ns <= best.ns * (1 + 1e-9));
    BOOST_TEST(other.ns >= best.ns * (1 - 1e-9));
    open += !other.is_exact;
  }
  BOOST_TEST(open > 0u);
}

BOOST_AUTO_TEST_CASE(what_is_no_whole_trace_is_refused_with_its_place) {
  auto content = small_trace();
  const auto expect = [&](const std::string& text, errc code, const std::string& words) {
    const auto found = gaps_of(text);
    BOOST_REQUIRE(!found.has_value());
    BOOST_TEST((found.error().code == code), found.error().message);
    BOOST_TEST(found.error().message.find(words) != std::string::npos, found.error().message);
  };
  BOOST_REQUIRE(gaps_of(join(content)).has_value());
  auto cut = content;
  cut.pop_back();
  expect(join(cut), errc::malformed, "no closing line");
  auto changed = content;
  const auto slot = find(changed, "slot");
  add(changed[slot], "loss", 1);
  expect(join(changed), errc::failed, "found a decision that the policy does not offer");
  changed = content;
  set(changed[slot], "executor", 99);
  expect(join(changed), errc::malformed, fmt::format(":{}: field executor", slot + 1));
  changed = content;
  changed.insert(changed.begin() + 1, R"({"type":"policy","epoch":1})");
  expect(join(changed), errc::unsupported, ":2: found a change of policy");
  expect("", errc::malformed, "no closing line");
  const auto missing = trace::find_gaps("no/such/trace.jsonl");
  BOOST_REQUIRE(!missing.has_value());
  BOOST_TEST((missing.error().code == errc::not_found));
}

BOOST_AUTO_TEST_CASE(a_slot_that_is_left_out_under_a_plan_that_prunes_is_refused_by_its_line) {
  test::world world("exact", 0, 1, 3);
  add_mixed_requests(world, 2);
  auto content = split(record(world));
  // One that prunes nothing, so that the decisions stay what they are.
  const auto plan = header_of(content).plan;
  const std::vector<std::string> layers(plan.n_layers, "[]");
  const std::vector<std::string> servers(plan.n_servers,
                                         fmt::format("[{}]", fmt::join(layers, ",")));
  const std::string before = "\"plan\":{";
  const auto at = content[0].find(before);
  BOOST_REQUIRE(at != std::string::npos);
  content[0].insert(at + before.size(), fmt::format("\"pruned\":[{}],", fmt::join(servers, ",")));
  const auto pruning = gaps_of(join(content));
  BOOST_REQUIRE_MESSAGE(pruning.has_value(), (pruning ? "" : pruning.error().message));
  const auto slot = find(content, "slot");
  auto& line = content[slot];
  const std::string kind = "\"kind\":\"";
  const auto from = line.find(kind) + kind.size();
  line.replace(from, line.find('"', from) - from, "left_out");
  const auto refused = gaps_of(join(content));
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::failed), refused.error().message);
  const auto words = fmt::format(":{}: kind: found left_out", slot + 1);
  BOOST_TEST(refused.error().message.find(words) != std::string::npos, refused.error().message);
}

BOOST_AUTO_TEST_CASE(a_trace_that_cannot_be_reached_is_named) {
  const std::string longer_than_names_are(300, 'x');
  const auto found = trace::find_gaps(longer_than_names_are);
  BOOST_REQUIRE(!found.has_value());
  BOOST_TEST((found.error().code == errc::io), found.error().message);
  BOOST_TEST(found.error().message.starts_with(longer_than_names_are), found.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
