#include "cli/comparison.hpp"

#include <algorithm>

#include "cli/planning_flags.hpp"

namespace ordermoe::cli {

void comparison_options::add(CLI::App& command) {
  command.add_option("--requests", requests, "Requests for each strategy")
      ->check(whole_from(1, 100'000))
      ->capture_default_str();
  command.add_option("--rate", rate, "Requests per second, Poisson; 0: all at once")
      ->check(number_from(0, 1e6))
      ->capture_default_str();
  command.add_option("--max-new-tokens", max_new_tokens, "New tokens for each request at most")
      ->check(whole_from(1, 4096))
      ->capture_default_str();
  command.add_flag("--equal-lengths", equal_lengths,
                   "Answers go on to --max-new-tokens, also behind an end of text: all strategies "
                   "give as many tokens, whatever they say");
  command
      .add_option("--scored-tokens", scored_tokens,
                  "Held-out tokens that perplexity is measured on")
      ->check(whole_from(16, 10'000'000))
      ->capture_default_str();
  command.add_option("--problems", problems, "Arithmetic problems for exact match")
      ->check(whole_from(1, 100'000))
      ->capture_default_str();
  command.add_option("--concurrency", concurrency, "Requests in flight that planners expect")
      ->check(number_from(1, 1e4))
      ->capture_default_str();
  command.add_flag("--concurrency-by-trial", concurrency_by_trial,
                   "Plan again for as many requests as a trial had in flight, where that is less "
                   "than half of --concurrency or more than twice, and take what answers faster");
  add_search_steps(command, search_steps);
  add_trial_requests(command, trial_requests);
}

namespace {

/// As many tokens are in flight as of the requests: waits at servers and links change what is decided, so
/// quality is measured under the load under which latency is. Texts are longer and come more rarely.
double scoring_rate(const setup::token_documents& documents, const comparison_options& options) {
  double tokens = 0;
  for (const auto& document : documents) tokens += static_cast<double>(document.size());
  const auto mean = tokens / static_cast<double>(std::max<std::size_t>(1, documents.size()));
  return options.rate * options.max_new_tokens / std::max(1.0, mean);
}

}  // namespace

result<bundled_load> make_load(const setup::world& loaded, const comparison_options& options) {
  const auto data = setup::data_folder() / "eval";
  bundled_load made;
  const auto prompts = setup::read_prompts((data / "prompts.jsonl").string());
  if (!prompts) return prompts.error();
  for (const auto& prompt : *prompts) made.prompts.push_back(prompt.text);
  const auto documents = setup::read_documents(
      data / "held-out.txt", *loaded.tokens,
      std::min<std::size_t>(256, loaded.model->config().max_context), options.scored_tokens);
  if (!documents) return documents.error();
  auto problems = model::read_problems(data / "problems.jsonl");
  if (!problems) return problems.error();
  problems->resize(std::min(problems->size(), options.problems));
  made.n_problems = problems->size();

  std::vector<actors::request_spec> requests;
  for (std::size_t i = 0; i < options.requests; ++i) {
    actors::request_spec spec;
    spec.prompt = loaded.tokens->encode(made.prompts[i % made.prompts.size()]);
    spec.max_new_tokens = options.max_new_tokens;
    spec.ignore_end_of_text = options.equal_lengths;
    requests.push_back(std::move(spec));
  }
  made.workloads.push_back(experiments::answering(std::move(requests), options.rate));
  made.workloads.push_back(experiments::scoring(*documents));
  made.workloads.back().rate = scoring_rate(*documents, options);
  made.workloads.push_back(experiments::solving(std::move(*problems), *loaded.tokens));
  made.workloads.back().rate = options.rate;
  return made;
}

result<experiments::strategy_report> measure_strategy(const setup::world& loaded,
                                                      const bundled_load& load,
                                                      const comparison_options& options,
                                                      const std::string& strategy,
                                                      double quality_percent, std::uint64_t seed,
                                                      const world_flags& choices) {
  setup::preparation_request request;
  request.strategy = strategy;
  request.seed = seed;
  request.options.quality_percent = quality_percent;
  request.options.seed = seed;
  request.options.search_steps = options.search_steps;
  request.options.dry_run_requests = options.trial_requests;
  request.options.concurrency = options.concurrency;
  request.options.concurrency_by_trial = options.concurrency_by_trial;
  request.options.expected_rate = options.rate;
  const auto* record = planning::find_strategy(strategy);
  request.options.choose_precision = choices.choose_precision && record->uses_coarser_copies;
  request.options.choose_pruning = choices.choose_pruning && record->tries_cores;
  options.ablation.apply_those_it_has(request);
  const auto ready = setup::prepare(loaded, request, work());
  if (!ready) return ready.error();
  return experiments::measure(ready->service, load.workloads, work());
}

}  // namespace ordermoe::cli
