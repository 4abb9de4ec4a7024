#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "actors/service/runtime.hpp"
#include "config/cluster.hpp"
#include "config/files.hpp"
#include "config/random.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/reference.hpp"
#include "planning/profile.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::test {

inline std::shared_ptr<const model::transformer> tiny_model() {
  static const auto loaded = [] {
    auto model = model::transformer::load(ORDERMOE_TEST_DATA "/mixtral-tiny");
    ORDERMOE_CHECK(model.has_value(), model ? "" : model.error().message);
    return *model;
  }();
  return loaded;
}

/// A small random model of the family, from a folder that is gone again. max_context: 0 for the family's own.
inline std::shared_ptr<const model::transformer> random_model(
    model::family kind, const model::load_options& loading = {}, std::uint64_t seed = 1,
    std::size_t max_context = 0) {
  std::string place = (std::filesystem::temp_directory_path() / "ordermoe-test-XXXXXX").string();
  ORDERMOE_CHECK(::mkdtemp(place.data()) != nullptr, "a temporary folder can be made");
  const auto tokenizer = read_file(ORDERMOE_TEST_DATA "/mixtral-tiny/tokenizer.model");
  ORDERMOE_CHECK(tokenizer.has_value(), "the tokenizer can be read");
  model::random_model_options options;
  options.shape = model::small_shape(kind);
  if (max_context > 0) options.shape.max_context = max_context;
  options.tokenizer = *tokenizer;
  options.seed = seed;
  const auto written = model::write_random_model(place, options);
  auto loaded = model::transformer::load(place, loading);
  std::filesystem::remove_all(place);
  ORDERMOE_CHECK(written && loaded, "a random model can be written and read");
  return *loaded;
}

/// Strategies that answer as the model alone does where nothing may be lost.
inline std::vector<std::string> exact_without_budget() {
  std::vector<std::string> names;
  for (const auto& record : planning::strategy_records())
    if (record.keeps_budgets) names.emplace_back(record.name);
  return names;
}

/// The place of a request among those of a run, which names it in outcomes.
inline std::uint64_t number_of(const actors::run_setup& setup, const actors::request_spec& spec) {
  return static_cast<std::uint64_t>(&spec - setup.requests.data());
}

/// A small world around the tiny model or another: a drawn cluster, a random profile of the right
/// shape, one strategy.
struct world {
  /// Of all servers' memory for experts to what the model's take: every server has room for any two plans together.
  static constexpr double roomy = 30;

  actors::run_setup setup;

  explicit world(const std::string& strategy, double quality_percent = 0, std::uint64_t seed = 1,
                 std::size_t n_servers = 5,
                 std::shared_ptr<const model::transformer> of = tiny_model(),
                 double memory_ratio = 2.5) {
    const auto& shape = of->config();
    draw_options draw;
    draw.n_servers = n_servers;
    draw.seed = seed;
    draw.n_layers = shape.n_layers;
    draw.n_experts = shape.n_experts;
    draw.memory_ratio = memory_ratio;
    draw.costs = *named_cost_profile("mixtral-8x7b");
    setup.model = of;
    setup.servers = draw_cluster(draw);
    setup.costs = draw.costs;
    setup.profile = planning::random_profile(shape.n_layers, shape.n_experts, shape.top_k, seed);
    planning::strategy_options options;
    options.quality_percent = quality_percent;
    options.search_steps = 500;
    auto made =
        planning::make_strategy(strategy, setup.profile, setup.servers, setup.costs, options);
    ORDERMOE_CHECK(made.has_value(), made ? "" : made.error().message);
    setup.chosen = std::move(*made);
    setup.keep_final_hidden = true;
    setup.seed = seed;
  }

  void add_requests(std::size_t n, std::uint32_t new_tokens, double temperature,
                    std::size_t prompt_tokens = 9) {
    const auto& shape = setup.model->config();
    random_stream draws(setup.seed, 77);
    for (std::size_t i = 0; i < n; ++i) {
      actors::request_spec spec;
      spec.max_new_tokens = new_tokens;
      spec.temperature = temperature;
      spec.sampling_seed = 5;
      const auto length = 1 + draws.below(prompt_tokens);
      for (std::size_t t = 0; t < length; ++t)
        spec.prompt.push_back(static_cast<std::int32_t>(draws.below(shape.vocab_size)));
      setup.requests.push_back(std::move(spec));
    }
    actors::draw_arrivals(setup.requests, setup.servers, 20, setup.seed);
  }
};

/// The bundled model on the bundled cluster with held-out prompts, budget zero.
inline world bundled_world(const std::string& name, const std::string& strategy,
                           std::size_t n_prompts, std::uint32_t new_tokens, double temperature) {
  world made(strategy);
  auto& setup = made.setup;
  const std::string folder = ORDERMOE_DATA "/models/" + name;
  const auto model = model::transformer::load(folder);
  const auto tokens = model::tokenizer::load(folder);
  const auto servers = read_cluster(ORDERMOE_DATA "/clusters/edge8.toml");
  const auto experts = planning::read_profile(folder + "/profile.json");
  ORDERMOE_CHECK(model && tokens && servers && experts,
                 "the bundled model, cluster and profile can be read");
  setup.model = *model;
  setup.servers = *servers;
  setup.profile = *experts;
  planning::strategy_options options;
  options.search_steps = 2000;
  auto chosen =
      planning::make_strategy(strategy, setup.profile, setup.servers, setup.costs, options);
  ORDERMOE_CHECK(chosen.has_value(), chosen ? "" : chosen.error().message);
  setup.chosen = std::move(*chosen);
  const auto text = read_file(ORDERMOE_DATA "/eval/held-out.txt");
  ORDERMOE_CHECK(text.has_value(), "the held-out text can be read");
  const auto ids = (*tokens)->encode(*text);
  constexpr std::size_t stride = 200, length = 40;
  ORDERMOE_CHECK(ids.size() >= n_prompts * stride, "the held-out text is long enough");
  for (std::size_t i = 0; i < n_prompts; ++i) {
    actors::request_spec spec;
    spec.prompt.assign(ids.begin() + static_cast<std::ptrdiff_t>(i * stride),
                       ids.begin() + static_cast<std::ptrdiff_t>(i * stride + length));
    spec.max_new_tokens = new_tokens;
    spec.temperature = temperature;
    spec.sampling_seed = 11;
    setup.requests.push_back(std::move(spec));
  }
  actors::draw_arrivals(setup.requests, setup.servers, 8, 1);
  return made;
}

}  // namespace ordermoe::test
