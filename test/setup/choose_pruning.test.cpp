#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "config/files.hpp"
#include "planning/strategies/quality_terms.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"
#include "setup/trials.hpp"
#include "test/setup/small_world.hpp"
#include "trace/gap.hpp"
#include "trace/verify.hpp"

/// `ordermoe` where it may do as `static-pruning` does, and `naee`, which leaves out slots besides.
namespace ordermoe {

namespace {

constexpr double percent = 60;  // A random model loses much and slowly.
constexpr std::uint64_t seed = 1;

setup::world small_world() {
  return test::small_world(test::random_model(model::family::mixtral), 8, 24);
}

/// Servers that together hold this share of one copy of the experts.
setup::world with_copies(setup::world content, double copies) {
  const auto n = static_cast<double>(content.profile.n_layers * content.profile.n_experts);
  const auto of_each = static_cast<std::int64_t>(copies * n) /
                       static_cast<std::int64_t>(content.servers.size()) *
                       content.costs.expert_bytes;
  for (auto& server : content.servers.servers)
    server.memory_bytes +=
        of_each - expert_memory_bytes(server, content.costs, content.profile.n_layers);
  return content;
}

setup::preparation_request request_for(std::string strategy, bool choose_pruning) {
  setup::preparation_request request;
  request.strategy = std::move(strategy);
  request.seed = seed;
  request.options.quality_percent = percent;
  request.options.choose_pruning = choose_pruning;
  request.options.search_steps = 200;
  request.options.dry_run_requests = 8;
  return request;
}

setup::prepared ready_for(const setup::world& content, const setup::preparation_request& request) {
  job work;
  auto ready = setup::prepare(content, request, work);
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  return std::move(*ready);
}

setup::trial_score score_of(const setup::world& content, const setup::prepared& ready) {
  job work;
  const auto texts = setup::scored_texts::make(ready.service, content.tuning_texts, work);
  BOOST_REQUIRE(texts.has_value());
  const auto found = texts->score(ready.service, work);
  BOOST_REQUIRE_MESSAGE(found.has_value(), (found ? "" : found.error().message));
  return *found;
}

struct scratch_file {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("ordermoe-pruning-" + std::to_string(::getpid()));
  ~scratch_file() { std::filesystem::remove(path); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(choose_pruning)

BOOST_AUTO_TEST_CASE(with_less_memory_than_a_copy_takes_it_prunes_where_it_may) {
  const auto content = with_copies(small_world(), 0.75);
  job work;
  const auto refused = setup::prepare(content, request_for("ordermoe", false), work);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
  BOOST_TEST(refused.error().message.find("ordermoe with --choose-pruning") != std::string::npos,
             refused.error().message);

  const auto ready = ready_for(content, request_for("ordermoe", true));
  const auto& chosen = ready.service.chosen;
  BOOST_TEST(chosen.name == "ordermoe");
  BOOST_TEST(!chosen.plan.pruned.empty());
  BOOST_REQUIRE(chosen.pruned_nats.has_value());
  BOOST_TEST(chosen.quality.taken_nats == *chosen.pruned_nats);
  BOOST_TEST(chosen.quality.percent == percent);
  BOOST_TEST(*chosen.pruned_nats <= setup::aimed_share * planning::nats_of_percent(percent));
  BOOST_TEST(chosen.token_budget == 0);

  // What it prunes loses what was taken for it, and the ledger counts nothing.
  const auto found = score_of(content, ready);
  BOOST_TEST(found.bound() == *chosen.pruned_nats, boost::test_tools::tolerance(1e-3));
  BOOST_TEST(found.predicted == 0);
  const auto theirs = ready_for(content, request_for("static-pruning", false));
  BOOST_TEST(score_of(content, theirs).increase == found.increase);
  BOOST_TEST(score_of(content, theirs).predicted > 0);
}

BOOST_AUTO_TEST_CASE(requests_cannot_have_less_than_pruning_takes) {
  const auto ready =
      ready_for(with_copies(small_world(), 0.75), request_for("ordermoe", true)).service.chosen;
  const auto taken = planning::percent_of_nats(*ready.pruned_nats);
  BOOST_TEST_REQUIRE(taken > 0.01);
  const auto grant = [&](double stated) {
    return planning::grant_quality(ready.quality, ready.token_budget, stated);
  };
  const auto refused = grant(taken - 0.01);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
  BOOST_TEST(refused.error().message.find("leaves experts out") != std::string::npos);
  for (const double stated : {taken + 0.01, percent}) {
    const auto granted = grant(stated);
    BOOST_REQUIRE(granted.has_value());
    BOOST_TEST(granted->token_budget == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_run_of_it_spends_nothing_and_its_trace_holds) {
  const auto content = with_copies(small_world(), 0.75);
  const auto ready = ready_for(content, request_for("ordermoe", true));
  test::world asked("ordermoe", 0, seed, 4, test::random_model(model::family::mixtral));
  asked.add_requests(4, 6, 0.7);
  auto run = asked.setup;
  static_cast<actors::service_options&>(run) = ready.service;
  const scratch_file scratch;
  run.trace = scratch.path;
  const auto outcome = actors::run_requests(run);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  for (const auto& one : outcome->outcomes) BOOST_TEST(one.spent == 0);
  const auto checked = trace::verify_trace(scratch.path);
  BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
}

BOOST_AUTO_TEST_CASE(it_is_about_as_fast_as_static_pruning) {
  for (const double copies : {1.0, 2.0, 4.0}) {
    const auto content = with_copies(small_world(), copies);
    const auto theirs = ready_for(content, request_for("static-pruning", false));
    const auto alone = ready_for(content, request_for("ordermoe", false));
    const auto ours = ready_for(content, request_for("ordermoe", true));
    BOOST_REQUIRE((ours.trial_ms && alone.trial_ms));
    BOOST_TEST(*ours.trial_ms <= *alone.trial_ms, copies);
    if (theirs.trial_ms) BOOST_TEST(*ours.trial_ms * 0.98 <= *theirs.trial_ms, copies);
    BOOST_TEST(ours.service.chosen.pruned_nats.has_value() ==
               !ours.service.chosen.plan.pruned.empty());
  }
}

BOOST_AUTO_TEST_CASE(it_is_not_tried_where_plans_change_without_a_budget_or_unasked) {
  const auto content = with_copies(small_world(), 0.75);
  for (int why = 0; why < 3; ++why) {
    auto request = request_for("ordermoe", why != 0);
    if (why == 1) request.plans_change = true;
    if (why == 2) request.options.quality_percent = 0;
    job work;
    const auto refused = setup::prepare(content, request, work);
    BOOST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code == errc::infeasible));
  }
}

BOOST_AUTO_TEST_CASE(a_plan_that_is_read_again_is_the_same_and_says_what_it_took) {
  const auto content = with_copies(small_world(), 0.75);
  const auto asked = request_for("ordermoe", true);
  const auto ready = ready_for(content, asked);
  const auto text = setup::plan_file_json(content, asked, ready);
  const scratch_file scratch;
  BOOST_REQUIRE(write_file(scratch.path, text).has_value());
  const auto file = setup::read_plan_file(scratch.path);
  BOOST_REQUIRE_MESSAGE(file.has_value(), (file ? "" : file.error().message));
  const auto request = setup::request_with(*file, request_for("ordermoe", false));
  BOOST_REQUIRE(request.has_value());
  const auto again = ready_for(content, *request).service.chosen;
  const auto& before = ready.service.chosen;
  BOOST_TEST((again.policy == before.policy));
  BOOST_TEST((again.plan.pruned == before.plan.pruned));
  BOOST_TEST((again.pruned_nats == before.pruned_nats));
  BOOST_TEST(again.quality.taken_nats == before.quality.taken_nats);
  BOOST_TEST(again.quality.percent == before.quality.percent);
  BOOST_TEST(again.token_budget == 0);

  // Another budget is none that it was paid by.
  auto other = request_for("ordermoe", false);
  other.options.quality_percent = percent / 2;
  const auto refused = setup::request_with(*file, other);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::mismatch));

