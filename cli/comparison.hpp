#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/common.hpp"

/// What `demo` and `testbed` share: the bundled prompts, texts and problems as one experiment.
namespace ordermoe::cli {

struct comparison_options {
  std::size_t requests = 48, scored_tokens = 10240, problems = 48, search_steps = 10000;
  std::uint32_t max_new_tokens = 48;
  double rate = 4, concurrency = 4;

  void add(CLI::App& command);
  /// How a strategy is planned for this load.
  planning::strategy_options planning(double quality_percent, std::uint64_t seed) const;
};

/// Prompts in words, besides the experiment that they are the requests of.
struct comparison {
  experiments::experiment content;
  std::vector<std::string> prompts;

  /// The servers to run on from now on, and the requests' arrivals there.
  void move_to(const cluster& servers, double rate, std::uint64_t seed);
};

/// The bundled prompts, held-out texts and problems, on the world's cluster.
result<comparison> make_comparison(const world& loaded, const comparison_options& options,
                                   std::uint64_t seed);

}  // namespace ordermoe::cli
