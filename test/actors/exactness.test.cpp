#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <utility>

#include "test/actors/fixture.hpp"

namespace ordermoe {

namespace {

void check_equals_reference(const test::world& world) {
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  BOOST_REQUIRE_EQUAL(outcome->outcomes.size(), world.setup.requests.size());
  for (const auto& spec : world.setup.requests) {
    model::generation_options options;
    options.max_new_tokens = spec.max_new_tokens;
    options.sampling = {spec.temperature, spec.sampling_seed};
    options.request = test::number_of(world.setup, spec);
    const auto expected = model::generate(*world.setup.model, nullptr, spec.prompt, options);
    BOOST_REQUIRE(expected.has_value());
    const auto& answer = outcome->outcomes[test::number_of(world.setup, spec)];
    BOOST_TEST(answer.token_ids == expected->token_ids, boost::test_tools::per_element());
    BOOST_TEST(answer.final_hidden == expected->final_hidden);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(exactness)

BOOST_AUTO_TEST_CASE(emulated_exact_strategies_equal_the_reference_bit_for_bit) {
  for (const auto& strategy : test::exact_without_budget())
    for (const double temperature : {0.0, 1.0}) {
      BOOST_TEST_CONTEXT(strategy << " at temperature " << temperature) {
        test::world world(strategy);
        world.add_requests(12, 10, temperature);
        check_equals_reference(world);
      }
    }
}

BOOST_AUTO_TEST_CASE(local_exact_strategies_equal_the_reference_bit_for_bit) {
  for (const auto& strategy : test::exact_without_budget()) {
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy);
      world.setup.mode = actors::run_mode::local;
      world.add_requests(12, 10, 0.8);
      // Only virtual time tells the memories of hosts and servers apart.
      if (world.setup.chosen.plan.offloads()) continue;
      check_equals_reference(world);
    }
  }
}

BOOST_AUTO_TEST_CASE(
    what_nobody_reads_of_a_prompt_runs_no_expert_of_the_last_layer_but_where_it_is_traced) {
  const auto slots_of = [](bool traced) {
    test::world world("ordermoe");
    world.setup.mode = actors::run_mode::local;
    world.setup.chunk_rows = 4;
    world.add_requests(3, 10, 0.8);
    if (traced)
      world.setup.trace = std::filesystem::temp_directory_path() /
                          fmt::format("ordermoe-unread-{}.jsonl", ::getpid());
    check_equals_reference(world);
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE(outcome.has_value());
    if (traced) std::filesystem::remove(world.setup.trace);
    std::uint64_t slots = 0, unread = 0;
    for (const auto count : outcome->executions) slots += count;
    for (const auto& spec : world.setup.requests) unread += spec.prompt.size() - 1;
    return std::pair(slots, unread * world.setup.model->config().top_k);
  };
  const auto [all, unread] = slots_of(true);
  BOOST_TEST(unread > 0);
  BOOST_TEST(slots_of(false).first == all - unread);
}

BOOST_AUTO_TEST_CASE(experts_in_the_memory_of_hosts_are_emulated_alone) {
  test::world world("offload");
  BOOST_REQUIRE(world.setup.chosen.plan.offloads());
  world.add_requests(2, 10, 0.8);
  world.setup.mode = actors::run_mode::local;
  const auto refused = actors::run_requests(world.setup);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::unsupported), refused.error().message);
}

BOOST_AUTO_TEST_CASE(what_is_read_from_the_memory_of_hosts_takes_as_long_as_that_is_slow) {
  const auto done_ns = [](double bytes_per_s) {
    test::world world("offload");
    for (auto& server : world.setup.servers.servers)
      server.host_bandwidth_bytes_per_s = bytes_per_s;
    world.add_requests(1, 10, 0);
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
    return outcome->outcomes.front().done_ns;
  };
  const auto fast = done_ns(1e9), slow = done_ns(5e8), slower = done_ns(2.5e8);
  BOOST_TEST(slow > fast);
  // Half the rate: what the reads take doubles, and nothing else does.
  BOOST_TEST(std::abs((slower - slow) - 2 * (slow - fast)) < (slow - fast) / 50);
}

