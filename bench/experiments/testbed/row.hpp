#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/experiments/testbed/point.hpp"

/// What was measured at one point.
namespace ordermoe::experiments::testbed {

/// In the order of the columns; docs/REPORT.md says what each is.
enum class metric : std::size_t {
  latency_ms,
  latency_p95_ms,
  ttft_ms,
  tpot_ms,
  network_ms,
  compute_ms,
  waiting_ms,
  throughput_tokens_per_s,
  traffic_mb_per_1k,
  hidden_mb_per_1k,
  kv_mb_per_1k,
  local_exact,
  local_substitute,
  remote_exact,
  remote_substitute,
  left_out,
  perplexity,
  increase_percent,
  increase_low,
  increase_high,
  exact_match,
  budget_spent,
  coverage,
  within_sla,
  busiest_server,
  plan_estimate_ms,
  saturating_rate
};
inline constexpr std::size_t n_metrics = static_cast<std::size_t>(metric::saturating_rate) + 1;
/// As columns are called.
const char* name_of(metric which);
/// As tables and axes have it: "mean latency, ms".
const char* title_of(metric which);
/// Whether less of it is better.
bool is_less_better(metric which);

/// A plan that is no rival's, in `form`.
inline constexpr const char* own_form = "own";
/// Chains without the experts that are missed least, which are beside them on other servers (place_around_core), in `form`.
inline constexpr const char* core_form = "core";
/// A plan that prunes for everybody, in `form`.
inline constexpr const char* pruned_form = "static-pruning";

struct row {
  point what;
  bool is_infeasible = false;  ///< No plan fits there: nothing holds a value, and `note` says why.
  std::string note;
  /// Of a strategy that may take a rival's plan: that rival's name, or `own`. Empty: of the others.
  std::string form = {};
  std::array<std::optional<double>, n_metrics> values{};

  std::optional<double>& operator[](metric which) {
    return values[static_cast<std::size_t>(which)];
  }
  const std::optional<double>& operator[](metric which) const {
    return values[static_cast<std::size_t>(which)];
  }
  friend bool operator==(const row&, const row&) = default;
};

/// Every column of a file: `settings`, those of a point, `status`, the metrics, `form`, `note`.
std::vector<std::string> row_columns();
/// A line without its end. Values have six significant digits.
std::string row_line(const row& content, const std::string& settings);
/// The row as its line reads back: what tables are made of does not depend on whether a run was interrupted.
row as_read_back(const row& content);

/// One line as cells; quotes as in RFC 4180. Error: malformed.
result<std::vector<std::string>> csv_cells(const std::string& line);
/// The opposite of row_line. Error: malformed, naming the column; mismatch where the line has other settings.
result<row> row_of(const std::string& line, const std::string& settings);

}  // namespace ordermoe::experiments::testbed
