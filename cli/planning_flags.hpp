#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/ablation.hpp"
#include "cli/common.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"

/// What `plan` and `run` are told about planning, so that both make the same plan of it.
namespace ordermoe::cli {

/// --trial-requests, of commands that choose between plans.
CLI::Option* add_trial_requests(CLI::App& command, std::size_t& requests);

struct planning_flags {
  std::string strategy, quality, residency;  ///< Empty: not given.
  std::size_t search_steps = planning::strategy_options{}.search_steps;
  std::size_t trial_requests = planning::strategy_options{}.dry_run_requests;
  std::optional<std::size_t> horizon;
  ablation_flags ablation;
  double rate = 0;

  void add(CLI::App& command);
  /// What they ask for, of a plan that is given where there is one. Errors: usage for options that
  /// contradict each other.
  result<setup::preparation_request> request(const world_flags& world, double concurrency,
                                             const std::optional<setup::plan_file>& given) const;
};

/// Whether the strategy, which is a known one, has what the request asks of it. Error: usage.
result<void> check_strategy(const setup::preparation_request& request);

/// The world that is planned for; it must be what a given plan was made for.
result<setup::world> load_world(const world_flags& flags,
                                const std::optional<setup::plan_file>& given,
                                const setup::preparation_request& request);

/// The same for commands that only plan: where the model need not be executed, no expert is loaded, and strategies that
/// never substitute do without a profile. `elsewhere` runs the experts where it is given.
result<setup::world> load_world_to_plan(const world_flags& flags,
                                        const std::optional<setup::plan_file>& given,
                                        const setup::preparation_request& request,
                                        std::shared_ptr<const model::expert_source> elsewhere = {});

}  // namespace ordermoe::cli
