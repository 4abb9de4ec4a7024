#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/common.hpp"
#include "planning/strategies/strategies.hpp"

namespace ordermoe::cli {

/// `plan gap`: how far plans are from the best placement. Below `plan`, which then plans nothing.
struct plan_gap_options {
  CLI::App* command = nullptr;
  world_flags world;
  std::vector<std::string> strategies, plans;
  std::string residence = "free";
  std::size_t sets = 0, columns = 200'000, nodes = 1'000'000;
  std::size_t search_steps = planning::strategy_options{}.search_steps;
  double seconds = 60;

  void add(CLI::App& parent);
  bool is_chosen() const { return command->parsed(); }
};

/// Error: usage where `plan` was given options, too; those of planning::optimal_placement.
result<void> print_plan_gaps(const plan_gap_options& options);

}  // namespace ordermoe::cli
