#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/comparison.hpp"
#include "config/files.hpp"

namespace ordermoe::cli {

namespace {

using experiments::strategy_report;

struct frontier_options {
  world_flags world;
  std::string out;
  std::vector<std::string> rows;
  comparison_options load;
  std::uint64_t seeds = 10, first_seed = 1;
  double memory_ratio = 2;
};

struct point {
  const char* strategy;
  double percent;  ///< Negative: unbounded.
};

constexpr point points[] = {
    {"exact", 0},    {"layer-shards", 0}, {"local-only", 7}, {"router-restricted", 0},
    {"paper", 0},    {"paper", 1},        {"paper", 7},      {"paper", -1},
    {"ordermoe", 0}, {"ordermoe", 0.5},   {"ordermoe", 1},   {"ordermoe", 3},
    {"ordermoe", 7}, {"ordermoe", 20},    {"ordermoe", -1}};

std::string label(const point& p) {
  if (!planning::find_strategy(p.strategy)->has_budget) return p.strategy;
  return p.percent < 0 ? fmt::format("{} unbounded", p.strategy)
                       : fmt::format("{} {:g} %", p.strategy, p.percent);
}

bool names(const std::string& row, const point& p) {
  return row == label(p) || row == p.strategy;
}

/// The rows that are asked for, `exact` first: the others are compared with it.
result<std::vector<point>> wanted_points(const std::vector<std::string>& rows) {
  for (const auto& row : rows)
    if (std::ranges::none_of(points, [&](const point& p) { return names(row, p); })) {
      std::vector<std::string> known;
      for (const auto& p : points) known.push_back(label(p));
      return error{errc::usage, fmt::format("--rows '{}': no such row; expected a strategy or one "
                                            "of {}",
                                            row, fmt::join(known, ", "))};
    }
  std::vector<point> wanted;
  for (const auto& p : points)
    if (rows.empty() || std::string(p.strategy) == "exact" ||
        std::ranges::any_of(rows, [&](const auto& row) { return names(row, p); }))
      wanted.push_back(p);
  return wanted;
}

/// Perplexity increase over `exact` in per cent with its paired 95 % interval, from the losses of
/// the same tokens.
struct paired_increase {
  double percent = 0, low = 0, high = 0;
};
paired_increase compare(const std::vector<double>& losses, const std::vector<double>& exact) {
  const auto n = static_cast<double>(losses.size());
  double mean = 0, square = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) mean += (losses[i] - exact[i]) / n;
  for (std::size_t i = 0; i < losses.size(); ++i)
    square += std::pow(losses[i] - exact[i] - mean, 2);
  const auto half = 1.96 * std::sqrt(square / (n - 1) / n);
  return {100 * std::expm1(mean), 100 * std::expm1(mean - half), 100 * std::expm1(mean + half)};
}

/// One strategy on one cluster, and what it is compared with there; empty where that is infeasible.
struct measurement {
  std::uint64_t seed = 0;
  std::string row;
  strategy_report report;
  std::optional<paired_increase> increase;
  std::optional<double> against_exact, against_shards;  ///< Mean latency, in per cent.

