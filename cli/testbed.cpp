#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/comparison.hpp"
#include "config/files.hpp"

namespace ordermoe::cli {

namespace {

struct frontier_options {
  world_options world;
  std::string out;
  std::vector<std::string> rows;
  comparison_options load;
  std::size_t seeds = 10, first_seed = 1;
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
  if (planning::find_strategy(p.strategy)->has_budget)
    return p.percent < 0 ? fmt::format("{} unbounded", p.strategy)
                         : fmt::format("{} {:g} %", p.strategy, p.percent);
  return p.strategy;
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct series {
  std::vector<double> latency, tpot, ttft, megabytes, increase, low, high, match, against_exact,
      against_shards;
};

result<void> frontier(const frontier_options& options) {
  const auto loaded = load_world(options.world);
  if (!loaded) return loaded.error();
  auto made = make_comparison(*loaded, options.load, options.first_seed);
  if (!made) return made.error();
  auto& content = made->content;
  auto& setup = content.setup;
  // The same servers whatever the precision that experts are kept in.
  const auto drawn_for = load_costs(options.world.costs, loaded->model->config());
  if (!drawn_for) return drawn_for.error();
  if (auto coarser = load_coarser(setup, options.world, {}); !coarser) return coarser.error();
  const auto coarser = setup.coarser;

  nlohmann::ordered_json all = nlohmann::json::array();
  std::map<std::string, series> results;
  progress_line line("frontier");
  std::size_t done = 0;
  for (std::size_t s = 0; s < options.seeds; ++s) {
    const auto seed = options.first_seed + s;
    draw_options draw;
    draw.seed = seed;
    draw.costs = *drawn_for;
    draw.n_layers = loaded->experts.n_layers;
    draw.n_experts = loaded->experts.n_experts;
    draw.memory_ratio = options.memory_ratio;
    made->move_to(draw_cluster(draw), options.load.rate, seed);
    std::optional<experiments::strategy_report> exact, shards;
    for (const auto& p : points) {
      const bool wanted =
          options.rows.empty() || std::string(p.strategy) == "exact" ||
          std::any_of(options.rows.begin(), options.rows.end(),
                      [&](const auto& row) { return row == label(p) || row == p.strategy; });
      if (!wanted) continue;
      line.show(
          static_cast<double>(done++) / static_cast<double>(options.seeds * std::size(points)),
          label(p));
      auto choice = options.load.planning(p.percent, seed);
      choice.choose_precision = options.world.choose_precision;
      setup.model = loaded->model;
      setup.coarser = coarser;
      setup.costs = loaded->costs;
      setup.profile = loaded->experts;
      if (auto ready = choose_strategy(setup, p.strategy, choice); !ready) {
        if (ready.error().code != errc::infeasible)
          return at(fmt::format("seed {}, {}", seed, label(p)), ready.error());
        fmt::print(stderr, "seed {}: {} is infeasible here: {}\n", seed, label(p),
                   ready.error().message);
        continue;
      }
      auto measured = experiments::measure(content);
      if (!measured) return at(fmt::format("seed {}, {}", seed, label(p)), measured.error());
      if (std::string(p.strategy) == "exact") exact = *measured;
      if (std::string(p.strategy) == "layer-shards") shards = *measured;
      const auto increase = compare(measured->losses, exact->losses);
      auto& r = results[label(p)];
      r.latency.push_back(measured->latency_ms.mean);
      r.tpot.push_back(measured->tpot_ms.mean);
      r.ttft.push_back(measured->ttft_ms.mean);
      r.megabytes.push_back(measured->per_1k(measured->charged.charged()) * 1e-6);
      r.increase.push_back(increase.percent);
      r.low.push_back(increase.low);
      r.high.push_back(increase.high);
      r.match.push_back(measured->exact_match.value_or(0));
      r.against_exact.push_back(100 * (measured->latency_ms.mean / exact->latency_ms.mean - 1));
      if (shards)
        r.against_shards.push_back(100 * (measured->latency_ms.mean / shards->latency_ms.mean - 1));
      all.push_back(
          {{"seed", seed},
           {"strategy", label(p)},
           {"latency_ms", measured->latency_ms.mean},
           {"tpot_ms", measured->tpot_ms.mean},
           {"ttft_ms", measured->ttft_ms.mean},
           {"megabytes_per_1k_tokens", measured->per_1k(measured->charged.charged()) * 1e-6},
           {"perplexity", *measured->perplexity},
           {"increase_percent", increase.percent},
           {"increase_low", increase.low},
           {"increase_high", increase.high},
           {"exact_match", measured->exact_match.value_or(0)},
           {"budget_spent_ratio", measured->budget_spent_ratio.value_or(0)},
           {"whole_model", to_string(measured->whole_model)},
           {"plan_estimate_token_ms", measured->plan_estimate_ms}});
    }
  }
  if (!options.out.empty())
    if (auto written = write_file(options.out, all.dump(1) + "\n"); !written)
      return written.error();
  if (options.world.json) {
    fmt::print("{}\n", all.dump(1));
    return {};
  }
  fmt::print(
      "Model {}, clusters drawn with seeds {} to {}, memory ratio {:g}, virtual clock, charged as "
      "{}; {} requests at {:g}/s, {} scored tokens, {} problems.\n"
      "Median over clusters, the worst in brackets; change of perplexity against exact with the "
      "median paired 95 % interval.\n\n",
      loaded->model_name, options.first_seed, options.first_seed + options.seeds - 1,
      options.memory_ratio, loaded->costs.name, options.load.requests, options.load.rate,
      options.load.scored_tokens, content.problems.size());
  fmt::print(
      "| strategy | latency ms | vs exact % | vs layer-shards % | ms per token | TTFT ms | MB per "
      "1k tokens | perplexity % | exact match |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& p : points) {
    const auto found = results.find(label(p));
    if (found == results.end()) continue;
    const auto& r = found->second;
    const auto worst = [](const std::vector<double>& v) {
      return v.empty() ? 0.0 : *std::max_element(v.begin(), v.end());
    };
    fmt::print(
        "| {} | {:.0f} ({:.0f}) | {:+.1f} ({:+.1f}) | {} | {:.1f} ({:.1f}) | {:.0f} ({:.0f}) | "
        "{:.1f} ({:.1f}) | {:+.2f} [{:+.2f}, {:+.2f}] ({:+.2f}) | {:.2f} ({:.2f}) |\n",
        label(p), median(r.latency), worst(r.latency), median(r.against_exact),
        worst(r.against_exact),
        r.against_shards.empty()
            ? std::string("-")
            : fmt::format("{:+.1f} ({:+.1f})", median(r.against_shards), worst(r.against_shards)),
        median(r.tpot), worst(r.tpot), median(r.ttft), worst(r.ttft), median(r.megabytes),
        worst(r.megabytes), median(r.increase), median(r.low), median(r.high), worst(r.increase),
        median(r.match), *std::min_element(r.match.begin(), r.match.end()));
  }
  return {};
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
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command.add_option("--first-seed", options->first_seed, "Seed of the first cluster")
      ->capture_default_str();
  options->load.add(command);
  command.add_option("--memory-ratio", options->memory_ratio, "Expert memory over one replica")
      ->check(CLI::Range(1.0, 100.0))
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
