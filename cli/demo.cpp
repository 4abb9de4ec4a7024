#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "cli/comparison.hpp"

namespace ordermoe::cli {

namespace {

struct demo_options {
  std::string model = "lineage", cluster, costs = "mixtral-8x7b";
  std::uint64_t seed = 1;
  comparison_options load;
  bool json = false;
};

struct row {
  std::string strategy;
  double percent;
};

result<void> demo(const demo_options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto data = data_folder();
  world_options wanted;
  wanted.model = (data / "models" / options.model).string();
  wanted.cluster =
      options.cluster.empty() ? (data / "clusters" / "edge8.toml").string() : options.cluster;
  wanted.costs = options.costs;
  wanted.seed = options.seed;
  auto loaded = load_world(wanted);
  if (!loaded) return loaded.error();
  auto made = make_comparison(*loaded, options.load, options.seed);
  if (!made) return made.error();
  const auto& prompts = made->prompts;
  auto& setup = made->content.setup;

  const std::vector<row> rows = {
      {"exact", 0}, {"layer-shards", 0}, {"local-only", 7}, {"router-restricted", 0}, {"paper", 1},
      {"paper", 7}, {"ordermoe", 0},     {"ordermoe", 1},   {"ordermoe", 7}};
  std::vector<experiments::strategy_report> reports;
  {
    progress_line line("comparing");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      line.show(static_cast<double>(i) / static_cast<double>(rows.size()), rows[i].strategy);
      const auto choice = options.load.planning(rows[i].percent, options.seed);
      setup.profile = loaded->experts;
      if (auto ready = choose_strategy(setup, rows[i].strategy, choice); !ready)
        return at(rows[i].strategy, ready.error());
      auto measured = experiments::measure(made->content);
      if (!measured) return at(rows[i].strategy, measured.error());
      reports.push_back(std::move(*measured));
    }
  }
  const experiments::report_header header{loaded->model_name, loaded->servers.name,
                                          loaded->costs.name, "virtual", options.seed};
  if (options.json) {
    fmt::print("{}", experiments::report_json(header, reports, false));
    return {};
  }
  const auto& best = reports.back();
  fmt::print("Answers (ordermoe, budget {:g} % perplexity):\n\n", *best.quality_budget_percent);
  for (std::size_t i = 0; i < 4 && i < best.outcomes.size(); ++i)
    fmt::print("  > {}\n    {}\n\n", prompts[i % prompts.size()], best.outcomes[i].text);
  fmt::print("Model {}, cluster {} ({} servers), virtual clock, charged as {}, seed {}.\n",
             header.model, header.cluster, loaded->servers.size(), header.cost_profile,
             header.seed);
  fmt::print(
      "{} requests, Poisson {:g} a second, up to {} new tokens each; perplexity over {} "
      "teacher-forced tokens, exact match over {} problems.\n\n",
      options.load.requests, options.load.rate, options.load.max_new_tokens, best.losses.size(),
      best.n_problems);
  print_table(reports);
  fmt::print(
      "\nms: virtual time. MB/1k: charged megabytes between servers per 1,000 tokens (hidden, KV, "
      "other; ours: bytes our small model\n"
      "serialised). loc/rem: share of expert slots run where the token was or elsewhere; = exact, "
      "~ substitute. EM: arithmetic exact match.\n"
      "spent: share of the quality budget spent. Wall clock of this program: {:.1f} s.\n",
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return {};
}

}  // namespace

void add_demo(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "demo", "Answer prompts on eight emulated servers and compare strategies");
  auto options = std::make_shared<demo_options>();
  command.add_option("--model", options->model, "Bundled model: lineage or upcycled")
      ->check(CLI::IsMember({"lineage", "upcycled"}))
      ->capture_default_str();
  command.add_option("--cluster", options->cluster,
                     "Cluster file; default: the bundled edge8.toml");
  options->load.scored_tokens = 2048;
  options->load.problems = 24;
  options->load.add(command);
  command.add_option("--seed", options->seed, "Seed of arrivals and plans")->capture_default_str();
  command.add_flag("--json", options->json, "Print the report as JSON");
  command.footer("Example:\n  ordermoe demo --seed 1");
  set_body(command, [options] { return demo(*options); });
}

}  // namespace ordermoe::cli
