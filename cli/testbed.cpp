#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "bench/experiments/testbed/statistics.hpp"
#include "cli/comparison.hpp"
#include "cli/frontier_file.hpp"
#include "cli/strategy_list.hpp"
#include "cli/testbed_experiments.hpp"
#include "cli/testbed_measure.hpp"
#include "cli/testbed_models.hpp"
#include "config/files.hpp"
#include "ordermoe_version.hpp"

namespace ordermoe::cli {

namespace {

using experiments::strategy_report;
using experiments::testbed::median;

struct frontier_options {
  world_flags world;
  std::string out;
  std::vector<std::string> rows;
  comparison_options load;
  std::uint64_t seeds = 10, first_seed = 1;
  double memory_ratio = 2;
  bool memory_as_drawn = false, dense_by_layer = false;
  bool goes_on = false;

  std::string memory() const {
    if (!memory_as_drawn) return fmt::format("memory ratio {:g}", memory_ratio);
    return std::string("12 to 48 GB a server") +
           (dense_by_layer ? ", dense parts of its own layers" : "");
  }
};

struct point {
  const char* strategy;
  double percent;  ///< Negative: unbounded.
};

constexpr point points[] = {{"exact", 0},
                            {"layer-shards", 0},
                            {"shard-chains", 0},
                            {"parallax", 0},
                            {"prism", 0},
                            {"edge-llm", 0},
                            {"offload", 0},
                            {"random", 0},
                            {"popularity", 0},
                            {"similarity", 0},
                            {"local-only", 7},
                            {"local-skip", 0},
                            {"local-tuned", 1},
                            {"local-tuned", 3},
                            {"local-tuned", 7},
                            {"drop", 1},
                            {"drop", 3},
                            {"drop", 7},
                            {"drop", -1},
                            {"wdmoe", 1},
                            {"wdmoe", 3},
                            {"wdmoe", 7},
                            {"dynamic-skipping", 1},
                            {"dynamic-skipping", 3},
                            {"dynamic-skipping", 7},
                            {"static-pruning", 1},
                            {"static-pruning", 3},
                            {"static-pruning", 7},
                            {"static-pruning", -1},
                            {"naee", 1},
                            {"naee", 3},
                            {"naee", 7},
                            {"moe2", 1},
                            {"moe2", 3},
                            {"moe2", 7},
                            {"moe2", -1},
                            {"router-restricted", 0},
                            {"router-ledger", 1},
                            {"router-ledger", 3},
                            {"router-ledger", 7},
                            {"paper", 0},
                            {"paper", 1},
                            {"paper", 3},
                            {"paper", 7},
                            {"paper", -1},
                            {"paper-in-place", 0},
                            {"paper-in-place", 1},
                            {"paper-in-place", 3},
                            {"paper-in-place", 7},
                            {"paper-tuned", 1},
                            {"paper-tuned", 3},
                            {"paper-tuned", 7},
                            {"ordermoe", 0},
                            {"ordermoe", 0.5},
                            {"ordermoe", 1},
                            {"ordermoe", 3},
                            {"ordermoe", 7},
                            {"ordermoe", 20},
                            {"ordermoe", -1}};

/// Behind the strategy's name.
std::string of_budget(const point& p) {
  if (!planning::find_strategy(p.strategy)->has_budget) return {};
  return p.percent < 0 ? std::string(" unbounded") : fmt::format(" {:g} %", p.percent);
}

/// As files have it and --rows takes it.
std::string label(const point& p) {
  return p.strategy + of_budget(p);
}

/// As tables have it.
std::string printed(const point& p) {
  return planning::printed_strategy_name(p.strategy) + of_budget(p);
}

bool names(const std::string& row, const point& p) {
  const auto alias = planning::find_strategy(p.strategy)->alias;
  return row == label(p) || row == p.strategy || (!alias.empty() && row == alias);
}

/// The rows that are asked for, in the order of the table; all where none is.
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
    if (rows.empty() || std::ranges::any_of(rows, [&](const auto& row) { return names(row, p); }))
      wanted.push_back(p);
  return wanted;
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
  draw.memory_as_drawn = options.memory_as_drawn;
  draw.dense_by_layer = options.dense_by_layer;
  return draw_cluster(draw);
}

result<measurement> measured(std::uint64_t seed, const point& p, const strategy_report& r,
                             std::span<const double> reference) {
  measurement m;
  m.seed = seed;
  m.row = label(p);
  m.latency_ms = r.latency_ms.mean;
  m.tpot_ms = r.tpot_ms.mean;
  m.ttft_ms = r.ttft_ms.mean;
  m.megabytes = r.per_1k(r.charged.charged()) * 1e-6;
  m.perplexity = *r.perplexity;
  const auto found = experiments::increase_by_document(r.losses, reference, r.scored_lengths);
  if (!found) return found.error();
  m.increase = *found;
  m.exact_match = r.exact_match;
  m.budget_spent_ratio = r.budget_spent_ratio;
  m.whole_model = to_string(r.whole_model);
  m.pruned_percent = r.pruned_percent;
  m.plan_estimate_ms = r.plan_estimate_ms;
  return m;
}

/// Every wanted strategy on one cluster; those that are infeasible there are told of.
result<std::vector<measurement>> measure_cluster(const frontier_options& options,
                                                 const setup::world& here, const bundled_load& load,
                                                 std::span<const double> reference,
                                                 const std::vector<point>& wanted,
                                                 std::uint64_t seed) {
  std::vector<measurement> made;
  for (const auto& p : wanted) {
    auto report =
        measure_strategy(here, load, options.load, p.strategy, p.percent, seed, options.world);
    if (!report && report.error().code != errc::infeasible)
      return at(fmt::format("seed {}, {}", seed, label(p)), report.error());
    if (!report) {
      fmt::print(stderr, "seed {}: {} is infeasible here: {}\n", seed, printed(p),
                 report.error().message);
      measurement none;
      none.seed = seed;
      none.row = label(p);
      none.infeasible = true;
      made.push_back(std::move(none));
      continue;
    }
    auto found = measured(seed, p, *report, reference);
    if (!found) return found.error();
    made.push_back(std::move(*found));
  }
  return made;
}

bool has_row(const std::vector<measurement>& all, std::uint64_t seed, const point& p) {
  return std::ranges::any_of(
      all, [&](const measurement& m) { return m.seed == seed && m.row == label(p); });
}

/// Measures the clusters of which `all` lacks a row, and writes the file after each.
result<void> measure_rest(const frontier_options& options, const setup::world& loaded,
                          const bundled_load& load, const std::vector<point>& wanted,
                          const frontier_settings& settings, std::vector<measurement>& all) {
  const auto stored = setup::load_costs(options.world.costs, loaded.model->config());
  if (!stored) return stored.error();
  const progress_display shown;
  std::optional<std::vector<double>> reference;
  for (std::uint64_t s = 0; s < options.seeds; ++s) {
    const auto seed = options.first_seed + s;
    if (std::ranges::all_of(wanted, [&](const point& p) { return has_row(all, seed, p); }))
      continue;
    if (!reference) {
      const auto scored = losses_of_model_alone(loaded, load);
      if (!scored) return scored.error();
      reference.emplace();
      for (const auto& of_text : *scored)
        reference->insert(reference->end(), of_text.begin(), of_text.end());
    }
    const auto here = setup::on_servers(loaded, draw(options, loaded, *stored, seed));
    auto made = measure_cluster(options, here, load, *reference, wanted, seed);
    if (!made) return made.error();
    std::erase_if(all, [&](const measurement& m) {
      return m.seed == seed && std::ranges::any_of(*made, [&](const measurement& newer) {
               return newer.row == m.row;
             });
    });
    std::ranges::move(*made, std::back_inserter(all));
    if (options.out.empty() || is_written_through(options.out)) continue;
    if (auto kept = write_file(options.out, frontier_text(settings, all)); !kept) return kept;
  }
  return {};
}

// ------------------------------------------------------------------------------------ reporting

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
  const auto of = [&](double experiments::paired_increase::*part) {
    return values_of(row, [part](const measurement& m) {
      return m.increase ? std::optional(*m.increase.*part) : std::nullopt;
    });
  };
  const auto percent = of(&experiments::paired_increase::percent);
  if (percent.empty()) return "-";
  return fmt::format("{:+.2f} [{:+.2f}, {:+.2f}] ({:+.2f})", median(percent),
                     median(of(&experiments::paired_increase::low)),
                     median(of(&experiments::paired_increase::high)),
                     *std::ranges::max_element(percent));
}

