#include "cli/comparison.hpp"

#include <algorithm>

namespace ordermoe::cli {

void comparison_options::add(CLI::App& command) {
  command.add_option("--requests", requests, "Requests for each strategy")
      ->check(CLI::Range(1u, 100000u))
      ->capture_default_str();
  command.add_option("--rate", rate, "Requests per second, Poisson; 0: all at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command.add_option("--max-new-tokens", max_new_tokens, "New tokens for each request at most")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  command
      .add_option("--scored-tokens", scored_tokens,
                  "Held-out tokens that perplexity is measured on")
      ->check(CLI::Range(16u, 10'000'000u))
      ->capture_default_str();
  command.add_option("--problems", problems, "Arithmetic problems for exact match")
      ->check(CLI::Range(1u, 100000u))
      ->capture_default_str();
  command
      .add_option("--concurrency", concurrency,
                  "Requests in flight that the ordermoe planner expects")
      ->check(CLI::Range(1.0, 1e4))
      ->capture_default_str();
  command.add_option("--search-steps", search_steps, "Moves that the ordermoe planner tries")
      ->capture_default_str();
}

planning::strategy_options comparison_options::planning(double quality_percent,
                                                        std::uint64_t seed) const {
  planning::strategy_options choice;
  choice.quality_percent = quality_percent;
  choice.seed = seed;
  choice.search_steps = search_steps;
  choice.concurrency = concurrency;
  choice.expected_rate = rate;
  return choice;
}

void comparison::move_to(const cluster& servers, double rate, std::uint64_t seed) {
  auto& setup = content.setup;
  setup.servers = servers;
  setup.seed = seed;
  actors::draw_arrivals(setup.requests, setup.servers, rate, seed);
}

result<comparison> make_comparison(const world& loaded, const comparison_options& options,
                                   std::uint64_t seed) {
  const auto data = data_folder() / "eval";
  comparison made;
  auto prompts = read_prompts((data / "prompts.jsonl").string());
  if (!prompts) return prompts.error();
  for (auto& prompt : *prompts) made.prompts.push_back(std::move(prompt.text));
  auto documents = read_documents(data / "held-out.txt", *loaded.tokens,
                                  std::min<std::size_t>(256, loaded.model->config().max_context),
                                  options.scored_tokens);
  if (!documents) return documents.error();
  made.content.scored_documents = std::move(*documents);
  auto problems = model::read_problems(data / "problems.jsonl");
  if (!problems) return problems.error();
  problems->resize(std::min(problems->size(), options.problems));
  made.content.problems = std::move(*problems);

  auto& setup = made.content.setup;
  setup = setup_of(loaded, seed);
  for (std::size_t i = 0; i < options.requests; ++i) {
    actors::request_spec spec;
    spec.prompt = loaded.tokens->encode(made.prompts[i % made.prompts.size()]);
    spec.max_new_tokens = options.max_new_tokens;
    setup.requests.push_back(std::move(spec));
  }
  made.move_to(loaded.servers, options.rate, seed);
  return made;
}

}  // namespace ordermoe::cli
