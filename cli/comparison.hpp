#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/experiments/workloads.hpp"
#include "cli/ablation.hpp"
#include "cli/common.hpp"
#include "setup/preparation.hpp"

/// What `demo` and `testbed` share: strategies measured on the bundled prompts, texts and problems.
namespace ordermoe::cli {

struct comparison_options {
  std::size_t requests = 48, scored_tokens = 10240, problems = 48;
  std::size_t search_steps = planning::strategy_options{}.search_steps;
  std::size_t trial_requests = planning::strategy_options{}.dry_run_requests;
  std::uint32_t max_new_tokens = 48;
  double rate = 4, concurrency = 4;
  bool concurrency_by_trial = false;
  bool equal_lengths = false;  ///< Answers go on behind an end of text.
  ablation_flags ablation;     ///< Of the strategies that have these parts.

  void add(CLI::App& command);
};

/// The bundled load, for a world's model.
struct bundled_load {
  std::vector<std::string> prompts;  ///< In words; the requests take turns with them.
  std::vector<experiments::workload> workloads;
  std::size_t n_problems = 0;
};
result<bundled_load> make_load(const setup::world& loaded, const comparison_options& options);

/// Prepares a strategy for such a load in that world, and measures it. `choices`: what the planner may choose, of which a strategy gets
/// what it can choose.
result<experiments::strategy_report> measure_strategy(const setup::world& loaded,
                                                      const bundled_load& load,
                                                      const comparison_options& options,
                                                      const std::string& strategy,
                                                      double quality_percent, std::uint64_t seed,
                                                      const world_flags& choices = {});

}  // namespace ordermoe::cli
