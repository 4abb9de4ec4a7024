#include <array>
#include <boost/test/unit_test.hpp>

#include "actors/request.hpp"
#include "planning/strategies/quality_terms.hpp"
#include "test/actors/disturbance.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

constexpr double of_plan = 20;
/// What the requests of a run state, one after the other.
const std::array<std::optional<double>, 4> stated{std::nullopt, 0.0, 4.0, 100.0};

void state_budgets(std::vector<actors::request_spec>& requests) {
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests[i].quality_percent = stated[i % stated.size()];
}

std::vector<actors::request_outcome> run(const test::world& world) {
  auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  BOOST_REQUIRE_EQUAL(outcome->outcomes.size(), world.setup.requests.size());
  auto outcomes = std::move(outcome->outcomes);
  std::ranges::sort(outcomes, {}, &actors::request_outcome::request);
  for (const auto& each : outcomes)
    BOOST_REQUIRE_MESSAGE(!each.problem, (each.problem ? each.problem->message : ""));
  return outcomes;
}

/// What a run of requests that state budgets spent, by what they stated; and what those that stated 0 spend without.
struct spending {
  std::array<loss_units, stated.size()> spent{}, budget{};
  loss_units spent_otherwise = 0;
  std::size_t other_ids =
      0;  ///< Answers without a budget of their own that are not the reference's.

  void add(const spending& other) {
    for (std::size_t i = 0; i < stated.size(); ++i) {
      spent[i] += other.spent[i];
      budget[i] += other.budget[i];
    }
    spent_otherwise += other.spent_otherwise;
    other_ids += other.other_ids;
  }
};

std::uint64_t positions_of(const actors::request_spec& spec) {
  return actors::prompt_tokens(spec) + std::uint64_t{actors::max_new_tokens(spec)};
}

spending check(test::world& world) {
  const auto plain = run(world);
  state_budgets(world.setup.requests);
  const auto told = run(world);
  const auto& chosen = world.setup.chosen;
  spending found;
  for (std::size_t i = 0; i < told.size(); ++i) {
    const auto& spec = world.setup.requests[i];
    const auto kind = i % stated.size();
    const auto granted =
        planning::grant_quality(chosen.quality, chosen.token_budget, spec.quality_percent);
    BOOST_REQUIRE(granted.has_value());
    const auto budget = serving::request_budget(granted->token_budget, positions_of(spec));
    BOOST_TEST_CONTEXT("request " << i) {
      BOOST_TEST(told[i].budget == budget);
      BOOST_TEST(told[i].spent <= budget);
      BOOST_TEST(told[i].quality_percent.value() == granted->percent);
      const auto reference = test::reference_ids(*world.setup.model, spec, i);
      if (stated[kind] == 0.0) {
        BOOST_TEST(told[i].spent == 0);
        BOOST_TEST(told[i].token_ids == reference, boost::test_tools::per_element());
        found.spent_otherwise += plain[i].spent;
      }
      if (!stated[kind] && told[i].token_ids != reference) ++found.other_ids;
    }
    found.spent[kind] += told[i].spent;
    found.budget[kind] += told[i].budget;
  }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(request_budget)

BOOST_AUTO_TEST_CASE(each_request_spends_its_own_budget_at_most_and_with_0_is_the_reference) {
  const auto [first, last] = test::seeds(6);
  for (const std::string strategy :
       {"local-only", "local-tuned", "drop", "wdmoe", "paper", "ordermoe"}) {
    spending all;
    for (auto seed = first; seed <= last; ++seed)
      BOOST_TEST_CONTEXT(strategy << ", seed " << seed) {
        test::world world(strategy, of_plan, seed);
        world.setup.chunk_rows = 4;
        world.add_requests(12, 8, 0.8, 12);
        all.add(check(world));
      }
    // Else nothing of this could have failed.
    BOOST_TEST_CONTEXT(strategy) {
      BOOST_TEST(all.spent[0] > 0);
      BOOST_TEST(all.spent[2] > 0);
      BOOST_TEST(all.spent[3] > 0);
      BOOST_TEST(all.spent_otherwise > 0);
      BOOST_TEST(all.other_ids > 0u);
      BOOST_TEST(all.budget[1] == 0);
      BOOST_TEST(all.budget[2] < all.budget[0] / 3);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_plan_without_limit_keeps_what_a_request_states) {
  for (const std::string strategy :
       {"local-only", "local-tuned", "drop", "wdmoe", "paper", "ordermoe"})
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy, -1, 3);
      world.add_requests(12, 8, 0.8, 12);
      const auto found = check(world);
      BOOST_TEST(found.spent_otherwise > 0);
      BOOST_TEST(found.other_ids > 0u);
      BOOST_TEST(found.spent[2] > 0);
    }
}

BOOST_AUTO_TEST_CASE(the_bundled_model_answers_exactly_where_a_request_states_0) {
  auto world = test::bundled_world("lineage", "ordermoe", 8, 24, 0);
  planning::strategy_options options;
  options.quality_percent = of_plan;
  options.search_steps = 2000;
  auto& setup = world.setup;
  auto chosen =
      planning::make_strategy("ordermoe", setup.profile, setup.servers, setup.costs, options);
  BOOST_REQUIRE_MESSAGE(chosen, (chosen ? "" : chosen.error().message));
  setup.chosen = std::move(*chosen);
  const auto found = check(world);
  BOOST_TEST(found.spent_otherwise > 0);
  BOOST_TEST(found.spent[2] > 0);
  BOOST_TEST(found.other_ids > 0u);
}

BOOST_AUTO_TEST_CASE(local_runs_keep_it_too) {
  for (const std::string strategy : {"local-only", "drop", "ordermoe"})
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy, of_plan, 2);
      world.setup.mode = actors::run_mode::local;
      world.add_requests(12, 8, 0.8, 12);
      const auto found = check(world);
      BOOST_TEST(found.spent[0] > 0);
    }
}

