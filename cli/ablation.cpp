#include "cli/ablation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common.hpp"
#include "planning/strategies/strategies.hpp"

namespace ordermoe::cli {

namespace {

using planning::strategy_record;

bool places_groups(const strategy_record& record) {
  return record.places_groups;
}

/// A part of strategies, and what they are without it.
struct part {
  const char* name;
  bool (*is_of)(const strategy_record&);
  const char* why_not;  ///< Behind the name of a strategy that has none.
  /// Null where another option says that the part is wanted; its name otherwise.
  const char* (*is_asked_for)(const planning::strategy_options&);
  void (*leave_out)(planning::strategy_options&);
};

constexpr auto nothing_asks = [](const planning::strategy_options&) -> const char* {
  return nullptr;
};

const part parts[] = {
    {"look-ahead", [](const strategy_record& of) { return of.policy(1).horizon != 1; },
     "does not look ahead",
     [](const planning::strategy_options& options) {
       return options.horizon && *options.horizon != 1 ? "--horizon" : nullptr;
     },
     [](planning::strategy_options& options) { options.horizon = 1; }},
    {"redundancy", places_groups, "does not place by groups of experts", nothing_asks,
     [](planning::strategy_options& options) { options.replicates = false; }},
    {"dispersion", places_groups, "does not place by groups of experts", nothing_asks,
     [](planning::strategy_options& options) { options.disperses = false; }},
    {"leaving-out", [](const strategy_record& of) { return of.policy(2).may_leave_out; },
     "leaves no slot out beside substituting", nothing_asks,
     [](planning::strategy_options& options) { options.leaves_slots_out = false; }},
    {"substitution", [](const strategy_record& of) { return of.has_budget; }, "has no budget",
     [](const planning::strategy_options& options) {
       return options.quality_percent != 0 ? "--quality-budget" : nullptr;
     },
     [](planning::strategy_options& options) { options.quality_percent = 0; }}};

const part& part_named(const std::string& name) {
  return *std::ranges::find(parts, name, &part::name);
}

}  // namespace

void ablation_flags::add(CLI::App& command) {
  command
      .add_option("--threshold", threshold,
                  "Experts are alike from this similarity on, the same in every layer; default: "
                  "from 0.9 at the "
                  "first layer down to 0.5 at the last")
      ->check(number_from(-1, 1));
  std::vector<std::string> names;
  for (const auto& each : parts) names.emplace_back(each.name);
  command
      .add_option(
          "--ablate", without,
          "What to leave out of the strategy, one word or several with commas between: look-ahead, "
          "redundancy (copies), dispersion (of groups over servers), leaving-out (of slots), "
          "substitution")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
}

bool ablation_flags::leaves_out(std::string_view part) const {
  return std::ranges::find(without, part) != without.end();
}

result<void> ablation_flags::apply(setup::preparation_request& request) const {
  const auto& record = *planning::find_strategy(request.strategy);
  if (threshold && !record.places_groups)
    return error{
        errc::usage,
        fmt::format(
            "--threshold: {} does not place by groups of experts; leave it out, or choose {}",
            record.name, planning::strategies_for_which(places_groups))};
  for (const auto& name : without) {
    const auto& one = part_named(name);
    if (!one.is_of(record))
      return error{errc::usage,
                   fmt::format("--ablate {}: {} {}; leave it out", name, record.name, one.why_not)};
    if (const auto* option = one.is_asked_for(request.options))
      return error{errc::usage,
                   fmt::format("--ablate {}: {} asks for it; leave one of them out", name, option)};
  }
  apply_those_it_has(request);
  return {};
}

std::string ablation_flags::apply_those_it_has(setup::preparation_request& request) const {
  const auto& record = *planning::find_strategy(request.strategy);
  std::string said;
  for (const auto& name : without)
    if (const auto& one = part_named(name); one.is_of(record)) {
      one.leave_out(request.options);
      said += (said.empty() ? "without " : ", ") + name;
    }
  if (threshold && record.places_groups) {
    request.options.threshold = threshold;
    said += fmt::format("{}one threshold, {:g}", said.empty() ? "" : "; ", *threshold);
  }
  return said;
}

}  // namespace ordermoe::cli