BOOST_AUTO_TEST_CASE(every_family_equals_the_reference_bit_for_bit) {
  for (const auto kind :
       {model::family::mixtral, model::family::qwen2_moe, model::family::qwen3_moe,
        model::family::olmoe, model::family::switch_transformers})
    for (const std::string strategy : {"exact", "layer-shards"}) {
      BOOST_TEST_CONTEXT(model::to_string(kind) << ", " << strategy) {
        test::world world(strategy, 0, 1, 5, test::random_model(kind));
        world.setup.chunk_rows = 4;
        world.add_requests(8, 8, 0.7);
        check_equals_reference(world);
        world.setup.mode = actors::run_mode::local;
        check_equals_reference(world);
      }
    }
}

BOOST_AUTO_TEST_CASE(every_family_equals_the_reference_in_every_precision) {
  for (const auto kind :
       {model::family::mixtral, model::family::qwen2_moe, model::family::qwen3_moe,
        model::family::olmoe, model::family::switch_transformers})
    for (const auto kept : {precision::stored, precision::int8, precision::int4})
      for (const auto kv : {model::kv_precision::fp32, model::kv_precision::bf16})
        BOOST_TEST_CONTEXT(model::to_string(kind)
                           << ", experts " << to_string(kept)
                           << (kv == model::kv_precision::bf16 ? ", bf16 keys and values" : "")) {
          model::load_options loading;
          loading.expert_precision = kept;
          loading.kv = kv;
          test::world world("exact", 0, 1, 5, test::random_model(kind, loading));
          // Rows are streamed between the members of every residence.
          world.setup.chosen.plan.residence =
              planning::roaming_residency(world.setup.servers.size(), world.setup.profile.n_layers);
          world.setup.chunk_rows = 4;
          world.add_requests(6, 6, 0.7);
          check_equals_reference(world);
          world.setup.mode = actors::run_mode::local;
          check_equals_reference(world);
        }
}

BOOST_AUTO_TEST_CASE(an_encoder_decoder_equals_the_reference_wherever_its_rows_may_be) {
  // Prompts and answers beyond the experts' capacity, residences that roam, positions that start at
  // the access server.
  const auto model = test::random_model(model::family::switch_transformers);
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"})
    for (const bool in_place : {true, false})
      for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
        BOOST_TEST_CONTEXT(strategy << ", " << to_string(mode)) {
          test::world world(strategy, 0, 3, 5, model);
          world.setup.mode = mode;
          world.setup.chosen.continue_in_place = in_place;
          if (strategy == "exact")
            world.setup.chosen.plan.residence = planning::roaming_residency(
                world.setup.servers.size(), world.setup.profile.n_layers);
          world.add_requests(10, 20, 0.8, 40);
          check_equals_reference(world);
        }
      }
}

