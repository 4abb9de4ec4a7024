#include <fmt/format.h>

#include "cli/common.hpp"

namespace ordermoe::cli {

namespace {

struct eval_options {
  world_options world;
  std::string strategy = "ordermoe", quality = "0", text, problems;
  std::size_t tokens = 10240, n_problems = 0, search_steps = 10000;
};

result<void> evaluate(const eval_options& options) {
  const auto quality = parse_quality(options.quality);
  if (!quality) return quality.error();
  const auto loaded = load_world(options.world);
  if (!loaded) return loaded.error();
  actors::experiment content;
  auto& setup = content.setup;
  setup = setup_of(*loaded, options.world.seed);
  const auto data = data_folder() / "eval";
  auto documents = read_documents(
      options.text.empty() ? data / "held-out.txt" : std::filesystem::path(options.text),
      *loaded->tokens, std::min<std::size_t>(256, loaded->model->config().max_context),
      options.tokens);
  if (!documents) return documents.error();
  content.scored_documents = std::move(*documents);
  if (options.n_problems > 0 || !options.problems.empty()) {
    auto problems =
        model::read_problems(options.problems.empty() ? data / "problems.jsonl"
                                                      : std::filesystem::path(options.problems));
    if (!problems) return problems.error();
    if (options.n_problems > 0) problems->resize(std::min(problems->size(), options.n_problems));
    content.problems = std::move(*problems);
  }
  actors::strategy_options choice;
  choice.quality_percent = *quality;
  choice.seed = options.world.seed;
  choice.search_steps = options.search_steps;
  if (auto ready = choose_strategy(setup, options.strategy, choice); !ready) return ready.error();
  result<actors::strategy_report> measured = error{errc::failed, "not run"};
  {
    progress_line line("scoring");
    setup.on_progress = [&](std::size_t done, std::size_t total) {
      line.show(static_cast<double>(done) / static_cast<double>(total));
    };
    measured = actors::measure(content);
  }
  if (!measured) return measured.error();
  const actors::report_header header{loaded->model_name, loaded->servers.name, loaded->costs.name,
                                     "virtual", options.world.seed};
  if (options.world.json) {
    fmt::print("{}", actors::report_json(header, {*measured}, false));
    return {};
  }
  fmt::print("{}: perplexity {:.4f} over {} tokens", measured->name, *measured->perplexity,
             measured->losses.size());
  if (measured->exact_match)
    fmt::print(", exact match {:.3f} over {} problems", *measured->exact_match,
               measured->n_problems);
  if (measured->budget_spent_ratio)
    fmt::print(", {:.0f} % of the budget spent", 100 * *measured->budget_spent_ratio);
  if (measured->predicted_increase_percent)
    fmt::print(", predicted increase {:.3f} %", *measured->predicted_increase_percent);
  fmt::print("\n");
  return {};
}

}  // namespace

void add_eval(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "eval",
      "Score a strategy: perplexity and arithmetic exact match, executed through the actors");
  auto options = std::make_shared<eval_options>();
  options->world.add(command, true);
  command.add_option("--strategy", options->strategy, "How experts are placed and chosen")
      ->check(CLI::IsMember(actors::strategy_names()))
      ->capture_default_str();
  command
      .add_option("--quality-budget", options->quality,
                  "Perplexity increase allowed, in per cent, or unbounded")
      ->capture_default_str();
  command.add_option("--text", options->text, "Text to score; default: the bundled held-out text");
  command.add_option("--tokens", options->tokens, "Tokens of it at most")
      ->check(CLI::Range(2u, 100'000'000u))
      ->capture_default_str();
  command.add_option("--problems", options->problems,
                     "Problems file, {\"prompt\", \"answer\"} a line");
  command.add_option("--n-problems", options->n_problems,
                     "Score this many problems (of the bundled file unless --problems)");
  command
      .add_option("--search-steps", options->search_steps, "Moves that the ordermoe planner tries")
      ->capture_default_str();
  command.footer(
      "Example:\n  ordermoe eval --model data/models/lineage --cluster data/clusters/edge8.toml "
      "--strategy ordermoe --quality-budget 1 --n-problems 50");
  set_body(command, [options] { return evaluate(*options); });
}

}  // namespace ordermoe::cli