/// Mean latency against another row's on the same cluster, in per cent.
std::optional<double> slower_than(const measurement& m, const std::vector<measurement>& all,
                                  const char* row) {
  const auto other = std::ranges::find_if(
      all, [&](const measurement& o) { return o.seed == m.seed && o.row == row && !o.infeasible; });
  if (other == all.end()) return std::nullopt;
  return 100 * (m.latency_ms / other->latency_ms - 1);
}

void print_row(const std::string& name, const std::vector<const measurement*>& row,
               const std::vector<measurement>& all) {
  const auto of = [&](const auto& value) { return values_of(row, value); };
  const auto number = [&](double measurement::*part, const char* format) {
    return summary(of([part](const measurement& m) { return std::optional(m.*part); }), format);
  };
  const auto against = [&](const char* other) {
    return summary(of([&](const measurement& m) { return slower_than(m, all, other); }), "{:+.1f}");
  };
  const auto match = of([](const measurement& m) { return m.exact_match; });
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", name,
             number(&measurement::latency_ms, "{:.0f}"), against("exact"), against("layer-shards"),
             number(&measurement::tpot_ms, "{:.1f}"), number(&measurement::ttft_ms, "{:.0f}"),
             number(&measurement::megabytes, "{:.1f}"), increase_summary(row),
             match.empty()
                 ? std::string("-")
                 : fmt::format("{:.2f} ({:.2f})", median(match), *std::ranges::min_element(match)));
}

