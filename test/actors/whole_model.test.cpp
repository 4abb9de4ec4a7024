#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>

#include "config/precision.hpp"
#include "setup/preparation.hpp"
#include "test/actors/fixture.hpp"
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

test::world world_with(std::shared_ptr<const model::transformer> coarse) {
  test::world world("ordermoe", 0, 1, 4, test::random_model(kind));
  world.setup.coarser[precision::int4] = std::move(coarse);
  world.setup.keep_final_hidden = false;
  world.add_requests(4, 6, 0.7);
  return world;
}

planning::strategy_options choosing(double quality_percent) {
  planning::strategy_options options;
  options.quality_percent = quality_percent;
  options.choose_precision = true;
  options.search_steps = 200;
  options.dry_run_requests = 8;
  return options;
}

std::vector<std::vector<std::int32_t>> texts(const model::transformer& model) {
  random_stream draws(9);
  std::vector<std::vector<std::int32_t>> made(8);
  for (auto& text : made)
    for (int i = 0; i < 24; ++i)
      text.push_back(static_cast<std::int32_t>(draws.below(model.config().vocab_size)));
  return made;
}

result<void> prepare(actors::run_setup& setup, const planning::strategy_options& options) {
  return setup::prepare_strategy(setup, "ordermoe", options, texts(*setup.model));
}

constexpr double much = 20, nats_of_much = 0.1823215567939546;  // per cent, log(1.2)

}  // namespace

BOOST_AUTO_TEST_SUITE(whole_model)

BOOST_AUTO_TEST_CASE(its_measured_damage_is_taken_of_the_budget_and_the_rest_keeps_the_ledger) {
  auto world = world_with(coarse_model());
  auto& setup = world.setup;
  const auto charged = setup.costs.expert_bytes;
  const auto coarse = setup.coarser[precision::int4];
  BOOST_REQUIRE(prepare(setup, choosing(much)).has_value());
  const auto& chosen = setup.chosen;
  BOOST_REQUIRE((chosen.whole_model == precision::int4));
  BOOST_TEST((setup.model == coarse));
  BOOST_TEST(setup.coarser.empty());
  BOOST_TEST(setup.costs.expert_bytes < charged);
  BOOST_TEST(setup.quality_percent == much);
  BOOST_TEST(chosen.whole_model_nats >= 0);
  BOOST_TEST(static_cast<double>(chosen.token_budget) / planning::units_per_loss +
                 chosen.whole_model_nats <=
             nats_of_much + 1e-9);
  BOOST_TEST(chosen.token_budget > 0);

  const auto path = std::filesystem::temp_directory_path() /
                    ("ordermoe-whole-" + std::to_string(::getpid()) + ".jsonl");
  setup.trace = path;
  const auto outcome = actors::run_requests(setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  const auto checked = trace::verify_trace(path);
  std::filesystem::remove(path);
  BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
}

BOOST_AUTO_TEST_CASE(a_model_whose_damage_the_budget_does_not_cover_is_left_as_stored) {
  auto world = world_with(other_model());
  auto& setup = world.setup;
  const auto stored = setup.model;
  BOOST_REQUIRE(prepare(setup, choosing(0.001)).has_value());
  BOOST_TEST((setup.chosen.whole_model == precision::stored));
  BOOST_TEST((setup.model == stored));
}

BOOST_AUTO_TEST_CASE(
    it_is_not_tried_without_a_budget_with_servers_precisions_or_plans_that_change) {
  for (int why = 0; why < 4; ++why) {
    auto world = world_with(coarse_model());
    auto& setup = world.setup;
    auto options = choosing(why == 0 ? 0 : much);
    if (why == 1) setup.servers.servers[0].expert_precision = precision::int4;
    if (why == 2) setup.replans.push_back({1'000'000, "exact", {}});
    if (why == 3) options.choose_precision = false;
    const auto stored = setup.model;
    // Where servers have precisions of their own the profile has to say what those cost.
    for (auto& layer : setup.profile.layers)
      layer.copies = {
          {precision::int4, std::vector<double>(setup.profile.n_experts, 0.05), 0.1, 0.01}};
    const auto done = prepare(setup, options);
    BOOST_REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message));
    BOOST_TEST((setup.chosen.whole_model == precision::stored));
    BOOST_TEST((setup.model == stored));
  }
}

BOOST_AUTO_TEST_CASE(a_model_that_fits_only_coarser_is_planned_so_where_the_budget_covers_it) {
  auto world = world_with(coarse_model());
  auto& setup = world.setup;
  const auto n = static_cast<std::int64_t>(setup.profile.n_layers * setup.profile.n_experts);
  std::int64_t room = 0;
  for (const auto& server : setup.servers.servers)
    room += expert_memory_bytes(server, setup.costs, setup.profile.n_layers);
  // Half of what one copy of the experts takes as stored.
  const auto too_much =
      (room - n * setup.costs.expert_bytes / 2) / static_cast<std::int64_t>(setup.servers.size());
  for (auto& server : setup.servers.servers) server.memory_bytes -= too_much;
  auto unaffordable = setup;
  const auto done = prepare(setup, choosing(much));
  BOOST_REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message));
  BOOST_TEST((setup.chosen.whole_model == precision::int4));

  unaffordable.coarser[precision::int4] = other_model();
  const auto refused = prepare(unaffordable, choosing(0.001));
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::infeasible));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
