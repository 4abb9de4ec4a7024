#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <compare>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "config/precision.hpp"
#include "model/reference.hpp"
#include "setup/preparation.hpp"
#include "setup/trials.hpp"
#include "test/setup/small_world.hpp"
#include "trace/verify.hpp"

/// Preparing a strategy where the whole model may be kept coarser.
namespace ordermoe {

namespace {

constexpr auto kind = model::family::mixtral;

std::shared_ptr<const model::transformer> coarse_model() {
  model::load_options loading;
  loading.expert_precision = precision::int4;
  return test::random_model(kind, loading);
}

/// One that answers quite differently.
std::shared_ptr<const model::transformer> other_model() {
  return test::random_model(kind, {}, 2);
}

constexpr std::uint64_t seed = 1;

setup::world world_with(std::shared_ptr<const model::transformer> coarse) {
  auto made = test::small_world(test::random_model(kind), 8, 24);
  made.coarser[precision::int4] = std::move(coarse);
  return made;
}

planning::strategy_options choosing(double quality_percent) {
  planning::strategy_options options;
  options.quality_percent = quality_percent;
  options.choose_precision = true;
  options.search_steps = 200;
  options.dry_run_requests = 8;
  return options;
}

setup::preparation_request request_of(const planning::strategy_options& options) {
  setup::preparation_request request;
  request.options = options;
  request.seed = seed;
  return request;
}

result<setup::prepared> prepare(const setup::world& content,
                                const planning::strategy_options& options) {
  job work;
  return setup::prepare(content, request_of(options), work);
}

/// The first server has room for all experts, the others for none.
setup::world with_room_at_the_first_alone(setup::world content) {
  const auto n = static_cast<std::int64_t>(content.profile.n_layers * content.profile.n_experts);
  for (std::size_t m = 0; m < content.servers.size(); ++m) {
    auto& server = content.servers.servers[m];
    const auto room = expert_memory_bytes(server, content.costs, content.profile.n_layers);
    server.memory_bytes += (m == 0 ? n * content.costs.expert_bytes : 0) - room;
  }
  return content;
}

/// All of a plan that what is done with it follows from.
struct plan_traits {
  std::vector<std::array<std::size_t, 3>> placed;           ///< Server, layer and expert, in order.
  std::vector<std::vector<planning::server_mask>> members;  ///< [n_servers][n_layers]
  std::vector<precision> precisions;
  std::size_t groups = 0;  ///< Another number for each plan whose groups are read; 0: none are.
  auto operator<=>(const plan_traits&) const = default;
};

plan_traits traits_of(const planning::strategy& made, std::size_t number) {
  plan_traits traits;
  for (const auto& each : made.plan.experts)
    traits.placed.push_back({each.server.index(), each.layer.index(), each.expert.index()});
  std::ranges::sort(traits.placed);
  for (const auto& each : made.plan.residence) traits.members.push_back(each.layers);
  traits.precisions = made.plan.expert_precision;
  using enum planning::candidate_rule;
  const auto rule = made.policy.candidates;
  if (rule != exact && rule != any && !made.plan.grouping.empty()) traits.groups = number;
  return traits;
}

/// How many plans of a strategy there are for a world, and how many fewer are told from each other than all their traits tell
/// where one of these is not looked at.
struct plan_counts {
  std::size_t plans = 0, apart = 0;
  std::size_t by_placement = 0, by_members = 0, by_precision = 0, by_groups = 0;
};

plan_counts count_plans(const setup::world& content, const setup::preparation_request& request) {
  std::vector<plan_traits> all;
  for (const auto& variant : planning::plan_variants(
           request.strategy, content.profile, content.servers, content.costs, request.options)) {
    const auto made = planning::make_strategy(request.strategy, content.profile, content.servers,
                                              content.costs, variant);
    if (made) all.push_back(traits_of(*made, all.size() + 1));
  }
  const auto n_apart = [](const std::vector<plan_traits>& some) {
    return std::set<plan_traits>(some.begin(), some.end()).size();
  };
  const auto fewer_without = [&](auto member) {
    auto some = all;
    for (auto& each : some) each.*member = {};
    return n_apart(all) - n_apart(some);
  };
  return {all.size(),
          n_apart(all),
          fewer_without(&plan_traits::placed),
          fewer_without(&plan_traits::members),
          fewer_without(&plan_traits::precisions),
          fewer_without(&plan_traits::groups)};
}

constexpr double much = 20, nats_of_much = 0.1823215567939546;  // per cent, log(1.2)

}  // namespace

BOOST_AUTO_TEST_SUITE(preparation)

BOOST_AUTO_TEST_CASE(a_model_with_a_short_context_is_planned_by_trials_that_fit_into_it) {
  const auto content = test::small_world(test::random_model(kind, {}, 1, 32), 8, 32);
  for (const double percent : {0.0, 30.0}) {
    setup::preparation_request request;
    request.strategy = "ordermoe";
    request.options = choosing(percent);
    request.options.choose_precision = false;
    job work;
    const auto ready = setup::prepare(content, request, work);
    BOOST_TEST(ready.has_value(), (ready ? "" : ready.error().message));
  }
}

BOOST_AUTO_TEST_CASE(its_measured_damage_is_taken_of_the_budget_and_the_rest_keeps_the_ledger) {
  const auto world = world_with(coarse_model());
  const auto ready = prepare(world, choosing(much));
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  const auto& chosen = ready->service.chosen;
  BOOST_REQUIRE((chosen.whole_model == precision::int4));
  BOOST_TEST((ready->service.model == world.coarser.at(precision::int4)));
  BOOST_TEST(ready->service.coarser.empty());
  BOOST_TEST(ready->service.costs.expert_bytes < world.costs.expert_bytes);
  BOOST_TEST(ready->service.quality_percent == much);
  BOOST_TEST(chosen.quality.taken_nats >= 0);
  BOOST_TEST(static_cast<double>(chosen.token_budget) / planning::units_per_loss +
                 chosen.quality.taken_nats <=
             nats_of_much + 1e-9);
  BOOST_TEST(chosen.token_budget > 0);

  test::world asked("ordermoe", 0, seed, 4, test::random_model(kind));
  asked.add_requests(4, 6, 0.7);
  auto run = asked.setup;
  static_cast<actors::service_options&>(run) = ready->service;
  const auto path = std::filesystem::temp_directory_path() /
                    ("ordermoe-whole-" + std::to_string(::getpid()) + ".jsonl");
  run.trace = path;
  const auto outcome = actors::run_requests(run);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  const auto checked = trace::verify_trace(path);
  std::filesystem::remove(path);
  BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
}

BOOST_AUTO_TEST_CASE(a_model_whose_damage_the_budget_does_not_cover_is_left_as_stored) {
  const auto world = world_with(other_model());
  const auto ready = prepare(world, choosing(0.001));
  BOOST_REQUIRE(ready.has_value());
  BOOST_TEST((ready->service.chosen.whole_model == precision::stored));
  BOOST_TEST((ready->service.model == world.model));
}

BOOST_AUTO_TEST_CASE(
    it_is_not_tried_without_a_budget_with_servers_precisions_or_plans_that_change) {
  for (int why = 0; why < 4; ++why) {
    auto world = world_with(coarse_model());
    auto request = request_of(choosing(why == 0 ? 0 : much));
    if (why == 1) world.servers.servers[0].expert_precision = precision::int4;
    if (why == 2) request.plans_change = true;
    if (why == 3) request.options.choose_precision = false;
    // Where servers have precisions of their own the profile has to say what those cost.
    for (auto& layer : world.profile.layers)
      layer.copies = {
          {precision::int4, std::vector<double>(world.profile.n_experts, 0.05), 0.1, 0.01}};
    job work;
    const auto ready = setup::prepare(world, request, work);
    BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
    BOOST_TEST((ready->service.chosen.whole_model == precision::stored));
    BOOST_TEST((ready->service.model == world.model));
  }
}

BOOST_AUTO_TEST_CASE(a_model_that_fits_only_coarser_is_planned_so_where_the_budget_covers_it) {
  auto world = world_with(coarse_model());
  const auto n = static_cast<std::int64_t>(world.profile.n_layers * world.profile.n_experts);
  std::int64_t room = 0;
  for (const auto& server : world.servers.servers)
    room += expert_memory_bytes(server, world.costs, world.profile.n_layers);
  // Half of what one copy of the experts takes as stored.
  const auto too_much =
      (room - n * world.costs.expert_bytes / 2) / static_cast<std::int64_t>(world.servers.size());
  for (auto& server : world.servers.servers) server.memory_bytes -= too_much;
  const auto ready = prepare(world, choosing(much));
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  BOOST_TEST((ready->service.chosen.whole_model == precision::int4));

  world.coarser[precision::int4] = other_model();
  const auto refused = prepare(world, choosing(0.001));
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_CASE(a_world_is_as_before_and_gives_the_same_again) {
  const auto world = world_with(coarse_model());
  auto options = choosing(much);
  options.choose_precision = false;
  const auto damage = world.profile.layers.front().damage;
  const auto first = prepare(world, options);
  const auto again = prepare(world, options);
  BOOST_REQUIRE((first.has_value() && again.has_value()));
  BOOST_TEST((world.profile.layers.front().damage == damage));
  BOOST_TEST(first->found.price_ns_per_nat == again->found.price_ns_per_nat);
  BOOST_TEST(first->found.damage == again->found.damage);
  BOOST_TEST(*first->trial_ms == *again->trial_ms);
}

BOOST_AUTO_TEST_CASE(a_job_that_is_stopped_ends_the_preparation) {
  const auto world = world_with(coarse_model());
  job work;
  work.stop();
  auto options = choosing(0);
  options.search_steps = 100'000'000;
  const auto ready = setup::prepare(world, request_of(options), work);
  BOOST_REQUIRE(!ready.has_value());
  BOOST_TEST((ready.error().code == errc::interrupted));
}

BOOST_AUTO_TEST_CASE(who_waits_sees_what_is_done_and_how_far_it_is) {
  const auto world = world_with(coarse_model());
  auto options = choosing(much);
  options.choose_precision = false;
  job work;
  std::atomic<bool> done = false;
  std::jthread preparing([&] {
    const auto ready = setup::prepare(world, request_of(options), work);
    BOOST_TEST(ready.has_value());
    done = true;
  });
  // By phase, the shares that were seen between its begin and its end.
  std::map<std::string, std::set<double>> seen;
  while (!done) {
    const auto now = work.now();
    if (now.share > 0 && now.share < 1) seen[now.phase].insert(now.share);
    std::this_thread::yield();
  }
  BOOST_TEST(work.now().phase.starts_with("trying"));
  BOOST_TEST(work.now().share == 1);
  std::size_t trying = 0;
  for (const auto& [phase, shares] : seen)
    if (phase.starts_with("trying")) trying = std::max(trying, shares.size());
  BOOST_TEST(trying >= 3u, "shares seen while plans were tried: " << trying);
  BOOST_TEST(std::ranges::any_of(
      seen, [](const auto& each) { return each.first.find("budget") != std::string::npos; }));
}

BOOST_AUTO_TEST_CASE(one_server_is_planned_without_executing_the_model) {
  model::load_options without_experts;
  without_experts.hosts = [](layer_id, expert_id) { return false; };
  for (const std::string strategy : {"exact", "layer-shards", "local-only", "paper", "ordermoe"})
    for (const double quality : {0.0, much}) {
      if (quality > 0 && (strategy == "exact" || strategy == "layer-shards")) continue;
      test::world small(strategy, 0, seed, 1, test::random_model(kind));
      setup::world content = world_with(coarse_model());
      content.servers = small.setup.servers;
      content.model = test::random_model(kind, without_experts);
      auto request = request_of(choosing(quality));
      request.strategy = strategy;
      request.options.choose_precision = false;
      job work;
      auto ready = setup::prepare(content, request, work);
      BOOST_REQUIRE_MESSAGE(ready.has_value(), strategy << (ready ? "" : ready.error().message));
      BOOST_TEST(!ready->trial_ms.has_value());
      BOOST_TEST(ready->was_tuned == (quality > 0 && strategy == "ordermoe"));

      // The paper's rule weighs more than time: it substitutes on one server, too.
      if (quality > 0 && strategy == "paper") continue;
      // With all experts it answers as the model alone, and loses nothing.
      small.add_requests(4, 6, 0.7);
      auto run = small.setup;
      static_cast<actors::service_options&>(run) = std::move(ready->service);
      run.model = small.setup.model;
      const auto outcome = actors::run_requests(run);
      BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
      BOOST_TEST(outcome->outcomes.size() == run.requests.size());
      for (const auto& answer : outcome->outcomes) {
        const auto& spec = run.requests[static_cast<std::size_t>(answer.request)];
        model::generation_options alone;
        alone.max_new_tokens = spec.max_new_tokens;
        alone.sampling = {spec.temperature, spec.sampling_seed};
        alone.request = answer.request;
        const auto expected = model::generate(*run.model, nullptr, spec.prompt, alone);
        BOOST_REQUIRE(expected.has_value());
        BOOST_TEST((answer.token_ids == expected->token_ids), strategy);
        BOOST_TEST(answer.spent == 0);
      }
    }
}

BOOST_AUTO_TEST_CASE(one_server_needs_trials_where_precisions_may_be_chosen) {
  test::world small("ordermoe", 0, seed, 1, test::random_model(kind));
  auto content = world_with(coarse_model());
  content.servers = small.setup.servers;
  const auto ready = prepare(content, choosing(much));
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  BOOST_TEST(ready->trial_ms.has_value());
  BOOST_TEST((ready->service.chosen.whole_model == precision::int4));
}

BOOST_AUTO_TEST_CASE(one_server_whose_precision_may_be_chosen_while_plans_change_is_tried) {
  test::world small("ordermoe", 0, seed, 1, test::random_model(kind));
  auto content = world_with(coarse_model());
  content.servers = small.setup.servers;
  const auto is_tried = [&](bool chooses) {
    auto options = choosing(much);
    options.choose_precision = chooses;
    auto request = request_of(options);
    // Then the whole model is not compared with coarser ones.
    request.plans_change = true;
    job work;
    const auto ready = setup::prepare(content, request, work);
    BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
    return ready->trial_ms.has_value();
  };
  BOOST_TEST(is_tried(true));
  BOOST_TEST(!is_tried(false));
}

BOOST_AUTO_TEST_CASE(of_plans_that_differ_the_one_that_answers_fastest_is_taken) {
  const auto content = world_with(coarse_model());
  auto options = choosing(0);
  options.choose_precision = false;
  const auto ready = prepare(content, options);
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  BOOST_TEST_REQUIRE(ready->trial_ms.has_value());
  job work;
  std::set<double> tried;
  for (const auto& variant : planning::plan_variants("ordermoe", content.profile, content.servers,
                                                     content.costs, options)) {
    auto service = setup::service_in(content, seed);
    auto made = planning::make_strategy("ordermoe", service.profile, service.servers, service.costs,
                                        variant);
    BOOST_REQUIRE(made.has_value());
    service.chosen = std::move(*made);
    const auto ms = setup::trial_load_ms(service, options, content.tuning_texts, work);
    BOOST_REQUIRE(ms.has_value());
    tried.insert(*ms);
  }
  BOOST_TEST(tried.size() > 1u);
  BOOST_TEST(*ready->trial_ms == *tried.begin());
}

BOOST_AUTO_TEST_CASE(with_a_budget_it_is_as_fast_as_every_rival_that_never_substitutes) {
  const auto content = world_with(coarse_model());
  for (const double percent : {0.0, 3.0, much}) {
    auto options = choosing(percent);
    options.choose_precision = false;
    const auto ready = prepare(content, options);
    BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
    for (const auto* name : {"layer-shards", "shard-chains", "parallax"}) {
      auto request = request_of(options);
      request.strategy = name;
      job work;
      const auto rival = setup::prepare(content, request, work);
      BOOST_REQUIRE_MESSAGE(rival.has_value(), (rival ? "" : rival.error().message));
      if (rival->trial_ms)
        BOOST_TEST(*ready->trial_ms <= *rival->trial_ms, name << " at " << percent << " %");
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_sought_on_some_texts_is_judged_by_others) {
  auto content = world_with(coarse_model());
  const auto more = content.tuning_texts;
  content.tuning_texts.insert(content.tuning_texts.end(), more.begin(), more.end());
  const auto service = setup::service_in(content, seed);
  job work;
  const auto all = setup::scored_texts::make(service, content.tuning_texts, work);
  BOOST_REQUIRE(all.has_value());
  const auto [sought, judged] = all->sought_and_judged();
  auto joined = sought.exact();
  joined.insert(joined.end(), judged.exact().begin(), judged.exact().end());
  BOOST_TEST(sought.exact().size() == 4u);
  BOOST_TEST((joined == all->exact()));
  // Of few, each has all.
  content.tuning_texts.resize(15);
  const auto few = setup::scored_texts::make(service, content.tuning_texts, work);
  BOOST_REQUIRE(few.has_value());
  const auto [first, second] = few->sought_and_judged();
  BOOST_TEST(first.exact().size() == 15u);
  BOOST_TEST(second.exact().size() == 15u);
}

namespace {

/// A strategy with a budget, ready, and what the tuning texts say of it.
struct scored_strategy {
  setup::prepared ready;
  setup::scored_texts texts;
  setup::trial_score found;
};
scored_strategy scored(const setup::world& content, std::string strategy, double percent) {
  auto options = choosing(percent);
  options.choose_precision = false;
  auto request = request_of(options);
  request.strategy = std::move(strategy);
  job work;
  auto ready = setup::prepare(content, request, work);
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  auto texts = setup::scored_texts::make(ready->service, content.tuning_texts, work);
  BOOST_REQUIRE(texts.has_value());
  const auto found = texts->score(ready->service, work);
  BOOST_REQUIRE(found.has_value());
  return {std::move(*ready), std::move(*texts), *found};
}

}  // namespace

BOOST_AUTO_TEST_CASE(experts_are_pruned_as_far_as_the_texts_allow) {
  const auto content = world_with(coarse_model());
  for (const auto* name : {"static-pruning", "moe2"}) {
    const auto [ready, texts, found] = scored(content, name, 3);
    job work;
    BOOST_TEST(found.bound() <= setup::aimed_share * planning::nats_of_percent(3));
    if (const auto& pruned = ready.service.chosen.plan.pruned;
        std::string_view(name) == "static-pruning" && !pruned.empty()) {
      const auto alone =
          texts.score(*ready.service.model, ready.service.profile, pruned.front(), work);
      BOOST_REQUIRE(alone.has_value());
      BOOST_TEST(alone->increase == found.increase, boost::test_tools::tolerance(1e-4));
      BOOST_TEST(alone->predicted == found.predicted, boost::test_tools::tolerance(1e-4));
      BOOST_TEST(alone->standard_error == found.standard_error, boost::test_tools::tolerance(1e-4));
    }
    // All that can be pruned loses more.
    auto all = setup::service_in(content, seed);
    auto options = choosing(3);
    options.choose_precision = false;
    options.cut = planning::find_strategy(name)->most_cut(
        {content.profile, content.servers, content.costs, options});
    auto made = planning::make_strategy(name, all.profile, all.servers, all.costs, options);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    all.chosen = std::move(*made);
    const auto lost = texts.score(all, work);
    BOOST_REQUIRE(lost.has_value());
    BOOST_TEST(lost->bound() > planning::nats_of_percent(3), name);
  }
}

BOOST_AUTO_TEST_CASE(thresholds_of_the_paper_come_down_as_far_as_the_texts_allow) {
  const auto content = world_with(coarse_model());
  // How much of theta of (6) is left in the first layer.
  const auto left_with = [&](double percent) {
    const auto made = scored(content, "paper-tuned", percent);
    const double left = made.ready.service.chosen.plan.grouping.front().threshold / 0.9;
    if (left < 1)
      BOOST_TEST(made.found.bound() <= setup::aimed_share * planning::nats_of_percent(percent));
    return left;
  };
  BOOST_TEST(left_with(0.1) == 1);
  BOOST_TEST(left_with(300) < 1);
}

BOOST_AUTO_TEST_CASE(plans_are_made_again_for_as_many_requests_as_a_trial_had_in_flight) {
  const auto content = world_with(coarse_model());
  auto options = choosing(0);
  options.choose_precision = false;
  options.concurrency = 64;
  const auto trial_of = [&](const planning::strategy_options& by) {
    auto request = request_of(by);
    request.strategy = "shard-chains";
    job work;
    const auto ready = setup::prepare(content, request, work);
    BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
    return ready->trial_ms.value();
  };
  const double for_many = trial_of(options);
  auto few = options;
  few.concurrency = 1 + options.expected_rate * for_many / 1000;
  BOOST_TEST_REQUIRE(few.concurrency < options.concurrency / 2);
  const double for_few = trial_of(few);
  BOOST_TEST(for_few < for_many);
  options.concurrency_by_trial = true;
  BOOST_TEST(trial_of(options) == for_few);
  // What is near enough stays.
  few.concurrency_by_trial = true;
  BOOST_TEST(trial_of(few) == for_few);
}

BOOST_AUTO_TEST_CASE(a_budget_that_comes_to_nothing_is_not_tuned) {
  auto options = choosing(1e-12);
  options.choose_precision = false;
  const auto ready = prepare(world_with(coarse_model()), options);
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  BOOST_TEST(!ready->was_tuned);
  BOOST_TEST(ready->service.chosen.token_budget == 0);
}

BOOST_AUTO_TEST_CASE(plans_that_are_all_alike_need_no_trial) {
  model::load_options without_experts;
  without_experts.hosts = [](layer_id, expert_id) { return false; };
  auto content = with_room_at_the_first_alone(world_with(coarse_model()));
  content.model = test::random_model(kind, without_experts);
  auto options = choosing(0);
  options.choose_precision = false;
  auto request = request_of(options);
  request.strategy = "layer-shards";
  job work;
  const auto ready = setup::prepare(content, request, work);
  BOOST_REQUIRE_MESSAGE(ready.has_value(), (ready ? "" : ready.error().message));
  BOOST_TEST(!ready->trial_ms.has_value());
  BOOST_TEST(ready->service.chosen.plan.experts.size() ==
             content.profile.n_layers * content.profile.n_experts);

  // Where they differ, trials run the model.
  const auto spread = setup::prepare(
      [&] {
        auto other = world_with(coarse_model());
        other.model = content.model;
        return other;
      }(),
      request, work);
  BOOST_REQUIRE(!spread.has_value());
  BOOST_TEST(spread.error().message.find("is not here") != std::string::npos,
             spread.error().message);
}

BOOST_AUTO_TEST_CASE(
    plans_that_differ_in_placement_residence_or_precision_are_tried_and_others_are_not) {
  const auto tried = [](const setup::world& content, const std::string& strategy,
                        double quality_percent) {
    auto request = request_of(choosing(quality_percent));
    request.strategy = strategy;
    const auto counts = count_plans(content, request);
    job work;
    const auto ready = setup::prepare(content, request, work);
    BOOST_REQUIRE_MESSAGE(ready.has_value(),
                          strategy << ": " << (ready ? "" : ready.error().message));
    BOOST_TEST(ready->trial_ms.has_value() == (counts.apart > 1));
    const auto expected = counts.apart > 1
                              ? fmt::format("trying {} plans of {}", counts.apart, strategy)
                              : fmt::format("planning {}", strategy);
    BOOST_TEST(work.now().phase == expected);
    return counts;
  };
  const auto content = world_with(coarse_model());
  BOOST_TEST(tried(content, "exact", 0).by_placement > 0u);
  BOOST_TEST(tried(content, "random", 0).by_members > 0u);
  auto narrow = with_room_at_the_first_alone(content);
  const auto alike = tried(narrow, "layer-shards", 0);
  BOOST_TEST(alike.plans > 1u);
  BOOST_TEST(alike.apart == 1u);
  // By a rule that may read groups, a plan with some is like none without.
  BOOST_TEST(tried(narrow, "drop", 0).by_groups > 0u);
  // Servers that keep experts coarser, though they have no room for any.
  for (auto& layer : narrow.profile.layers)
    layer.copies = {
        {precision::int4, std::vector<double>(narrow.profile.n_experts, 0.05), 0.1, 0.01}};
  BOOST_TEST(tried(narrow, "ordermoe", -1).by_precision > 0u);
}

BOOST_AUTO_TEST_CASE(one_server_without_a_budget_needs_no_profile) {
  auto content = world_with(coarse_model());
  const test::world small("ordermoe", 0, seed, 1, test::random_model(kind));
  const auto& shape = content.model->config();
  content.profile =
      planning::uniform_profile("small", "digest", shape.n_layers, shape.n_experts, shape.top_k);
  content.knows_nothing = true;
  auto options = choosing(0);
  options.choose_precision = false;
  const auto several = prepare(content, options);
  BOOST_REQUIRE(!several.has_value());
  BOOST_TEST((several.error().code == errc::usage));
  content.servers = small.setup.servers;
  const auto alone = prepare(content, options);
  BOOST_REQUIRE_MESSAGE(alone.has_value(), (alone ? "" : alone.error().message));
  options.quality_percent = much;
  const auto budget = prepare(content, options);
  BOOST_REQUIRE(!budget.has_value());
  BOOST_TEST((budget.error().code == errc::usage));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
