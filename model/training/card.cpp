#include "model/training/card.hpp"

#include <cmath>

#include <fmt/format.h>

namespace ordermoe::training {

std::string card_text(const train_options& options, const train_report& report) {
  std::string card = fmt::format("# {}\n\n", report.recipe);
  card += fmt::format("A decoder of Mixtral's architecture: {} layers, hidden {}, {} experts of width {}, top-{}, context {}.\n\n", options.n_layers, options.hidden_size,
                      options.recipe == "dense" ? 1 : options.n_experts, options.intermediate_size, options.recipe == "dense" ? 1 : options.top_k, options.max_context);
  card += fmt::format("Held-out perplexity: {:.4f}\n\nTokens: {}, seconds: {:.0f}, seed {}\n", report.held_out_perplexity, report.tokens, report.seconds, options.seed);
  return card;
}

}  // namespace ordermoe::training
