#include "cli/trace_gap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/experiments/testbed/statistics.hpp"
#include "cli/common.hpp"
#include "config/json_text.hpp"
#include "planning/strategies/strategies.hpp"
#include "trace/gap.hpp"

namespace ordermoe::cli {

namespace {

using experiments::testbed::median;

struct gap_command {
  std::string file;
  std::size_t labels = planning::hindsight_options{}.max_labels;
  bool json = false;
};

template <class Value>
std::vector<double> of_each(const trace::gap_summary& found, const Value& value) {
  std::vector<double> values;
  for (const auto& each : found.requests) values.push_back(value(each.gap));
  return values;
}

std::size_t count_of(const trace::gap_summary& found, bool (*holds)(const planning::request_gap&)) {
  return static_cast<std::size_t>(
      std::ranges::count_if(found.requests, [&](const auto& each) { return holds(each.gap); }));
}

/// Of all requests together and in the median.
struct gap_totals {
  double taken_ms = 0, best_ms = 0, bound_ms = 0, at_loss_ms = 0;
  double median_percent = 0, most_median_percent = 0, worst_percent = 0;
  std::size_t exact = 0, ahead_changes_nothing = 0;

  explicit gap_totals(const trace::gap_summary& found) {
    for (const auto& each : found.requests) {
      taken_ms += each.gap.taken_ns * 1e-6;
      best_ms += each.gap.best.ns * 1e-6;
      bound_ms += each.gap.best.bound_ns * 1e-6;
      at_loss_ms += each.gap.best_at_loss.ns * 1e-6;
    }
    if (found.requests.empty()) return;
    const auto percent = of_each(found, [](const auto& gap) { return gap.gap_percent(); });
    median_percent = median(percent);
    worst_percent = *std::ranges::max_element(percent);
    most_median_percent =
        median(of_each(found, [](const auto& gap) { return gap.most_gap_percent(); }));
    exact = count_of(found, [](const auto& gap) { return gap.best.is_exact; });
    ahead_changes_nothing =
        count_of(found, [](const auto& gap) { return gap.ahead_changes_nothing; });
  }
};

nlohmann::ordered_json units_json(loss_units units) {
  if (units >= unbounded_budget) return "unbounded";
  return units;
}

void print_json(const trace::gap_summary& found, const gap_totals& totals) {
  auto requests = nlohmann::ordered_json::array();
  for (const auto& each : found.requests)
    requests.push_back({{"request", each.request},
                        {"access", each.access},
                        {"positions", each.positions},
                        {"taken_ms", each.gap.taken_ns * 1e-6},
                        {"best_ms", each.gap.best.ns * 1e-6},
                        {"bound_ms", each.gap.best.bound_ns * 1e-6},
                        {"exact", each.gap.best.is_exact},
                        {"gap_percent", each.gap.gap_percent()},
                        {"most_gap_percent", each.gap.most_gap_percent()},
                        {"ahead_changes_nothing", each.gap.ahead_changes_nothing},
                        {"budget", units_json(each.budget)},
                        {"taken_loss", each.gap.taken_loss},
                        {"best_at_taken_loss_ms", each.gap.best_at_loss.ns * 1e-6},
                        {"bound_at_taken_loss_ms", each.gap.best_at_loss.bound_ns * 1e-6},
                        {"best_loss", each.gap.best.loss}});
  fmt::print(
      "{}\n",
      json_text(nlohmann::ordered_json{{"strategy", found.strategy},
                                       {"taken_ms", totals.taken_ms},
                                       {"best_ms", totals.best_ms},
                                       {"bound_ms", totals.bound_ms},
                                       {"best_at_taken_loss_ms", totals.at_loss_ms},
                                       {"median_gap_percent", totals.median_percent},
                                       {"median_most_gap_percent", totals.most_median_percent},
                                       {"worst_gap_percent", totals.worst_percent},
                                       {"exact", totals.exact},
                                       {"ahead_changes_nothing", totals.ahead_changes_nothing},
                                       {"given_up", found.given_up},
                                       {"requests", requests}},
                2));
}

void print_table(const trace::gap_summary& found, const gap_totals& totals) {
  fmt::print("{:>8} {:>9} {:>11} {:>11} {:>11} {:>8}  {}\n", "request", "positions", "decided ms",
             "best ms", "bound ms", "gap %", "best");
  for (const auto& each : found.requests)
    fmt::print("{:>8} {:>9} {:>11.3f} {:>11.3f} {:>11.3f} {:>8.2f}  {}{}\n", each.request,
               each.positions, each.gap.taken_ns * 1e-6, each.gap.best.ns * 1e-6,
               each.gap.best.bound_ns * 1e-6, each.gap.gap_percent(),
               each.gap.best.is_exact
                   ? std::string("the optimum")
                   : fmt::format("found; the gap is at most {:.2f}", each.gap.most_gap_percent()),
               each.gap.ahead_changes_nothing ? "; looking ahead changes nothing" : "");
  const auto n = found.requests.size();
  fmt::print(
      "strategy {}: decided {:.3f} ms, best in hindsight {:.3f} ms, gap {:.2f} % in the median "
      "({:.2f} at most), {:.2f} % the worst; the optimum is known of {} of {} requests\n",
      planning::printed_strategy_name(found.strategy), totals.taken_ms, totals.best_ms,
      totals.median_percent, totals.most_median_percent, totals.worst_percent, totals.exact, n);
  if (totals.at_loss_ms > totals.best_ms)
    fmt::print(
        "losing no more than was decided, the best found takes {:.3f} ms; the rest is what the "
        "unspent budgets could have bought\n",
        totals.at_loss_ms);
  if (totals.ahead_changes_nothing > 0)
    fmt::print(
        "looking ahead changes nothing in {} of {} requests: the fastest step each time is "
        "the fastest way\n",
        totals.ahead_changes_nothing, n);
  if (found.given_up > 0)
    fmt::print("{} requests were given up and not looked at\n", found.given_up);
  fmt::print("Without queues, with routers' choices as they were: a bound, see docs/TRACE.md.\n");
}

result<void> print_gaps(const gap_command& options) {
  result<trace::gap_summary> found = error{errc::failed, "not run"};
  {
    progress_line line("looking back");
    trace::gap_options search;
    search.search.max_labels = options.labels;
    search.should_stop = stop_requested;
    search.progress = [&](double share) { line.show(share); };
    found = trace::find_gaps(options.file, search);
  }
  if (!found) return found.error();
  if (found->requests.empty())
    return error{errc::failed,
                 fmt::format("{}: found no request that was answered, expected one", options.file)};
  const gap_totals totals(*found);
  if (options.json)
    print_json(*found, totals);
  else
    print_table(*found, totals);
  return {};
}

}  // namespace

void add_trace_gap(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "gap", "Compare decisions with the best ones in hindsight, by the same prices and budget");
  auto options = std::make_shared<gap_command>();
  command.add_option("file", options->file, "trace.jsonl written by `ordermoe run --trace`")
      ->type_name(file_value)
      ->required();
  command
      .add_option("--labels", options->labels,
                  "Beginnings of ways that are followed side by side; where they do not suffice, a "
                  "bound is told")
      ->check(whole_from(1, 10'000'000))
      ->capture_default_str();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Example:\n  ordermoe run --model data/models/lineage --cluster data/clusters/edge8.toml "
      "--prompts data/eval/prompts.jsonl --strategy ordermoe --quality-budget 1 --trace "
      "trace.jsonl\n"
      "  ordermoe trace gap trace.jsonl");
  set_body(command, [options] { return print_gaps(*options); });
}

}  // namespace ordermoe::cli