BOOST_AUTO_TEST_CASE(layers_with_dense_blocks_equal_the_reference_bit_for_bit) {
  for (const std::string name : {"qwen2-moe-mixed", "qwen3-moe-top8"}) {
    const auto loaded = model::transformer::load(std::string(ORDERMOE_TEST_DATA "/golden/") + name);
    BOOST_REQUIRE(loaded.has_value());
    for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
      BOOST_TEST_CONTEXT(name << ", " << to_string(mode)) {
        test::world world("exact", 0, 1, 5, *loaded);
        world.setup.chosen.plan.residence =
            planning::roaming_residency(world.setup.servers.size(), world.setup.profile.n_layers);
        world.setup.mode = mode;
        world.setup.chunk_rows = 4;
        world.add_requests(8, 8, 0.7);
        check_equals_reference(world);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(teacher_forced_losses_of_an_encoder_decoder_equal_the_reference) {
  const auto model = test::random_model(model::family::switch_transformers);
  for (const bool in_place : {true, false}) {
    test::world world("layer-shards", 0, 1, 5, model);
    world.setup.chosen.continue_in_place = in_place;
    world.add_requests(6, 1, 0, 40);
    for (auto& spec : world.setup.requests) {
      spec.score = true;
      spec.prompt.push_back(3);
    }
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
    for (const auto& spec : world.setup.requests) {
      const auto expected = model::token_losses(*model, spec.prompt);
      BOOST_REQUIRE(expected.has_value());
      BOOST_TEST(outcome->outcomes[test::number_of(world.setup, spec)].losses == *expected,
                 boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(an_encoder_decoder_is_not_traced) {
  test::world world("exact", 0, 1, 5, test::random_model(model::family::switch_transformers));
  world.setup.trace = "trace.jsonl";
  world.add_requests(1, 2, 0);
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::unsupported));
  BOOST_TEST(outcome.error().message.find("trace") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(fifty_held_out_prompts_on_the_bundled_model_and_cluster_equal_the_reference) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"})
    for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local})
      for (const double temperature : {0.0, 0.9}) {
        BOOST_TEST_CONTEXT(strategy << ", " << to_string(mode) << " at temperature "
                                    << temperature) {
          auto world = test::bundled_world("lineage", strategy, 50, 64, temperature);
          world.setup.mode = mode;
          world.setup.threads_per_server = 2;
          check_equals_reference(world);
        }
      }
}

BOOST_AUTO_TEST_CASE(chunked_prompts_equal_the_reference_bit_for_bit) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"}) {
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy, 0, 3);
      world.setup.chosen.plan.residence =
          strategy == "exact" ? planning::roaming_residency(world.setup.servers.size(),
                                                            world.setup.profile.n_layers)
                              : world.setup.chosen.plan.residence;
      world.setup.chunk_rows = 4;
      world.add_requests(10, 12, 0.7, 30);
      check_equals_reference(world);
    }
  }
}

BOOST_AUTO_TEST_CASE(teacher_forced_losses_of_an_exact_strategy_equal_the_reference_to_the_bit) {
  test::world world("layer-shards");
  world.add_requests(6, 1, 0, 40);
  for (auto& spec : world.setup.requests) {
    spec.score = true;
    spec.prompt.push_back(3);
  }
  world.setup.chunk_rows = 7;
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(outcome.has_value());
  for (const auto& spec : world.setup.requests) {
    const auto expected = model::token_losses(*world.setup.model, spec.prompt);
    BOOST_REQUIRE(expected.has_value());
    BOOST_TEST(outcome->outcomes[test::number_of(world.setup, spec)].losses == *expected,
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(what_is_scored_behind_a_prompt_has_the_losses_that_it_has_from_the_beginning) {
  for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
    test::world world("layer-shards");
    world.setup.mode = mode;
    world.add_requests(6, 1, 0, 40);
    std::uint32_t after = 1;
    for (auto& spec : world.setup.requests) {
      spec.score = true;
      spec.prompt.push_back(3);
      // One chunk, several, and all but the last token.
      spec.scored_after =
          std::min<std::uint32_t>(after, static_cast<std::uint32_t>(spec.prompt.size()) - 1);
      after += 6;
    }
    world.setup.chunk_rows = 7;
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
    for (const auto& spec : world.setup.requests) {
      auto expected = model::token_losses(*world.setup.model, spec.prompt);
      BOOST_REQUIRE(expected.has_value());
      expected->erase(expected->begin(), expected->begin() + spec.scored_after - 1);
      const auto& answered = outcome->outcomes[test::number_of(world.setup, spec)];
      BOOST_TEST(answered.finish == "scored");
      BOOST_TEST(answered.losses == *expected, boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