/// Which strategies are measured without what part.
void print_ablation(const frontier_options& options, const std::vector<point>& wanted) {
  std::string before;
  for (const auto& p : wanted) {
    setup::preparation_request request;
    request.strategy = p.strategy;
    const auto said = options.load.ablation.apply_those_it_has(request);
    if (!said.empty() && before != p.strategy)
      fmt::print("{}: {}.\n", planning::printed_strategy_name(p.strategy), said);
    before = p.strategy;
  }
  if (options.load.ablation.any()) fmt::print("\n");
}

/// The rows that are asked for: a file that is continued may hold others, of some clusters only.
void print_rows(const frontier_options& options, const setup::world& loaded, std::size_t n_problems,
                const std::vector<point>& wanted, const std::vector<measurement>& all) {
  fmt::print(
      "Model {}, clusters drawn with seeds {} to {}, {}, virtual clock, charged as "
      "{}; {} requests at {:g}/s, {} scored tokens, {} problems.\n"
      "Median over clusters, the worst in brackets; change of perplexity against the model alone "
      "with the median paired 95 % interval, by scored text. -: nothing to compare with.\n\n",
      loaded.model_name, options.first_seed, options.first_seed + options.seeds - 1,
      options.memory(), loaded.costs.name, options.load.requests, options.load.rate,
      options.load.scored_tokens, n_problems);
  print_ablation(options, wanted);
  fmt::print(
      "| strategy | latency ms | vs exact % | vs layer-shards % | ms per token | TTFT ms | MB per "
      "1k tokens | perplexity % | exact match |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& p : wanted) {
    std::vector<const measurement*> row;
    for (const auto& m : all)
      if (m.row == label(p) && !m.infeasible) row.push_back(&m);
    const auto n_asked = static_cast<std::size_t>(
        std::ranges::count_if(all, [&](const measurement& m) { return m.row == label(p); }));
    const auto some = row.size() < n_asked
                          ? fmt::format(" (infeasible on {} of {})", n_asked - row.size(), n_asked)
                          : std::string();
    if (!row.empty()) print_row(printed(p) + some, row, all);
  }
}

result<frontier_settings> settings_of(const frontier_options& options, const setup::world& loaded) {
  const auto origin = origin_of(loaded);
  if (!origin) return origin.error();
  const auto& world = options.world;
  const auto& load = options.load;
  frontier_settings settings{{"version", version_string},
                             {"model", loaded.model_name},
                             {"model_digest", loaded.model_digest},
                             {"profile", sha256_hex(planning::profile_json(loaded.profile))},
                             {"costs", loaded.costs.name},
                             {"kv_precision", world.kv_precision},
                             {"expert_precision", world.expert_precision},
                             {"dense_precision", world.dense_precision},
                             {"choose_precision", world.choose_precision},
                             {"choose_pruning", world.choose_pruning},
                             {"seed", world.seed},
                             {"requests", load.requests},
                             {"rate", load.rate},
                             {"max_new_tokens", load.max_new_tokens},
                             {"scored_tokens", load.scored_tokens},
                             {"problems", load.problems},
                             {"concurrency", load.concurrency},
                             {"search_steps", load.search_steps},
                             {"memory_ratio", options.memory_ratio}};
  if (options.memory_as_drawn) settings["memory_ratio"] = "as drawn";
  if (options.dense_by_layer) settings["dense_by_layer"] = true;
  if (load.trial_requests != planning::strategy_options{}.dry_run_requests)
    settings["trial_requests"] = load.trial_requests;
  if (load.concurrency_by_trial) settings["concurrency_by_trial"] = true;
  if (load.equal_lengths) settings["equal_lengths"] = true;
  if (load.ablation.threshold) settings["threshold"] = *load.ablation.threshold;
  if (!load.ablation.without.empty()) settings["without"] = load.ablation.without;
  settings.update(*origin);
  return settings;
}

