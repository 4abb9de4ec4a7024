#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "cli/comparison.hpp"
#include "cli/table.hpp"

namespace ordermoe::cli {

namespace {

struct demo_options {
  std::string model = "lineage", cluster, costs = "mixtral-8x7b";
  std::uint64_t seed = 1;
  comparison_options load;
  bool json = false;
};

struct row {
  const char* strategy;
  double percent;
};

constexpr row rows[] = {
    {"exact", 0}, {"layer-shards", 0}, {"shard-chains", 0}, {"router-restricted", 0}, {"paper", 1},
    {"paper", 7}, {"ordermoe", 0},     {"ordermoe", 1},     {"ordermoe", 7}};

setup::world_options world_of(const demo_options& options) {
  const auto data = setup::data_folder();
  setup::world_options wanted;
  wanted.model = (data / "models" / options.model).string();
  wanted.cluster =
      options.cluster.empty() ? (data / "clusters" / "edge8.toml").string() : options.cluster;
  wanted.costs = options.costs;
  wanted.seed = options.seed;
  return wanted;
}

result<std::vector<experiments::strategy_report>> measure_rows(const setup::world& loaded,
                                                               const bundled_load& load,
                                                               const demo_options& options) {
  const progress_display shown;
  std::vector<experiments::strategy_report> reports;
  for (const auto& [strategy, percent] : rows) {
    auto measured = measure_strategy(loaded, load, options.load, strategy, percent, options.seed);
    if (!measured) return at(strategy, measured.error());
    reports.push_back(std::move(*measured));
  }
  return reports;
}

/// The text's lines one below the other behind the label.
void print_labelled(const char* label, std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  for (auto line : text | std::views::split('\n')) {
    fmt::print("  {:<8}{}\n", label, std::string_view(line.begin(), line.end()));
    label = "";
  }
}

void print_answers(const experiments::strategy_report& best,
                   const std::vector<std::string>& prompts) {
  constexpr std::size_t n_shown = 4;
  fmt::print("Answers (ordermoe, budget {:g} % perplexity):\n\n", *best.quality_budget_percent);
  for (std::size_t i = 0; i < std::min(n_shown, best.outcomes.size()); ++i) {
    print_labelled("prompt", prompts[i % prompts.size()]);
    print_labelled("answer", best.outcomes[i].text);
    fmt::print("\n");
  }
}

result<void> demo(const demo_options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto loaded = load_world(world_of(options));
  if (!loaded) return loaded.error();
  const auto load = make_load(*loaded, options.load);
  if (!load) return load.error();
  const auto reports = measure_rows(*loaded, *load, options);
  if (!reports) return reports.error();
  const experiments::report_header header{loaded->model_name, loaded->servers.name,
                                          loaded->costs.name, "virtual", options.seed};
  if (options.json) {
    fmt::print("{}", experiments::report_json(header, *reports, false));
    return {};
  }
  const auto& best = reports->back();
  print_answers(best, load->prompts);
  fmt::print("Model {}, cluster {} ({} servers), virtual clock, charged as {}, seed {}.\n",
             header.model, header.cluster, loaded->servers.size(), header.cost_profile,
             header.seed);
  fmt::print(
      "{} requests, Poisson {:g} a second, up to {} new tokens each; perplexity over {} "
      "teacher-forced\ntokens, exact match over {} problems.\n\n",
      options.load.requests, options.load.rate, options.load.max_new_tokens, best.losses.size(),
      best.n_problems);
  print_table(*reports);
  fmt::print(
      "\nms: virtual time. MB/1k: charged megabytes between servers per 1,000 tokens (hidden, KV, "
      "other;\nours: bytes our small model serialised). loc/rem: share of expert slots run where "
      "the token was or\nelsewhere; = exact, ~ substitute; none: left out. EM: arithmetic exact "
      "match.\nspent: share of the quality budget.\nWall clock of this program: {:.1f} s.\n",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return {};
}

}  // namespace

void add_demo(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "demo", "Answer prompts on eight emulated servers and compare strategies");
  auto options = std::make_shared<demo_options>();
  command.add_option("--model", options->model, "Bundled model: lineage or upcycled")
      ->type_name(folder_value)
      ->check(CLI::IsMember({"lineage", "upcycled"}))
      ->capture_default_str();
  command
      .add_option("--cluster", options->cluster, "Cluster file; default: the bundled edge8.toml")
      ->type_name(file_value);
  options->load.scored_tokens = 2048;
  options->load.problems = 24;
  options->load.add(command);
  add_seed(command, options->seed, "Seed of arrivals and plans");
  command.add_flag("--json", options->json, "Print the report as JSON");
  command.footer("Example:\n  ordermoe demo --seed 1");
  set_body(command, [options] { return demo(*options); });
}

}  // namespace ordermoe::cli
