#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "cli/common.hpp"

namespace ordermoe::cli {

namespace {

struct demo_options {
  std::string model = "lineage", cluster, costs = "mixtral-8x7b";
  std::uint64_t seed = 1;
  std::size_t requests = 48, scored_tokens = 2048, problems = 24, search_steps = 20000;
  std::uint32_t max_new_tokens = 48;
  double rate = 4, concurrency = 4;
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
  auto prompts = read_prompts((data / "eval" / "prompts.jsonl").string());
  if (!prompts) return prompts.error();
  auto documents = read_documents(data / "eval" / "held-out.txt", *loaded->tokens,
                                  std::min<std::size_t>(256, loaded->model->config().max_context),
                                  options.scored_tokens);
  if (!documents) return documents.error();
  auto problems = model::read_problems(data / "eval" / "problems.jsonl");
  if (!problems) return problems.error();
  problems->resize(std::min(problems->size(), options.problems));

  actors::experiment content;
  auto& setup = content.setup;
  setup.model = loaded->model;
  setup.tokens = loaded->tokens;
  setup.servers = loaded->servers;
  setup.costs = loaded->costs;
  setup.experts = loaded->experts;
  setup.seed = options.seed;
  setup.should_stop = stop_requested;
  for (std::size_t i = 0; i < options.requests; ++i) {
    actors::request_spec spec;
    spec.number = i;
    spec.prompt = loaded->tokens->encode((*prompts)[i % prompts->size()]);
    spec.max_new_tokens = options.max_new_tokens;
    setup.requests.push_back(std::move(spec));
  }
  actors::draw_arrivals(setup.requests, setup.servers, options.rate, options.seed);
  content.scored_documents = *documents;
  content.problems = *problems;

  const std::vector<row> rows = {
      {"exact", 0}, {"layer-shards", 0}, {"local-only", 7}, {"router-restricted", 0}, {"paper", 1},
      {"paper", 7}, {"ordermoe", 0},     {"ordermoe", 1},   {"ordermoe", 7}};
  std::vector<actors::strategy_report> reports;
  {
    progress_line line("comparing");
    for (std::size_t i = 0; i < rows.size(); ++i) {
      line.show(static_cast<double>(i) / static_cast<double>(rows.size()), rows[i].strategy);
      actors::strategy_options choice;
      choice.quality_percent = rows[i].percent;
      choice.seed = options.seed;
      choice.search_steps = options.search_steps;
      choice.concurrency = options.concurrency;
      choice.expected_rate = options.rate;
      setup.experts = loaded->experts;
      if (auto ready = choose_strategy(setup, rows[i].strategy, choice); !ready)
        return at(rows[i].strategy, ready.error());
      auto measured = actors::measure(content);
      if (!measured) return at(rows[i].strategy, measured.error());
      reports.push_back(std::move(*measured));
    }
  }
  const actors::report_header header{loaded->model_name, loaded->servers.name, loaded->costs.name,
                                     "virtual", options.seed};
  if (options.json) {
    fmt::print("{}", actors::report_json(header, reports, false));
    return {};
  }
  const auto& best = reports.back();
  fmt::print("Answers (ordermoe, budget {:g} % perplexity):\n\n", *best.quality_budget_percent);
  for (std::size_t i = 0; i < 4 && i < best.outcomes.size(); ++i)
    fmt::print("  > {}\n    {}\n\n", (*prompts)[i % prompts->size()], best.outcomes[i].text);
  fmt::print("Model {}, cluster {} ({} servers), virtual clock, charged as {}, seed {}.\n",
             header.model, header.cluster, loaded->servers.size(), header.cost_profile,
             header.seed);
  fmt::print(
      "{} requests, Poisson {:g} a second, up to {} new tokens each; perplexity over {} "
      "teacher-forced tokens, exact match over {} problems.\n\n",
      options.requests, options.rate, options.max_new_tokens, best.losses.size(), best.n_problems);
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
  command.add_option("--requests", options->requests, "Requests for each strategy")
      ->check(CLI::Range(1u, 100000u))
      ->capture_default_str();
  command.add_option("--rate", options->rate, "Requests per second, Poisson; 0: all at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--max-new-tokens", options->max_new_tokens,
                  "New tokens for each request at most")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command
      .add_option("--scored-tokens", options->scored_tokens,
                  "Held-out tokens that perplexity is measured on")
      ->check(CLI::Range(16u, 10'000'000u))
      ->capture_default_str();
  command.add_option("--problems", options->problems, "Arithmetic problems for exact match")
      ->check(CLI::Range(1u, 100000u))
      ->capture_default_str();
  command
      .add_option("--concurrency", options->concurrency,
                  "Requests in flight that the ordermoe planner expects")
      ->check(CLI::Range(1.0, 1e4))
      ->capture_default_str();
  command
      .add_option("--search-steps", options->search_steps, "Moves that the ordermoe planner tries")
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Seed of arrivals and plans")->capture_default_str();
  command.add_flag("--json", options->json, "Print the report as JSON");
  command.footer("Example:\n  ordermoe demo --seed 1");
  set_body(command, [options] { return demo(*options); });
}

}  // namespace ordermoe::cli
