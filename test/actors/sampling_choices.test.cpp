#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "test/actors/living.hpp"

namespace ordermoe {

namespace {

using actors::sampling_choice;

/// Requests that choose their tokens in many ways.
void choose_variously(actors::run_setup& setup) {
  random_stream draws(setup.seed, 5);
  const auto vocabulary = setup.model->config().vocab_size;
  for (std::size_t i = 0; i < setup.requests.size(); ++i) {
    auto& spec = setup.requests[i];
    auto& choice = spec.choice;
    spec.tells_executions = i % 3 != 0;
    if (i % 4 == 0) continue;  // As it always was.
    if (i % 2 == 0) choice.top_k = 1 + static_cast<std::uint32_t>(draws.below(20));
    if (i % 5 < 3) choice.top_p = 0.2 + 0.7 * draws.unit();
    if (i % 3 == 1) choice.frequency_penalty = 2 * draws.unit();
    if (i % 3 == 2) choice.presence_penalty = 4 * draws.unit() - 2;
    if (i % 5 == 4) choice.logprobs = static_cast<std::uint32_t>(draws.below(4));
    std::map<std::int32_t, float> bias;
    for (std::size_t n = draws.below(4); n > 0; --n)
      bias[static_cast<std::int32_t>(draws.below(vocabulary))] =
          static_cast<float>(6 * draws.unit() - 3);
    choice.bias.assign(bias.begin(), bias.end());
  }
}

struct told_token {
  std::vector<actors::told_logprob> logprobs;
  std::optional<actors::told_executions> executions;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(sampling_choices)

BOOST_AUTO_TEST_CASE(
    every_way_to_choose_tokens_gives_the_references_ids_wherever_they_are_sampled) {
  for (const std::string strategy : {"exact", "layer-shards", "paper", "ordermoe"})
    for (const double temperature : {0.0, 1.3}) {
      BOOST_TEST_CONTEXT(strategy << ", temperature " << temperature) {
        test::world world(strategy);
        world.add_requests(24, 12, temperature);
        choose_variously(world.setup);
        world.setup.chunk_rows = 4;
        const auto run = actors::run_requests(world.setup);
        BOOST_REQUIRE_MESSAGE(run.has_value(), (run ? "" : run.error().message));
        for (const auto& outcome : run->outcomes) {
          const auto& spec = world.setup.requests[outcome.request];
          const auto expected = test::reference_ids(*world.setup.model, spec, outcome.request);
          BOOST_TEST(outcome.token_ids == expected, boost::test_tools::per_element());
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(penalties_change_answers) {
  test::world plain("paper"), penalised("paper");
  for (auto* each : {&plain, &penalised}) each->add_requests(8, 30, 0);
  for (auto& spec : penalised.setup.requests) spec.choice.frequency_penalty = 2;
  const auto before = actors::run_requests(plain.setup),
             after = actors::run_requests(penalised.setup);
  BOOST_REQUIRE(before && after);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < before->outcomes.size(); ++i)
    changed += before->outcomes[i].token_ids != after->outcomes[i].token_ids ? 1 : 0;
  BOOST_TEST(changed > 0u);
}

BOOST_AUTO_TEST_CASE(logprobs_are_those_of_the_references_logits) {
  test::world world("paper");
  world.add_requests(4, 8, 1.0);
  for (auto& spec : world.setup.requests) {
    spec.choice.logprobs = 3;
    spec.choice.top_p = 0.7;
    spec.ignore_end_of_text = true;
  }
  std::map<std::uint64_t, std::vector<told_token>> told;
  world.setup.watcher.on_token = [&](const actors::answer_token& token) {
    told[token.request].push_back({token.logprobs, token.executions});
  };
  const auto run = actors::run_requests(world.setup);
  BOOST_REQUIRE(run.has_value());
  const auto vocabulary = world.setup.model->config().vocab_size;
  for (const auto& outcome : run->outcomes) {
    const auto& spec = world.setup.requests[outcome.request];
    auto ids = spec.prompt;
    ids.insert(ids.end(), outcome.token_ids.begin(), outcome.token_ids.end());
    const auto logits = model::logits(*world.setup.model, ids);
    BOOST_REQUIRE(logits.has_value());
    BOOST_REQUIRE(told[outcome.request].size() == outcome.token_ids.size());
    for (std::size_t i = 0; i < outcome.token_ids.size(); ++i) {
      const auto row =
          std::span(*logits).subspan((spec.prompt.size() - 1 + i) * vocabulary, vocabulary);
      const auto expected = model::chances(row, outcome.token_ids[i], 3);
      const auto& found = told[outcome.request][i].logprobs;
      BOOST_REQUIRE(found.size() == expected.size());
      for (std::size_t j = 0; j < found.size(); ++j) {
        BOOST_TEST(found[j].id == expected[j].id);
        BOOST_TEST(found[j].logprob == expected[j].logprob);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_ran_is_told_token_by_token_and_adds_up) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"}) {
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy, strategy == "ordermoe" ? 20 : 0);
      world.add_requests(6, 8, 0);
      for (auto& spec : world.setup.requests) spec.tells_executions = true;
      world.setup.watcher.on_token = [&](const actors::answer_token& token) {
        BOOST_TEST_REQUIRE(token.executions.has_value());
        const auto& shape = world.setup.model->config();
        std::uint64_t sum = 0;
        for (const auto each : *token.executions) sum += each;
        // One slot of a layer runs at least.
        const auto most = shape.n_layers * shape.top_k;
        if (token.index > 0 && strategy != "ordermoe") BOOST_TEST(sum == most);
        if (token.index > 0) BOOST_TEST((sum >= shape.n_layers && sum <= most));
      };
      const auto run = actors::run_requests(world.setup);
      BOOST_REQUIRE(run.has_value());
      actors::execution_counts all{};
      for (const auto& outcome : run->outcomes) {
        BOOST_TEST_REQUIRE(outcome.executions.has_value());
        for (std::size_t i = 0; i < outcome.executions->size(); ++i)
          all[i] += static_cast<std::int64_t>((*outcome.executions)[i]);
      }
      // What was left out did not run, and is not told.
      constexpr auto left_out = static_cast<std::size_t>(serving::execution_kind::left_out);
      all[left_out] = run->executions[left_out];
      BOOST_TEST(all == run->executions, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_not_asked_for_is_not_told) {
  test::world world("paper");
  world.add_requests(3, 4, 0);
  world.setup.watcher.on_token = [&](const actors::answer_token& token) {
    BOOST_TEST(token.logprobs.empty());
    BOOST_TEST(!token.executions.has_value());
  };
  const auto run = actors::run_requests(world.setup);
  BOOST_REQUIRE(run.has_value());
  BOOST_TEST(!run->outcomes.front().executions.has_value());
}

BOOST_AUTO_TEST_CASE(choices_out_of_range_are_refused) {
  const auto refused = [](const std::string& why,
                          const std::function<void(sampling_choice&)>& change) {
    test::world world("exact");
    world.add_requests(2, 4, 0);
    change(world.setup.requests[1].choice);
    const auto run = actors::run_requests(world.setup);
    BOOST_REQUIRE(!run.has_value());
    BOOST_TEST((run.error().code == errc::out_of_range), run.error().message);
    BOOST_TEST(run.error().message.find(why) != std::string::npos,
               run.error().message << " does not say " << why);
  };
  refused("top_p 0,", [](auto& choice) { choice.top_p = 0; });
  refused("top_p 1.5,", [](auto& choice) { choice.top_p = 1.5; });
  refused("top_p nan,", [](auto& choice) { choice.top_p = std::nan(""); });
  refused("a penalty of nan", [](auto& choice) { choice.presence_penalty = std::nan(""); });
  refused("a penalty of 1000000000", [](auto& choice) { choice.frequency_penalty = 1e9; });
  refused("logprobs of 33 tokens", [](auto& choice) { choice.logprobs = 33; });
  refused("for token id -1,", [](auto& choice) { choice.bias = {{-1, 0.0f}}; });
  refused("for token id 1000000,", [](auto& choice) { choice.bias = {{1'000'000, 0.0f}}; });
  refused("for token id 1,", [](auto& choice) { choice.bias = {{2, 0.0f}, {1, 0.0f}}; });
  refused("a bias of 1", [](auto& choice) { choice.bias = {{1, 1e9f}}; });
  // Each of them would do by itself.
  refused("2000 biases, expected 1024 at most", [](auto& choice) {
    for (std::int32_t id = 0; id < 2000; ++id) choice.bias.emplace_back(id, 0.0f);
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
