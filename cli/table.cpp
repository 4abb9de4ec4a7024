#include "cli/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "planning/strategies/strategies.hpp"

namespace ordermoe::cli {

namespace {

using experiments::strategy_report;

std::string number(std::optional<double> value, int digits, double scale = 1) {
  return value ? fmt::format("{:.{}f}", *value * scale, digits) : std::string("-");
}

std::string name(const strategy_report& s) {
  return planning::printed_strategy_name(s.name);
}

std::string budget(const strategy_report& s) {
  if (!s.quality_budget_percent) return "-";
  return *s.quality_budget_percent < 0 ? "none" : fmt::format("{:g}%", *s.quality_budget_percent);
}

/// Of the column of names.
int widest_name(const std::vector<strategy_report>& strategies) {
  std::size_t widest = 17;
  for (const auto& s : strategies) widest = std::max(widest, name(s).size());
  return static_cast<int>(widest);
}

void print_times_and_quality(const std::vector<strategy_report>& strategies) {
  constexpr auto row = "{:<{}}{:>7} |{:>8}{:>8}{:>8}{:>7}{:>8} |{:>9} |{:>8}{:>6}{:>6}\n";
  const int width = widest_name(strategies);
  fmt::print(row, "strategy", width, "budget", "latency", "p50", "p95", "TTFT", "per tok",
             "tokens/s", "ppl", "EM", "spent");
  fmt::print(row, "", width, "ppl", "ms mean", "ms", "ms", "ms", "ms", "", "", "", "%");
  for (const auto& s : strategies)
    fmt::print(row, name(s), width, budget(s), number(s.latency_ms.mean, 1),
               number(s.latency_ms.p50, 1), number(s.latency_ms.p95, 1), number(s.ttft_ms.mean, 1),
               number(s.tpot_ms.mean, 2), number(s.throughput_tokens_per_s, 1),
               number(s.perplexity, 4), number(s.exact_match, 2),
               number(s.budget_spent_ratio, 0, 100));
}

void print_traffic_and_places(const std::vector<strategy_report>& strategies) {
  constexpr auto row = "{:<{}}{:>7} |{:>8}{:>8}{:>7}{:>8} |{:>6}{:>6}{:>6}{:>6}{:>6}\n";
  const int width = widest_name(strategies);
  fmt::print(row, "strategy", width, "budget", "hidden", "KV", "other", "ours", "loc=", "loc~",
             "rem=", "rem~", "none");
  fmt::print(row, "", width, "ppl", "MB/1k", "MB/1k", "MB/1k", "MB/1k", "%", "%", "%", "%", "%");
  for (const auto& s : strategies) {
    const auto megabytes = [&](std::int64_t bytes) { return number(s.per_1k(bytes) * 1e-6, 2); };
    const auto share = [&](std::size_t kind) { return number(s.execution[kind], 1, 100); };
    fmt::print(row, name(s), width, budget(s), megabytes(s.charged.hidden_bytes),
               megabytes(s.charged.kv_bytes), megabytes(s.charged.other_bytes),
               megabytes(s.charged.serialised_bytes), share(0), share(1), share(2), share(3),
               share(4));
  }
}

}  // namespace

void print_table(const std::vector<strategy_report>& strategies) {
  print_times_and_quality(strategies);
  fmt::print("\n");
  print_traffic_and_places(strategies);
  for (const auto& s : strategies) {
    print_whole_model(s);
    print_pruning(s);
  }
}

void print_left_out(const experiments::strategy_report& report) {
  const double share =
      report.execution[static_cast<std::size_t>(serving::execution_kind::left_out)];
  if (share > 0) fmt::print("{}: {:.1f} % of the slots were left out\n", name(report), 100 * share);
}

void print_pruning(const strategy_report& report) {
  if (!report.pruned_percent) return;
  fmt::print(
      "{}: without the experts that are missed least, as static-pruning, which takes {:.2f} % of "
      "perplexity of its budget\n",
      name(report), *report.pruned_percent);
}

void print_whole_model(const strategy_report& report) {
  if (report.whole_model == precision::stored) return;
  fmt::print(
      "{}: the whole model's experts in {}, which takes {:.2f} % of perplexity of its budget\n",
      name(report), to_string(report.whole_model), report.whole_model_percent);
}

}  // namespace ordermoe::cli