BOOST_AUTO_TEST_CASE(coarser_copies_are_no_target_where_a_request_states_0) {
  for (const auto kept : {precision::int8, precision::int4}) {
    test::world world("ordermoe", of_plan, 1, 4, test::tiny_model(), 8);
    auto& setup = world.setup;
    model::load_options loading;
    loading.expert_precision = kept;
    auto coarse = model::transformer::load(ORDERMOE_TEST_DATA "/mixtral-tiny", loading);
    BOOST_REQUIRE(coarse.has_value());
    setup.coarser[kept] = *coarse;
    // A copy that was never seen to be off.
    for (auto& layer : setup.profile.layers) {
      planning::copy_profile copy;
      copy.kept = kept;
      copy.damage = 0;
      copy.distance.assign(setup.profile.n_experts, 0.0);
      layer.copies.push_back(std::move(copy));
    }
    planning::strategy_options options;
    options.quality_percent = of_plan;
    options.search_steps = 500;
    options.expert_precision.assign(setup.servers.size(), precision::stored);
    options.expert_precision[0] = options.expert_precision[1] = kept;
    auto chosen =
        planning::make_strategy("ordermoe", setup.profile, setup.servers, setup.costs, options);
    BOOST_REQUIRE_MESSAGE(chosen, (chosen ? "" : chosen.error().message));
    setup.chosen = std::move(*chosen);
    world.add_requests(12, 8, 0.8, 12);
    const auto found = check(world);
    BOOST_TEST(found.spent_otherwise > 0);
    BOOST_TEST(found.other_ids > 0u);
  }
}

BOOST_AUTO_TEST_CASE(strategies_without_a_budget_spend_nothing_whatever_is_stated) {
  for (const std::string strategy : {"exact", "layer-shards"}) BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy);
      world.add_requests(8, 6, 0.8);
      state_budgets(world.setup.requests);
      for (const auto& each : run(world)) {
        BOOST_TEST(each.spent == 0);
        BOOST_TEST(each.budget == 0);
        BOOST_TEST(each.quality_percent.value() == 0);
      }
    }
}

BOOST_AUTO_TEST_CASE(
    a_strategy_that_keeps_no_budget_refuses_whoever_states_one_and_answers_others) {
  test::world world("router-restricted");
  world.add_requests(8, 6, 0.8);
  state_budgets(world.setup.requests);
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::unsupported));
  BOOST_TEST(outcome.error().message.find("keeps no budget") != std::string::npos,
             outcome.error().message);
  for (auto& each : world.setup.requests) each.quality_percent.reset();
  for (const auto& each : run(world)) {
    BOOST_TEST(each.quality_percent.value() < 0);
    BOOST_TEST(each.budget == unbounded_budget);
  }
}

BOOST_AUTO_TEST_CASE(requests_that_begin_again_keep_their_own_budgets) {
  const auto [first, last] = test::seeds(40);
  std::size_t later_attempts = 0;
  loss_units spent = 0;
  for (const auto* strategy : {"paper", "ordermoe"}) {
    test::disturbed_world world(strategy, of_plan);
    world.state_budgets({stated.begin(), stated.end()});
    for (auto seed = first; seed <= last; ++seed) {
      const auto wrong = world.run(test::mischief::restarts, seed);
      BOOST_TEST(wrong.empty(), strategy << ", seed " << seed << ": " << wrong);
      later_attempts += world.later_attempts();
      spent += world.spent();
    }
  }
  BOOST_TEST(later_attempts > 0u);
  BOOST_TEST(spent > 0);
}

BOOST_AUTO_TEST_CASE(an_encoder_decoder_that_begins_again_is_not_charged_twice) {
  test::world world("ordermoe", of_plan, 3, 5,
                    test::random_model(model::family::switch_transformers));
  constexpr std::uint32_t n_new = 24;
  world.add_requests(1, n_new, 0, 12);
  const auto spent = [&](std::size_t begins_again_after) {
    auto begun = actors::service::start(world.setup);
    BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.error().message));
    auto& service = **begun;
    test::followed_request followed;
    followed.spec = world.setup.requests[0];
    auto sink = followed.sink();
    service.submit(followed.spec, {[&, told = sink.on_token](const actors::answer_token& token) {
                                     told(token);
                                     if (followed.streamed.size() == begins_again_after)
                                       service.at(service.now_ns(), [&] { service.restart(0); });
                                   },
                                   sink.on_end});
    BOOST_REQUIRE(service.run_until([&] { return followed.ended.has_value(); }));
    BOOST_REQUIRE(service.settle().has_value());
    BOOST_TEST(followed.mistake == "");
    BOOST_TEST(followed.streamed.size() == n_new);
    BOOST_TEST(followed.ended->attempts == (begins_again_after > 0 ? 2u : 1u));
    return followed.ended->spent;
  };
  const auto once = spent(0);
  BOOST_TEST(once > 0);
  // Charged again, three quarters of the answer would cost as much more.
  BOOST_TEST(spent(3 * n_new / 4) <= once);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