  // What is pruned and not paid for is refused.
  auto unpaid = text;
  unpaid.replace(unpaid.find("\"pruning\""), 9, "\"unknown\"");
  BOOST_REQUIRE(write_file(scratch.path, unpaid).has_value());
  const auto read = setup::read_plan_file(scratch.path);
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().message.find("made_for.pruning: found none") != std::string::npos,
             read.error().message);
}

namespace {

/// Of `naee` with what `static-pruning` prunes for half of the budget.
setup::preparation_request with_half_pruned(const setup::world& content) {
  auto half = request_for("static-pruning", false);
  half.options.quality_percent = percent / 2;
  auto request = request_for("naee", false);
  request.options.plan = ready_for(content, half).service.chosen.plan;
  BOOST_TEST_REQUIRE(!request.options.plan->pruned.empty());
  return request;
}

}  // namespace

BOOST_AUTO_TEST_CASE(naee_spends_on_slots_what_pruning_leaves_of_the_budget) {
  const auto content = with_copies(small_world(), 0.75);
  const auto request = with_half_pruned(content);
  const auto ready = ready_for(content, request);
  const auto& chosen = ready.service.chosen;
  BOOST_TEST((chosen.policy.candidates == planning::candidate_rule::weigh));
  BOOST_REQUIRE(chosen.pruned_nats.has_value());
  BOOST_TEST(*chosen.pruned_nats > 0);
  const auto all = planning::nats_of_percent(percent) * planning::units_per_loss;
  const auto taken = *chosen.pruned_nats * planning::units_per_loss;
  BOOST_TEST(static_cast<double>(chosen.token_budget) == all - taken,
             boost::test_tools::tolerance(1e-6));
  BOOST_TEST(ready.was_tuned);
  // In the mean, as slots are charged, and not what it is with confidence.
  job work;
  const auto texts = setup::scored_texts::make(ready.service, content.tuning_texts, work);
  BOOST_REQUIRE(texts.has_value());
  const auto pruned =
      texts->score(*ready.service.model, ready.service.profile, chosen.plan.pruned.front(), work);
  BOOST_REQUIRE(pruned.has_value());
  BOOST_TEST(*chosen.pruned_nats < pruned->increase + pruned->standard_error);

  // Slots are left out, and what is lost is within the budget.
  const auto found = score_of(content, ready);
  BOOST_TEST(found.predicted > 0);
  BOOST_TEST(found.increase <= planning::nats_of_percent(percent));
}

BOOST_AUTO_TEST_CASE(naee_counts_to_its_slots_what_pruning_does_not_explain) {
  const auto content = with_copies(small_world(), 0.75);
  const auto ready = ready_for(content, with_half_pruned(content));
  const auto& pruned = ready.service.chosen.plan.pruned.front();
  job work;
  const auto texts = setup::scored_texts::make(ready.service, content.tuning_texts, work);
  BOOST_REQUIRE(texts.has_value());
  const auto beside = texts->beside(ready.service, pruned, work);
  const auto alone = texts->score(*ready.service.model, ready.service.profile, pruned, work);
  const auto of_all = texts->score(ready.service, work);
  BOOST_REQUIRE((beside && alone && of_all));
  const auto of_rest = beside->score(ready.service, work);
  BOOST_REQUIRE(of_rest.has_value());
  BOOST_TEST(beside->pruned().increase == alone->increase);
  BOOST_TEST(beside->pruned().standard_error == alone->standard_error);
  BOOST_TEST(texts->pruned().increase == 0);
  BOOST_TEST(of_rest->increase == of_all->increase);
  BOOST_TEST(of_rest->bound() == of_all->bound());
  BOOST_TEST(!of_all->rest.has_value());
  BOOST_TEST(*of_rest->rest == of_all->increase - alone->increase,
             boost::test_tools::tolerance(1e-9));

  // 0.05 nats are lost, 0.02 of them by slots that are left out, which is sure, whatever pruning loses.
  setup::trial_score sure{.increase = 0.05, .standard_error = 0.04};
  sure.rest = 0.02;
  sure.rest_error = 0.001;
  BOOST_TEST(sure.to_count() == 0.02);
  sure.rest_error = 0.1;
  sure.predicted = 0.03;
  BOOST_TEST(sure.to_count() == 0.03);
}

BOOST_AUTO_TEST_CASE(
    what_only_leaves_out_is_tried_at_far_dearer_prices_than_the_lowest_that_is_kept) {
  auto content = with_copies(small_world(), 2);
  // By what is charged at the first positions the ledger is empty before what is left is worth anything.
  content.profile.position_damage = {300, 300, 300, 300, 1};
  for (const double budget : {3.0, percent}) {
    auto request = request_for("dynamic-skipping", false);
    request.options.quality_percent = budget;
    const auto ready = ready_for(content, request);
    BOOST_TEST_REQUIRE(ready.trial_ms.has_value());
    for (const double times : {4, 16, 64, 256}) {
      auto dearer = ready;
      dearer.service.chosen.policy.price_ns_per_loss *= times;
      job work;
      const auto ms =
          setup::trial_load_ms(dearer.service, request.options, content.tuning_texts, work);
      BOOST_REQUIRE(ms.has_value());
      const auto found = score_of(content, dearer);
      BOOST_TEST((*ms >= *ready.trial_ms ||
                  found.bound() > 0.9 * setup::aimed_share * planning::nats_of_percent(budget)),
                 budget << " %, " << times << " times the price: " << *ms << " ms");
    }
  }
}

BOOST_AUTO_TEST_CASE(what_only_leaves_out_is_as_fast_as_without_a_ledger_where_that_loses_no_more) {
  auto content = with_copies(small_world(), 2);
  // Ledgers are full at the first positions, whatever is lost.
  content.profile.position_damage = {300, 300, 300, 300, 1};
  auto request = request_for("dynamic-skipping", false);
  request.options.quality_percent = 40;
  const auto ready = ready_for(content, request);
  BOOST_TEST_REQUIRE(ready.trial_ms.has_value());
  int n_kept = 0;
  for (const double price : {1e3, 1e4, 1e5, 1e6, 1e7}) {
    // The same is worth leaving out, and next to nothing of it is counted.
    constexpr double hardly = 1e-6;
    auto freely = ready;
    freely.service.profile = content.profile;
    freely.service =
        setup::tuned(std::move(freely.service),
                     {.price_ns_per_nat = price / hardly, .damage = hardly, .left_out = hardly});
    if (score_of(content, freely).bound() >
        setup::aimed_share * planning::nats_of_percent(request.options.quality_percent))
      continue;
    job work;
    const auto ms =
        setup::trial_load_ms(freely.service, request.options, content.tuning_texts, work);
    BOOST_REQUIRE(ms.has_value());
    BOOST_TEST(*ready.trial_ms <= *ms * 1.02, price);
    ++n_kept;
  }
  BOOST_TEST(n_kept > 0);
}

BOOST_AUTO_TEST_CASE(naee_finds_its_plan_by_itself_and_is_no_slower_than_without_pruning) {
  const auto content = with_copies(small_world(), 2);
  for (const double budget : {percent, 0.01}) {
    auto with = request_for("naee", false), without = request_for("dynamic-skipping", false);
    with.options.quality_percent = without.options.quality_percent = budget;
    without.options.horizon = 1;
    const auto ours = ready_for(content, with), theirs = ready_for(content, without);
    BOOST_REQUIRE((ours.trial_ms && theirs.trial_ms));
    BOOST_TEST(*ours.trial_ms <= *theirs.trial_ms * 1.02, budget);
    BOOST_TEST(ours.service.chosen.pruned_nats.has_value() ==
               !ours.service.chosen.plan.pruned.empty());
  }
  auto far = request_for("naee", false);
  far.options.horizon = 2;
  job work;
  const auto refused = setup::prepare(content, far, work);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::usage));
}