/// The clusters that were asked for, by seed, whatever else a file that is continued holds.
void keep_asked(const frontier_options& options, std::vector<measurement>& all) {
  std::erase_if(all, [&](const measurement& m) {
    return m.seed < options.first_seed || m.seed - options.first_seed >= options.seeds;
  });
  std::ranges::stable_sort(all, {}, &measurement::seed);
}

result<void> frontier(const frontier_options& options) {
  const auto wanted = wanted_points(options.rows);
  if (!wanted) return wanted.error();
  if (options.load.ablation.leaves_out("substitution"))
    return error{
        errc::usage,
        "--ablate substitution: rows at 0 % are without it; leave it out, or name such rows"};
  if (auto good = check_output("--out", options.out, {options.world.profile}); !good) return good;
  const auto loaded = load_world(options.world);
  if (!loaded) return loaded.error();
  const auto asked = settings_of(options, *loaded);
  if (!asked) return asked.error();
  const auto& settings = *asked;
  std::vector<measurement> all;
  const bool once = is_written_through(options.out);
  if (options.goes_on) {
    if (once)
      return error{errc::usage, fmt::format("--continue: --out {} keeps nothing that could be "
                                            "continued; name a file",
                                            options.out)};
    auto known = read_frontier(options.out, settings);
    if (!known) return at("--continue", known.error());
    all = std::move(*known);
  }
  const auto load = make_load(*loaded, options.load);
  if (!load) return load.error();
  if (auto done = measure_rest(options, *loaded, *load, *wanted, settings, all); !done) return done;
  keep_asked(options, all);
  if (options.world.json)
    fmt::print("{}", frontier_text(settings, all));
  else
    print_rows(options, *loaded, load->n_problems, *wanted, all);
  if (once) return write_file(options.out, frontier_text(settings, all));
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
  options->world.add_choices(command);
  command.add_option("--seeds", options->seeds, "Clusters to draw")
      ->check(whole_from(1, 1000))
      ->capture_default_str();
  command.add_option("--first-seed", options->first_seed, "Seed of the first cluster")
      ->check(whole_from(0, UINT64_MAX - 1000))
      ->capture_default_str();
  options->load.add(command);
  options->load.ablation.add(command);
  auto* ratio = command
                    .add_option("--memory-ratio", options->memory_ratio,
                                "Expert memory over one replica of the model as stored")
                    ->check(number_from(0.1, 100))
                    ->capture_default_str();
  auto* as_drawn =
      command.add_flag("--memory-as-drawn", options->memory_as_drawn, memory_as_drawn_help)
          ->excludes(ratio);
  command.add_flag("--dense-by-layer", options->dense_by_layer, dense_by_layer_help)
      ->needs(as_drawn);
  command
      .add_option("--rows", options->rows,
                  "Only these rows: strategies (paper) or rows of the table (\"ordermoe 1 %\")")
      ->delimiter(',');
  auto* out = command
                  .add_option("--out", options->out,
                              "Write every measurement as JSON to this file, after each cluster")
                  ->type_name(file_value);
  command
      .add_flag("--continue", options->goes_on,
                "Keep what the file of --out holds, and measure only the clusters that it lacks")
      ->needs(out);
  command.footer(
      "Example:\n  ordermoe testbed frontier --model data/models/lineage --seeds 3 --out "
      "frontier.json\n  ordermoe testbed frontier --model data/models/lineage --seeds 10 --out "
      "frontier.json --continue");
  set_body(command, [options] { return frontier(*options); });
  add_strategy_list(parent);
  add_experiments(parent);
  add_model_comparison(parent);
}

}  // namespace ordermoe::cli
