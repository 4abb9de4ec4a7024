#include "bench/experiments/testbed/row.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace ordermoe::experiments::testbed {

namespace {

struct metric_text {
  const char* name;
  const char* title;
  bool is_less_better;
};

constexpr std::array<metric_text, n_metrics> metric_texts{{
    {"latency_ms", "mean latency, ms", true},
    {"latency_p95_ms", "95th percentile of latency, ms", true},
    {"ttft_ms", "time to first token, ms", true},
    {"tpot_ms", "time per further token, ms", true},
    {"network_ms", "network per decoded token, ms", true},
    {"compute_ms", "compute per decoded token, ms", true},
    {"waiting_ms", "waiting per decoded token, ms", true},
    {"throughput_tokens_per_s", "throughput, tokens/s", false},
    {"traffic_mb_per_1k", "traffic, MB per 1,000 tokens", true},
    {"hidden_mb_per_1k", "hidden states, MB per 1,000 tokens", true},
    {"kv_mb_per_1k", "KV rows, MB per 1,000 tokens", true},
    {"local_exact", "local, exact", false},
    {"local_substitute", "local, substitute", false},
    {"remote_exact", "remote, exact", true},
    {"remote_substitute", "remote, substitute", true},
    {"left_out", "left out", true},
    {"perplexity", "perplexity", true},
    {"increase_percent", "perplexity above the model's own, %", true},
    {"increase_low", "the same, low end of the 95 % interval", true},
    {"increase_high", "the same, high end of the 95 % interval", true},
    {"exact_match", "exact match", false},
    {"budget_spent", "share of the budget spent", true},
    {"coverage", "local group coverage", false},
    {"within_sla", "share of requests in time", false},
    {"busiest_server", "busy share of the busiest server", true},
    {"plan_estimate_ms", "planner's estimate of a token, ms", true},
    {"saturating_rate_per_s", "requests/s that it bears", false},
}};

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const auto c : text) {
    if (c == '"') out += '"';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out + '"';
}

std::string shown_value(const std::optional<double>& value) {
  return value ? fmt::format("{:.6g}", *value) : std::string();
}

/// Behind the settings, the point and the status.
std::size_t first_value() {
  return point_columns().size() + 2;
}

}  // namespace

const char* name_of(metric which) {
  return metric_texts[static_cast<std::size_t>(which)].name;
}

const char* title_of(metric which) {
  return metric_texts[static_cast<std::size_t>(which)].title;
}

bool is_less_better(metric which) {
  return metric_texts[static_cast<std::size_t>(which)].is_less_better;
}

std::vector<std::string> row_columns() {
  std::vector<std::string> names{"settings"};
  names.insert(names.end(), point_columns().begin(), point_columns().end());
  names.emplace_back("status");
  for (const auto& text : metric_texts) names.emplace_back(text.name);
  names.emplace_back("form");
  names.emplace_back("note");
  return names;
}

std::string row_line(const row& content, const std::string& settings) {
  std::vector<std::string> cells{settings};
  for (const auto& each : point_cells(content.what)) cells.push_back(quoted(each));
  cells.emplace_back(content.is_infeasible ? "infeasible" : "measured");
  for (const auto& value : content.values) cells.push_back(shown_value(value));
  cells.push_back(quoted(content.form));
  cells.push_back(quoted(content.note));
  return fmt::format("{}", fmt::join(cells, ","));
}

row as_read_back(const row& content) {
  auto same = row_of(row_line(content, {}), {});
  return same ? *same : content;
}

result<std::vector<std::string>> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const auto c = line[i];
    if (is_quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += c;
      ++i;
    } else if (c == '"' && (is_quoted || cells.back().empty())) {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  if (is_quoted) return error{errc::malformed, "found a quote that nothing closes"};
  return cells;
}

namespace {

result<std::optional<double>> value_of(const std::string& text, const char* column) {
  if (text.empty()) return std::optional<double>();
  double value = 0;
  const auto* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value))
    return error{errc::malformed,
                 fmt::format("column {}: found '{}', expected a number", column, text)};
  return std::optional(value);
}

}  // namespace

result<row> row_of(const std::string& line, const std::string& settings) {
  const auto read = csv_cells(line);
  if (!read) return read.error();
  const auto& cells = *read;
  const auto status = first_value() - 1;
  const auto n_columns = row_columns().size();
  if (cells.size() != n_columns)
    return error{errc::malformed,
                 fmt::format("found {} cells, expected {}", cells.size(), n_columns)};
  if (cells[0] != settings)
    return error{errc::mismatch,
                 fmt::format("column settings: found '{}', expected {}", cells[0], settings)};
  auto what = point_of({cells.begin() + 1, cells.begin() + static_cast<std::ptrdiff_t>(status)});
  if (!what) return what.error();
  row made;
  made.what = std::move(*what);
  made.is_infeasible = cells[status] == "infeasible";
  made.form = cells[n_columns - 2];
  made.note = cells.back();
  if (!made.is_infeasible && cells[status] != "measured")
    return error{
        errc::malformed,
        fmt::format("column status: found '{}', expected measured or infeasible", cells[status])};
  for (std::size_t i = 0; i < n_metrics; ++i) {
    const auto value = value_of(cells[status + 1 + i], metric_texts[i].name);
    if (!value) return value.error();
    if (made.is_infeasible && *value)
      return error{errc::malformed,
                   fmt::format("column {}: found '{}' where nothing is feasible, expected nothing",
                               metric_texts[i].name, cells[status + 1 + i])};
    made.values[i] = *value;
  }
  return made;
}

}  // namespace ordermoe::experiments::testbed
