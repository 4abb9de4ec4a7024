#include "cli/strategy_list.hpp"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "config/json_text.hpp"
#include "planning/strategies/strategies.hpp"

namespace ordermoe::cli {

namespace {

using planning::strategy_record;

const char* budget_of(const strategy_record& record) {
  if (record.most_cut != nullptr && !record.keeps_budgets) return "kept in the mean";
  return record.has_budget ? "kept" : record.keeps_budgets ? "never substitutes" : "none kept";
}

void print_json() {
  auto all = nlohmann::ordered_json::array();
  for (const auto& record : planning::strategy_records()) {
    auto& each = all.emplace_back();
    each["name"] = std::string(record.name);
    if (!record.alias.empty()) each["alias"] = std::string(record.alias);
    each["adapted"] = record.is_adapted;
    each["rule"] = std::string(record.sentence);
    each["source"] = std::string(record.source);
    each["budget"] = budget_of(record);
    each["tunes_price"] = record.tunes_price;
    each["needs_profile"] = record.needs_profile;
  }
  fmt::print("{}\n", json_text(all, 2));
}

void print_text() {
  for (const auto& record : planning::strategy_records()) {
    fmt::print("{}{}\n", planning::printed_strategy_name(record.name),
               record.alias.empty() ? "" : fmt::format(", also called {}", record.alias));
    fmt::print("    {}\n    budget: {}; from: {}\n", record.sentence, budget_of(record),
               record.source);
  }
}

}  // namespace

void add_strategy_list(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "strategies", "The strategies that a run can name: what each does, and whose it is");
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "Print JSON on standard output");
  command.footer("Example:\n  ordermoe testbed strategies");
  set_body(command, [json]() -> result<void> {
    if (*json)
      print_json();
    else
      print_text();
    return {};
  });
}

}  // namespace ordermoe::cli
