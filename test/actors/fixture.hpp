#pragma once

#include <memory>
#include <string>
#include <vector>

#include "actors/runtime.hpp"
#include "config/cluster.hpp"
#include "config/random.hpp"
#include "model/reference.hpp"
#include "planning/profile.hpp"

namespace ordermoe::test {

inline std::shared_ptr<const model::transformer> tiny_model() {
  static const auto loaded = [] {
    auto model = model::transformer::load(ORDERMOE_TEST_DATA "/mixtral-tiny");
    ORDERMOE_CHECK(model.has_value(), model ? "" : model.error().message);
    return *model;
  }();
  return loaded;
}

/// A small world around the tiny model: a drawn cluster, a random profile of the right shape, one strategy.
struct world {
  actors::run_setup setup;

  explicit world(const std::string& strategy, double quality_percent = 0, std::uint64_t seed = 1,
                 std::size_t n_servers = 5) {
    const auto& shape = tiny_model()->config();
    draw_options draw;
    draw.n_servers = n_servers;
    draw.seed = seed;
    draw.n_layers = shape.n_layers;
    draw.n_experts = shape.n_experts;
    draw.memory_ratio = 2.5;
    draw.costs = *named_cost_profile("mixtral-8x7b");
    setup.model = tiny_model();
    setup.servers = draw_cluster(draw);
    setup.costs = draw.costs;
    setup.experts = planning::random_profile(shape.n_layers, shape.n_experts, shape.top_k, seed);
    actors::strategy_options options;
    options.quality_percent = quality_percent;
    options.search_steps = 500;
    auto made = actors::make_strategy(strategy, setup.experts, setup.servers, setup.costs, options);
    ORDERMOE_CHECK(made.has_value(), made ? "" : made.error().message);
    setup.chosen = std::move(*made);
    setup.keep_final_hidden = true;
    setup.seed = seed;
  }

  void add_requests(std::size_t n, std::uint32_t new_tokens, double temperature, std::size_t prompt_tokens = 9) {
    const auto& shape = tiny_model()->config();
    random_stream draws(setup.seed, 77);
    for (std::size_t i = 0; i < n; ++i) {
      actors::request_spec spec;
      spec.number = i;
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

}  // namespace ordermoe::test