  double megabytes() const { return report.per_1k(report.charged.charged()) * 1e-6; }
};

std::optional<double> slower_than(const strategy_report& report,
                                  const std::optional<strategy_report>& other) {
  if (!other) return std::nullopt;
  return 100 * (report.latency_ms.mean / other->latency_ms.mean - 1);
}

// ------------------------------------------------------------------------------------ measuring

/// A cluster of drawn servers with the memory that the model as stored is to have: the same servers
/// whatever the precision that experts are kept in.
cluster draw(const frontier_options& options, const setup::world& loaded,
             const cost_profile& stored, std::uint64_t seed) {
  draw_options draw;
  draw.seed = seed;
  draw.costs = stored;
  draw.n_layers = loaded.profile.n_layers;
  draw.n_experts = loaded.profile.n_experts;
  draw.memory_ratio = options.memory_ratio;
  return draw_cluster(draw);
}

/// Every wanted strategy on one cluster; those that are infeasible there are told of and left out.
result<void> measure_cluster(const frontier_options& options, const setup::world& here,
                             const bundled_load& load, const std::vector<point>& wanted,
                             std::uint64_t seed, std::vector<measurement>& all) {
  std::optional<strategy_report> exact, shards;
  for (const auto& p : wanted) {
    auto measured = measure_strategy(
        here, load, options.load, p.strategy, p.percent, seed,
        options.world.choose_precision && planning::find_strategy(p.strategy)->uses_coarser_copies);
    if (!measured && measured.error().code != errc::infeasible)
      return at(fmt::format("seed {}, {}", seed, label(p)), measured.error());
    if (!measured) {
      fmt::print(stderr, "seed {}: {} is infeasible here: {}\n", seed, label(p),
                 measured.error().message);
      continue;
    }
    if (std::string(p.strategy) == "exact") exact = *measured;
    if (std::string(p.strategy) == "layer-shards") shards = *measured;
    measurement made{seed,         label(p),     std::move(*measured),
                     std::nullopt, std::nullopt, std::nullopt};
    if (exact) made.increase = compare(made.report.losses, exact->losses);
    made.against_exact = slower_than(made.report, exact);
    made.against_shards = slower_than(made.report, shards);
    all.push_back(std::move(made));
  }
  return {};
}

result<std::vector<measurement>> measure_all(const frontier_options& options,
                                             const setup::world& loaded, const bundled_load& load,
                                             const std::vector<point>& wanted) {
  const auto stored = setup::load_costs(options.world.costs, loaded.model->config());
  if (!stored) return stored.error();
  const progress_display shown;
  std::vector<measurement> all;
  for (std::uint64_t s = 0; s < options.seeds; ++s) {
    const auto seed = options.first_seed + s;
    const auto here = setup::on_servers(loaded, draw(options, loaded, *stored, seed));
    if (auto done = measure_cluster(options, here, load, wanted, seed, all); !done)
      return done.error();
  }
  return all;
}

// ------------------------------------------------------------------------------------ reporting

nlohmann::ordered_json to_json(const measurement& m) {
  using json = nlohmann::ordered_json;
  const auto& r = m.report;
  const auto or_null = [](const auto& value, auto&& part) {
    return value ? json(part(*value)) : json(nullptr);
  };
  return {{"seed", m.seed},
          {"strategy", m.row},
          {"latency_ms", r.latency_ms.mean},
          {"tpot_ms", r.tpot_ms.mean},
          {"ttft_ms", r.ttft_ms.mean},
          {"megabytes_per_1k_tokens", m.megabytes()},
          {"perplexity", *r.perplexity},
          {"increase_percent", or_null(m.increase, [](const auto& i) { return i.percent; })},
          {"increase_low", or_null(m.increase, [](const auto& i) { return i.low; })},
          {"increase_high", or_null(m.increase, [](const auto& i) { return i.high; })},
          {"exact_match", r.exact_match.value_or(0)},
          {"budget_spent_ratio", r.budget_spent_ratio.value_or(0)},
          {"whole_model", to_string(r.whole_model)},
          {"plan_estimate_token_ms", r.plan_estimate_ms}};
}

std::string json_text(const std::vector<measurement>& all) {
  nlohmann::ordered_json list = nlohmann::json::array();
  for (const auto& m : all) list.push_back(to_json(m));
  return list.dump(1) + "\n";
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// The values of one row on the clusters where there are any.
template <class Value>
std::vector<double> values_of(const std::vector<const measurement*>& row, const Value& value) {
  std::vector<double> values;
  for (const auto* m : row)
    if (const std::optional<double> one = value(*m)) values.push_back(*one);
  return values;
}

/// "median (worst)"
std::string summary(const std::vector<double>& values, const char* format) {
  if (values.empty()) return "-";
  return fmt::format("{} ({})", fmt::format(fmt::runtime(format), median(values)),
                     fmt::format(fmt::runtime(format), *std::ranges::max_element(values)));
}

std::string increase_summary(const std::vector<const measurement*>& row) {
  const auto of = [&](double paired_increase::*part) {
    return values_of(row, [part](const measurement& m) {
      return m.increase ? std::optional(*m.increase.*part) : std::nullopt;
    });
  };
  const auto percent = of(&paired_increase::percent);
  if (percent.empty()) return "-";
  return fmt::format("{:+.2f} [{:+.2f}, {:+.2f}] ({:+.2f})", median(percent),
                     median(of(&paired_increase::low)), median(of(&paired_increase::high)),
                     *std::ranges::max_element(percent));
}

void print_row(const std::string& name, const std::vector<const measurement*>& row) {
  const auto of = [&](const auto& value) { return values_of(row, value); };
  const auto match = of([](const measurement& m) { return m.report.exact_match; });
  fmt::print(
      "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", name,
      summary(of([](const measurement& m) { return std::optional(m.report.latency_ms.mean); }),
              "{:.0f}"),
      summary(of([](const measurement& m) { return m.against_exact; }), "{:+.1f}"),
      summary(of([](const measurement& m) { return m.against_shards; }), "{:+.1f}"),
      summary(of([](const measurement& m) { return std::optional(m.report.tpot_ms.mean); }),
              "{:.1f}"),
      summary(of([](const measurement& m) { return std::optional(m.report.ttft_ms.mean); }),
              "{:.0f}"),
      summary(of([](const measurement& m) { return std::optional(m.megabytes()); }), "{:.1f}"),
      increase_summary(row),
      match.empty()
          ? std::string("-")
          : fmt::format("{:.2f} ({:.2f})", median(match), *std::ranges::min_element(match)));
}

void print_rows(const frontier_options& options, const setup::world& loaded, std::size_t n_problems,
                const std::vector<measurement>& all) {
  fmt::print(
      "Model {}, clusters drawn with seeds {} to {}, memory ratio {:g}, virtual clock, charged as "
      "{}; {} requests at {:g}/s, {} scored tokens, {} problems.\n"
      "Median over clusters, the worst in brackets; change of perplexity against exact with the "
      "median paired 95 % interval. -: nothing to compare with.\n\n",
      loaded.model_name, options.first_seed, options.first_seed + options.seeds - 1,
      options.memory_ratio, loaded.costs.name, options.load.requests, options.load.rate,
      options.load.scored_tokens, n_problems);
  fmt::print(
      "| strategy | latency ms | vs exact % | vs layer-shards % | ms per token | TTFT ms | MB per "
      "1k tokens | perplexity % | exact match |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& p : points) {
    std::vector<const measurement*> row;
    for (const auto& m : all)
      if (m.row == label(p)) row.push_back(&m);
    if (!row.empty()) print_row(label(p), row);
  }
}

result<void> frontier(const frontier_options& options) {
  const auto wanted = wanted_points(options.rows);
  if (!wanted) return wanted.error();
  if (auto good = check_output("--out", options.out, {options.world.profile}); !good) return good;
  const auto loaded = load_world(options.world);
  if (!loaded) return loaded.error();
  const auto load = make_load(*loaded, options.load);
  if (!load) return load.error();
  const auto all = measure_all(options, *loaded, *load, *wanted);
  if (!all) return all.error();
  if (options.world.json)
    fmt::print("{}", json_text(*all));
  else
    print_rows(options, *loaded, load->n_problems, *all);
  if (options.out.empty()) return {};
  return write_file(options.out, json_text(*all));
}

}  // namespace

void add_testbed(CLI::App& app) {
  auto& parent = *app.add_subcommand("testbed", "Experiments over many drawn clusters");
  parent.require_subcommand(1);
  auto& command = *parent.add_subcommand(
      "frontier", "Latency and traffic against executed quality, every strategy and budget");
  auto options = std::make_shared<frontier_options>();
  options->world.add(command, false);
  options->world.add_precisions(command);
  options->world.add_choose_precision(command);
  command.add_option("--seeds", options->seeds, "Clusters to draw")
      ->check(whole_from(1, 1000))
      ->capture_default_str();
  command.add_option("--first-seed", options->first_seed, "Seed of the first cluster")
      ->check(whole_from(0, UINT64_MAX - 1000))
      ->capture_default_str();
  options->load.add(command);
  command.add_option("--memory-ratio", options->memory_ratio, "Expert memory over one replica")
      ->check(number_from(1, 100))
      ->capture_default_str();
  command
      .add_option("--rows", options->rows,
                  "Only these rows besides exact: strategies (paper) or rows of the table "
                  "(\"ordermoe 1 %\")")
      ->delimiter(',');
  command.add_option("--out", options->out, "Write every measurement as JSON to this file");
  command.footer(
      "Example:\n  ordermoe testbed frontier --model data/models/lineage --seeds 3 --out "
      "frontier.json");
  set_body(command, [options] { return frontier(*options); });
}

}  // namespace ordermoe::cli
