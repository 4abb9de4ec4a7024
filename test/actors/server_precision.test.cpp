#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "test/actors/fixture.hpp"
#include "trace/verify.hpp"

/// Servers that keep experts coarser than the model, and servers that loaded only their own.
namespace ordermoe {

namespace {

planning::placed_expert placed(std::size_t server, std::size_t layer, std::size_t expert) {
  return {server_id{server}, layer_id{layer}, expert_id{expert}};
}

/// Every server hosts every expert, the first as the model has it, the others as `kept`.
test::world coarse_world(precision kept, double quality_percent) {
  const auto kind = model::family::mixtral;
  test::world world("ordermoe", quality_percent, 1, 4, test::random_model(kind));
  auto& setup = world.setup;
  model::load_options loading;
  loading.expert_precision = kept;
  setup.coarser[kept] = test::random_model(kind, loading);
  for (auto& layer : setup.profile.layers)
    layer.copies = {{kept, std::vector<double>(setup.profile.n_experts, 0.05), 0.1, 0.01}};
  // Nothing is near and everything fits, so that each token stays with its user's server.
  for (auto& server : setup.servers.servers) server.memory_bytes += std::int64_t{1} << 40;
  for (auto& link : setup.servers.links) link.latency_ns *= 100;
  setup.chosen.policy.horizon = 1;
  auto& plan = setup.chosen.plan;
  plan.expert_precision.assign(plan.n_servers, kept);
  plan.expert_precision[0] = precision::stored;
  plan.experts.clear();
  for (std::size_t m = 0; m < plan.n_servers; ++m)
    for (std::size_t l = 0; l < plan.n_layers; ++l)
      for (std::size_t e = 0; e < plan.n_experts; ++e) plan.experts.push_back(placed(m, l, e));
  plan.residence = planning::access_residency(plan.n_servers, plan.n_layers);
  const auto servers = planning::with_precisions(setup.servers, plan);
  for (std::size_t m = 0; m < plan.n_servers; ++m) {
    const auto n = static_cast<std::int64_t>(plan.n_layers * plan.n_experts);
    plan.expert_bytes_used[m] = n * expert_bytes(servers.servers[m], setup.costs);
    plan.expert_bytes_limit[m] =
        expert_memory_bytes(servers.servers[m], setup.costs, plan.n_layers);
  }
  world.add_requests(8, 8, 0.7);
  return world;
}

std::vector<std::int32_t> reference(const actors::run_setup& setup, const model::transformer& model,
                                    const actors::request_spec& spec) {
  model::generation_options options;
  options.max_new_tokens = spec.max_new_tokens;
  options.sampling = {spec.temperature, spec.sampling_seed};
  options.request = test::number_of(setup, spec);
  const auto answer = model::generate(model, nullptr, spec.prompt, options);
  BOOST_REQUIRE(answer.has_value());
  return answer->token_ids;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(server_precision)

BOOST_AUTO_TEST_CASE(a_server_that_may_substitute_answers_as_the_model_in_its_own_precision) {
  for (const auto kept : {precision::int8, precision::int4})
    for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
      auto world = coarse_world(kept, -1);
      world.setup.mode = mode;
      world.setup.chosen.policy.may_leave_out = false;  // As the reference does not.
      const auto outcome = actors::run_requests(world.setup);
      BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
      std::size_t n_coarse = 0;
      for (const auto& spec : world.setup.requests) {
        const bool coarse = spec.access != 0;
        n_coarse += coarse ? 1 : 0;
        const auto& model = coarse ? *world.setup.coarser[kept] : *world.setup.model;
        BOOST_TEST(outcome->outcomes[test::number_of(world.setup, spec)].token_ids ==
                       reference(world.setup, model, spec),
                   boost::test_tools::per_element());
      }
      BOOST_TEST(n_coarse > 0u);
      // A coarser copy of the target counts as a substitute.
      BOOST_TEST(outcome->executions[1] > 0);
    }
}

BOOST_AUTO_TEST_CASE(without_a_budget_no_coarser_copy_runs) {
  const auto world = coarse_world(precision::int4, 0);
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  for (const auto& spec : world.setup.requests)
    BOOST_TEST(outcome->outcomes[test::number_of(world.setup, spec)].token_ids ==
                   reference(world.setup, *world.setup.model, spec),
               boost::test_tools::per_element());
  BOOST_TEST(outcome->executions[1] + outcome->executions[3] == 0);
}

BOOST_AUTO_TEST_CASE(traces_with_coarser_copies_hold) {
  for (const double percent : {0.0, 0.05, 5.0, -1.0}) {
    auto world = coarse_world(precision::int4, percent);
    const auto path = std::filesystem::temp_directory_path() /
                      ("ordermoe-precision-" + std::to_string(::getpid()) + ".jsonl");
    world.setup.trace = path;
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
    const auto checked = trace::verify_trace(path);
    std::filesystem::remove(path);
    BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
  }
}

BOOST_AUTO_TEST_CASE(a_precision_that_nobody_loaded_is_refused) {
  auto world = coarse_world(precision::int4, 0);
  world.setup.coarser.clear();
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST(outcome.error().message.find("int4") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(servers_with_weights_of_their_own_answer_as_the_reference) {
  const auto kind = model::family::qwen2_moe;
  for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
    test::world world("exact", 0, 1, 5, test::random_model(kind));
    auto& setup = world.setup;
    setup.mode = mode;
    const planning::placement_index index(setup.chosen.plan);
    for (std::size_t m = 0; m < setup.servers.size(); ++m) {
      model::load_options loading;
      loading.hosts = [&](layer_id layer, expert_id expert) {
        return index.hosts(m, layer.index(), expert.index());
      };
      setup.server_models.push_back(test::random_model(kind, loading));
      BOOST_TEST(setup.server_models.back()->resident_bytes() < setup.model->resident_bytes());
    }
    world.add_requests(8, 8, 0.7);
    const auto outcome = actors::run_requests(setup);
    BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
    for (const auto& spec : setup.requests)
      BOOST_TEST(outcome->outcomes[test::number_of(world.setup, spec)].token_ids ==
                     reference(setup, *setup.model, spec),
                 boost::test_tools::per_element());

    // A plan that places more than was loaded.
    for (std::size_t m = 0; m < setup.servers.size(); ++m)
      for (std::size_t e = 0; e < setup.profile.n_experts; ++e)
        if (!index.hosts(m, 0, e)) setup.chosen.plan.experts.push_back(placed(m, 0, e));
    const auto refused = actors::run_requests(setup);
    BOOST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code == errc::mismatch));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
