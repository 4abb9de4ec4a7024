#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/experiments/increase.hpp"
#include "config/error.hpp"

/// What `testbed frontier` keeps of each strategy on each cluster: the numbers of its table, and the
/// file from which an interrupted run goes on.
namespace ordermoe::cli {

/// One strategy on one cluster.
struct measurement {
  std::uint64_t seed = 0;  ///< Of the cluster.
  std::string row;         ///< "ordermoe 1 %"
  /// No plan fits there: nothing else holds a value.
  bool infeasible = false;
  double latency_ms = 0, tpot_ms = 0, ttft_ms = 0;  ///< Means over the requests.
  double megabytes = 0;                             ///< Charged, for 1,000 tokens.
  double perplexity = 0;
  std::optional<experiments::paired_increase>
      increase;  ///< Over the model alone; empty where the row is infeasible.
  std::optional<double> exact_match, budget_spent_ratio;
  std::string whole_model;  ///< Precision that the planner gave all experts.
  /// Of the budget, where the planner chose to leave experts out for everybody.
  std::optional<double> pruned_percent;
  double plan_estimate_ms = 0;  ///< The planner's own estimate of one decoded token.
  friend bool operator==(const measurement&, const measurement&) = default;
};

/// Everything that a measurement depends on besides cluster and row, by name.
using frontier_settings = nlohmann::ordered_json;

std::string frontier_text(const frontier_settings& settings, const std::vector<measurement>& all);

/// The measurements of a file that was written with these settings; none where there is no file.
/// Errors: io, malformed; mismatch where a setting differs, which names it and both values.
result<std::vector<measurement>> read_frontier(const std::filesystem::path& file,
                                               const frontier_settings& settings);

}  // namespace ordermoe::cli