BOOST_AUTO_TEST_CASE(a_run_of_naee_has_a_trace_that_holds_and_its_plan_is_read_again) {
  const auto content = with_copies(small_world(), 0.75);
  auto asked_for = with_half_pruned(content);
  const auto ready = ready_for(content, asked_for);
  test::world asked("naee", 0, seed, 4, test::random_model(model::family::mixtral));
  asked.add_requests(4, 6, 0.7);
  auto run = asked.setup;
  static_cast<actors::service_options&>(run) = ready.service;
  const scratch_file scratch;
  run.trace = scratch.path;
  const auto outcome = actors::run_requests(run);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  const auto checked = trace::verify_trace(scratch.path);
  BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
  const auto gaps = trace::find_gaps(scratch.path);
  BOOST_REQUIRE(!gaps.has_value());
  BOOST_TEST((gaps.error().code == errc::unsupported));

  asked_for.options.plan.reset();
  BOOST_REQUIRE(write_file(scratch.path, setup::plan_file_json(content, asked_for, ready)));
  const auto file = setup::read_plan_file(scratch.path);
  BOOST_REQUIRE_MESSAGE(file.has_value(), (file ? "" : file.error().message));
  const auto again_asked = setup::request_with(*file, request_for("naee", false));
  BOOST_REQUIRE(again_asked.has_value());
  const auto again = ready_for(content, *again_asked).service.chosen;
  const auto& before = ready.service.chosen;
  BOOST_TEST((again.policy == before.policy));
  BOOST_TEST((again.plan.pruned == before.plan.pruned));
  BOOST_TEST((again.pruned_nats == before.pruned_nats));
  BOOST_TEST(again.token_budget == before.token_budget);
}

BOOST_AUTO_TEST_CASE(what_pruning_takes_whole_is_no_plan_of_naee) {
  const auto content = with_copies(small_world(), 0.75);
  auto request = with_half_pruned(content);
  request.options.quality_percent = percent / 20;
  job work;
  const auto refused = setup::prepare(content, request, work);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
