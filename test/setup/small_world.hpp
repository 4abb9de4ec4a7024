#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "setup/world.hpp"
#include "test/actors/fixture.hpp"

namespace ordermoe::test {

/// Four servers, a tiny model, and so many random tuning texts of so many tokens.
inline setup::world small_world(std::shared_ptr<const model::transformer> model,
                                std::size_t n_texts, std::size_t n_tokens) {
  const world small("ordermoe", 0, 1, 4, std::move(model));
  setup::world made;
  made.model_name = "tiny";
  made.model_digest = std::string(64, 'a');
  made.model = small.setup.model;
  made.costs = small.setup.costs;
  made.servers = small.setup.servers;
  made.profile = small.setup.profile;
  random_stream draws(9);
  made.tuning_texts.resize(n_texts);
  for (auto& text : made.tuning_texts)
    for (std::size_t i = 0; i < n_tokens; ++i)
      text.push_back(static_cast<std::int32_t>(draws.below(made.model->config().vocab_size)));
  return made;
}

}  // namespace ordermoe::test
