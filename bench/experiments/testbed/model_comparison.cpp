#include "bench/experiments/testbed/model_comparison.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "config/files.hpp"

namespace ordermoe::experiments::testbed {

namespace {

constexpr std::string_view experiment_name = "overall";

constexpr claim fastest{.experiment = experiment_name,
                        .figure = "Fig. 6(a)",
                        .says = "No method that it is compared with answers faster.",
                        .kind = measure::to_best_rival,
                        .why_so = {},
                        .why_not = {}};
constexpr claim against_moe2{.experiment = experiment_name,
                             .figure = "Fig. 6(a)",
                             .says = "Its latency over MoE^2's falls as models grow.",
                             .second = {"moe2"},
                             .why_so = {},
                             .why_not = {}};
/// Retention of 99.3 % of quality.
constexpr double retained_percent = 99.3;

std::string cell_of(const cell* found, metric which) {
  return found == nullptr ? std::string("-") : shown((*found)[which]);
}

std::string line_of(const measured_model& model, const judgement& found, std::string_view says) {
  return fmt::format("{}, {}, {}: {} Measured {}: {}.", fastest.figure, model.name(), found.subject,
                     says, shown(found.value), to_string(found.ordering));
}

/// Whether each is lower than the one before by more than what is too near to tell.
verdict falls(const std::vector<double>& ratios) {
  constexpr double margin = 0.01;
  auto found = verdict::agrees;
  for (std::size_t i = 1; i < ratios.size(); ++i) {
    const auto change = ratios[i] / ratios[i - 1] - 1;
    if (change >= margin) return verdict::disagrees;
    if (change > -margin) found = verdict::undecided;
  }
  return found;
}

/// Of the model's quality, by perplexity, at the budget that strategies are compared at.
std::string retention_of(const measured_model& model, std::string_view subject) {
  std::vector<double> increases;
  for (const auto& each : model.rows)
    if (each.what.strategy == subject && each.what.percent == main_budget &&
        each.what.without.empty() && !each.what.horizon && each[metric::increase_percent])
      increases.push_back(100 / (1 + *each[metric::increase_percent] / 100));
  const auto kept = over_clusters(increases);
  const auto* verdict = !kept                           ? "not measured"
                        : kept->low >= retained_percent ? "agrees"
                        : kept->high < retained_percent ? "disagrees"
                                                        : "undecided";
  return fmt::format(
      "Fig. 6(b), {}, {}: More than {} % of the quality is kept. Measured {} % of it by "
      "perplexity, with a budget of {:g} %: {}.",
      model.name(), subject, retained_percent, shown(kept), main_budget, verdict);
}

std::string text_of(const settings& asked, const std::string& name) {
  return asked.contains(name) ? asked[name].dump() : std::string("none");
}

/// But those that go with the model, by name and what the models have; and the clusters.
std::vector<std::string> settings_that_differ(const std::vector<measured_model>& all) {
  std::set<std::string> names;
  for (const auto& model : all)
    for (const auto& [name, value] : model.asked.items())
      if (!name.starts_with("model") && name != "profile" && name != "tuning_text_digest")
        names.insert(name);
  std::vector<std::string> told;
  const auto compare = [&](const std::string& name, const auto& text_of_model) {
    std::vector<std::string> values;
    for (const auto& model : all) values.push_back(text_of_model(model));
    if (std::ranges::adjacent_find(values, std::not_equal_to<>()) != values.end())
      told.push_back(fmt::format("{} ({})", name, fmt::join(values, "; ")));
  };
  for (const auto& name : names)
    compare(name, [&](const measured_model& model) { return text_of(model.asked, name); });
  compare("clusters", [](const measured_model& model) {
    std::set<std::uint64_t> seeds;
    for (const auto& each : model.rows) seeds.insert(each.what.seed);
    return fmt::format("{}", fmt::join(seeds, " "));
  });
  return told;
}

}  // namespace

result<measured_model> read_measured_model(const std::filesystem::path& folder) {
  auto asked = read_settings(folder);
  if (!asked) return asked.error();
  measured_model made;
  made.asked = std::move(*asked);
  rows_of_experiment rows(*find_experiment(experiment_name), scale_of(made.asked));
  if (auto done = read_rows(folder, digest_of(made.asked), rows); !done) return done.error();
  made.rows = rows.in_order();
  if (made.rows.empty())
    return error{
        errc::not_found,
        fmt::format("{}: found no rows of {}; measure them with `ordermoe testbed {} --out {}`",
                    folder.string(), experiment_name, experiment_name, folder.string())};
  return made;
}

std::string model_table(const std::vector<measured_model>& all) {
  const auto* of = find_experiment(experiment_name);
  std::vector<std::vector<cell>> cells;
  std::vector<std::string> variants;
  for (const auto& model : all) {
    cells.push_back(cells_of(*of, model.rows));
    for (const auto& one : cells.back())
      if (std::ranges::find(variants, one.series) == variants.end()) variants.push_back(one.series);
  }
  std::string out = "| strategy ";
  for (const auto& model : all)
    out += fmt::format("| {0}: {1} | {0}: {2} ", model.name(), title_of(metric::latency_ms),
                       title_of(metric::increase_percent));
  out += "|\n|---";
  for (std::size_t i = 0; i < 2 * all.size(); ++i) out += "|---";
  out += "|\n";
  for (const auto& variant : variants) {
    out += fmt::format("| {} ", variant);
    for (const auto& of_model : cells) {
      const auto found = std::ranges::find(of_model, variant, &cell::series);
      const auto* one = found == of_model.end() ? nullptr : &*found;
      out += fmt::format("| {} | {} ", cell_of(one, metric::latency_ms),
                         cell_of(one, metric::increase_percent));
    }
    out += "|\n";
  }
  return out;
}

std::vector<std::string> model_findings(const std::vector<measured_model>& all) {
  std::vector<std::string> made;
  if (const auto differ = settings_that_differ(all); !differ.empty())
    made.push_back(fmt::format("Not alike besides the model: {}.", fmt::join(differ, ", ")));
  for (const auto* subject : {"paper", "ordermoe"}) {
    std::vector<double> ratios;
    for (const auto& model : all) {
      made.push_back(line_of(model, judge(fastest, subject, model.rows), fastest.says));
      made.push_back(retention_of(model, subject));
      if (const auto found = judge(against_moe2, subject, model.rows); found.value)
        ratios.push_back(found.value->median);
    }
    if (ratios.size() < 2 || ratios.size() < all.size()) continue;
    std::vector<std::string> texts;
    for (const auto ratio : ratios) texts.push_back(fmt::format("{:.2f}", ratio));
    made.push_back(fmt::format("{}, {}: {} Measured {}, from the first model to the last: {}.",
                               against_moe2.figure, subject, against_moe2.says,
                               fmt::join(texts, ", "), to_string(falls(ratios))));
  }
  return made;
}

}  // namespace ordermoe::experiments::testbed
