#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "bench/experiments/workloads.hpp"
#include "cli/common.hpp"
#include "cli/connection.hpp"
#include "cli/eval_connected.hpp"
#include "cli/planning_flags.hpp"
#include "cli/table.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "config/node_file.hpp"
#include "setup/preparation.hpp"

namespace ordermoe::cli {

namespace {

namespace fs = std::filesystem;

struct eval_options {
  world_flags world;
  std::string strategy = "ordermoe", quality = "0", text, problems, wikitext, squad, gsm8k;
  std::string plan, losses;  ///< Files.
  std::size_t tokens = 10240, prompt_tokens = 1, n_problems = 0, stride = 0, limit = 0;
  std::size_t search_steps = planning::strategy_options{}.search_steps;
  ablation_flags ablation;
  bool skip_long = false;
  double load_period_ms = node_file{}.load_period_ms, rate = experiments::workload{}.rate;
  connection_flags connection;

  bool asks() const { return !squad.empty() || !gsm8k.empty(); }
};

/// What texts and problems are made of for a model.
struct reader_of_texts {
  const model::tokenizer& tokens;
  std::size_t context;  ///< Of the model.
};

/// Overlapping windows: each begins `stride` tokens after the one before, and only what the one
/// before has not predicted counts.
setup::token_documents sliding_windows(std::span<const std::int32_t> ids, std::size_t context,
                                       std::size_t stride) {
  setup::token_documents parts;
  for (std::size_t start = 0;; start += stride) {
    const auto part = ids.subspan(start, std::min(context, ids.size() - start));
    parts.emplace_back(part.begin(), part.end());
    if (start + context >= ids.size()) return parts;
  }
}

result<experiments::workload> wikitext_of(const eval_options& options,
                                          const reader_of_texts& loaded) {
  const auto text = model::read_wikitext(options.wikitext);
  if (!text) return text.error();
  auto ids = loaded.tokens.encode(*text);
  ids.resize(std::min(ids.size(), options.tokens));
  const auto context = loaded.context;
  const auto stride = options.stride == 0 ? context / 2 : options.stride;
  if (stride >= context)
    return error{errc::usage, fmt::format("--stride {}: expected fewer than the {} tokens of the "
                                          "model's context",
                                          stride, context)};
  if (ids.size() < 2)
    return error{errc::out_of_range, options.wikitext +
                                         ": the text has fewer than two tokens; give "
                                         "a longer one"};
  return experiments::scoring(sliding_windows(ids, context, stride), context - stride);
}

result<experiments::workload> text_of(const eval_options& options, const reader_of_texts& loaded) {
  const auto part = std::min<std::size_t>(256, loaded.context);
  if (options.prompt_tokens >= part)
    return error{errc::usage,
                 fmt::format("--prompt-tokens {}: expected fewer than the {} tokens of "
                             "each part of the text, so that some are scored",
                             options.prompt_tokens, part)};
  const auto documents =
      setup::read_documents(options.text.empty() ? setup::data_folder() / "eval" / "held-out.txt"
                                                 : fs::path(options.text),
                            loaded.tokens, part, options.tokens);
  if (!documents) return documents.error();
  return experiments::scoring(*documents, 1, options.prompt_tokens);
}

result<experiments::workload> problems_of(const eval_options& options,
                                          const reader_of_texts& loaded) {
  auto problems = model::read_problems(options.problems.empty()
                                           ? setup::data_folder() / "eval" / "problems.jsonl"
                                           : fs::path(options.problems));
  if (!problems) return problems.error();
  if (options.n_problems > 0) problems->resize(std::min(problems->size(), options.n_problems));
  return experiments::solving(std::move(*problems), loaded.tokens);
}

/// Those questions that the model's context holds, `limit` at most.
result<std::vector<model::question>> short_questions(std::vector<model::question> all,
                                                     std::uint32_t answer_tokens,
                                                     const eval_options& options,
                                                     const reader_of_texts& loaded) {
  const auto context = loaded.context;
  std::vector<model::question> kept;
  std::size_t n_long = 0;
  for (auto& question : all) {
    if (options.limit > 0 && kept.size() == options.limit) break;
    const auto tokens = loaded.tokens.encode(question.prompt).size();
    if (tokens + answer_tokens <= context) {
      kept.push_back(std::move(question));
      continue;
    }
    if (!options.skip_long)
      return error{errc::out_of_range,
                   fmt::format("{}: question {} takes {} tokens and {} for its answer, the "
                               "model's context is {}; leave such questions out with --skip-long",
                               options.squad.empty() ? options.gsm8k : options.squad, question.id,
                               tokens, answer_tokens, context)};
    ++n_long;
  }
  if (n_long > 0)
    fmt::print(stderr, "{} questions are longer than the context and left out\n", n_long);
  if (kept.empty())
    return error{errc::out_of_range, "every question is longer than the model's context"};
  return kept;
}

result<experiments::workload> questions_of(const eval_options& options,
                                           const reader_of_texts& loaded) {
  const auto rules = options.squad.empty() ? experiments::question_rules::gsm8k
                                           : experiments::question_rules::squad;
  auto all =
      options.squad.empty() ? model::read_gsm8k(options.gsm8k) : model::read_squad(options.squad);
  if (!all) return all.error();
  auto kept = short_questions(std::move(*all), experiments::answer_tokens(rules), options, loaded);
  if (!kept) return kept.error();
  return experiments::asking(std::move(*kept), rules, loaded.tokens);
}

/// Everything that is to be scored.
result<std::vector<experiments::workload>> workloads_of(const eval_options& options,
                                                        const reader_of_texts& loaded) {
  std::vector<experiments::workload> all;
  using reader = result<experiments::workload> (*)(const eval_options&, const reader_of_texts&);
  std::vector<reader> readers;
  if (!options.wikitext.empty()) readers.push_back(wikitext_of);
  if (options.wikitext.empty() && !options.asks()) readers.push_back(text_of);
  if (options.n_problems > 0 || !options.problems.empty()) readers.push_back(problems_of);
  if (options.asks()) readers.push_back(questions_of);
  for (const auto read : readers) {
    auto made = read(options, loaded);
    if (!made) return made.error();
    made->rate = options.rate;
    all.push_back(std::move(*made));
  }
  return all;
}

setup::preparation_request request_of(const eval_options& options, double quality_percent) {
  setup::preparation_request request;
  request.strategy = options.strategy;
  request.seed = options.world.seed;
  request.options.quality_percent = quality_percent;
  request.options.seed = options.world.seed;
  request.options.search_steps = options.search_steps;
  request.options.choose_precision = options.world.choose_precision;
  request.options.choose_pruning = options.world.choose_pruning;
  return request;
}

/// A plan that is given is run as it was made.
result<setup::preparation_request> request_of(const eval_options& options,
                                              const std::optional<setup::plan_file>& given) {
  if (given) {
    auto request = request_of(options, given->origin.quality_percent);
    request.strategy = given->origin.strategy;
    auto with_plan = setup::request_with(*given, std::move(request));
    if (with_plan)
      if (auto good = check_strategy(*with_plan); !good) return good.error();
    return with_plan;
  }
  const auto quality = parse_quality(options.quality);
  if (!quality) return quality.error();
  auto request = request_of(options, *quality);
  if (auto good = options.ablation.apply(request); !good) return good.error();
  if (auto good = check_strategy(request); !good) return good.error();
  return request;
}

result<experiments::strategy_report> measure(const eval_options& options,
                                             const setup::world& loaded,
                                             const setup::preparation_request& request) {
  const auto workloads =
      workloads_of(options, {*loaded.tokens, loaded.model->config().max_context});
  if (!workloads) return workloads.error();
  const progress_display shown;
  auto ready = setup::prepare(loaded, request, work());
  if (ready && options.world.own_weights)
    ready = setup::with_own_weights(loaded, std::move(*ready));
  if (!ready) return ready.error();
  ready->service.load_period_ns = static_cast<std::int64_t>(options.load_period_ms * 1e6);
  return experiments::measure(ready->service, *workloads, work());
}

void print_scores(const experiments::strategy_report& measured) {
  fmt::print("{}", planning::printed_strategy_name(measured.name));
  if (measured.perplexity)
    fmt::print(": perplexity {:.4f} over {} tokens", *measured.perplexity, measured.losses.size());
  if (measured.questions)
    fmt::print(": exact match {:.4f}, F1 {:.4f} over {} questions", measured.questions->exact_match,
               measured.questions->f1, measured.n_questions);
  if (measured.exact_match)
    fmt::print(", exact match {:.3f} over {} problems", *measured.exact_match, measured.n_problems);
  if (measured.budget_spent_ratio)
    fmt::print(", {:.0f} % of the budget spent", 100 * *measured.budget_spent_ratio);
  if (measured.predicted_increase_percent)
    fmt::print(", predicted increase {:.3f} %", *measured.predicted_increase_percent);
  fmt::print("\n");
  print_whole_model(measured);
  print_pruning(measured);
  print_left_out(measured);
}

/// Shares of the slots, where they are known.
void print_executions(const experiments::strategy_report& measured) {
  const auto& share = measured.execution;
  if (share[0] + share[1] + share[2] + share[3] + share[4] <= 0) return;
  fmt::print(
      "slots run where the token was: exactly {:.1f} %, by substitutes {:.1f} %; elsewhere: "
      "{:.1f} %, {:.1f} %\n",
      100 * share[0], 100 * share[1], 100 * share[2], 100 * share[3]);
}

result<void> write_losses(const eval_options& options,
                          const experiments::strategy_report& measured) {
  if (options.losses.empty()) return {};
  return write_file(options.losses, json_text(nlohmann::json(measured.losses)) + "\n");
}

result<void> evaluate_connected(const eval_options& options) {
  auto cluster = connected_cluster::connect(options.connection.address, options.connection.folder);
  if (!cluster) return cluster.error();
  const auto outlook = (*cluster)->look(options.world.model);
  if (!outlook) return outlook.error();
  auto service = outlook->service;
  service.seed = options.world.seed;
  tell_of_devices(service.servers);
  const auto workloads = workloads_of(options, {*service.tokens, outlook->shape.max_context});
  if (!workloads) return workloads.error();
  serving::execution_counts executions{};
  auto measured = [&] {
    const progress_display shown;
    return experiments::measure(service, *workloads, work(), [&](const actors::run_setup& asked) {
      auto answered = (*cluster)->answer(asked);
      if (answered)
        for (std::size_t i = 0; i < executions.size(); ++i)
          executions[i] += answered->executions[i];
      return answered;
    });
  }();
  if (!measured) return measured.error();
  if (auto written = write_losses(options, *measured); !written) return written;
  double slots = 0;
  for (const auto count : executions) slots += static_cast<double>(count);
  for (std::size_t i = 0; i < executions.size() && slots > 0; ++i)
    measured->execution[i] = static_cast<double>(executions[i]) / slots;
  const experiments::report_header header{outlook->model_name, service.servers.name,
                                          service.costs.name,  "wall",
                                          options.world.seed,  service.servers};
  if (options.world.json) {
    fmt::print("{}", experiments::report_json(header, {*measured}, false));
    return {};
  }
  print_scores(*measured);
  print_executions(*measured);
  return {};
}

result<void> check_sources(const CLI::App& command, const eval_options& options) {
  auto inputs = files_of(options.world.model);
  for (const auto& each : files_of(setup::data_folder() / "eval")) inputs.push_back(each);
  for (const auto* each :
       {&options.text, &options.wikitext, &options.squad, &options.gsm8k, &options.problems,
        &options.plan, &options.world.cluster, &options.world.profile})
    inputs.emplace_back(*each);
  if (auto good = check_output("--losses", options.losses, inputs); !good) return good;
  for (const char* name : {"--limit", "--skip-long"})
    if (!options.asks() && command.count(name) > 0)
      return error{errc::usage,
                   fmt::format("{}: is for --squad and --gsm8k; problems have --n-problems", name)};
  for (const char* name : {"--tokens", "--prompt-tokens"})
    if (options.asks() && command.count(name) > 0)
      return error{errc::usage, fmt::format("{}: is for texts; questions have --limit", name)};
  if (!options.plan.empty())
    for (const char* name : {"--strategy", "--quality-budget", "--search-steps", "--own-weights",
                             "--threshold", "--ablate"})
      if (command.count(name) > 0)
        return error{errc::usage,
                     fmt::format("{}: a plan has its own; leave it out with --plan", name)};
  const bool connected = options.connection.given();
  if (!connected && (options.world.model.empty() || options.world.cluster.empty()))
    return error{errc::usage,
                 "give --model DIR and --cluster FILE, or --connect ADDRESS and --dir DIR for a "
                 "cluster that runs"};
  if (!connected) return {};
  for (const char* name :
       {"--cluster", "--costs", "--kv-precision", "--profile", "--strategy", "--quality-budget",
        "--expert-precision", "--dense-precision", "--choose-precision", "--choose-pruning",
        "--own-weights", "--search-steps", "--plan", "--device", "--threshold", "--ablate",
        "--load-period-ms"})
    if (command.count(name) > 0)
      return error{
          errc::usage,
          fmt::format("{}: a cluster that runs has its own; leave it out with --connect", name)};
  return {};
}

result<void> evaluate(const eval_options& options) {
  std::optional<setup::plan_file> given;
  if (!options.plan.empty()) {
    auto read = setup::read_plan_file(options.plan);
    if (!read) return read.error();
    given = std::move(*read);
  }
  const auto request = request_of(options, given);
  if (!request) return request.error();
  const auto loaded = load_world(options.world, given, *request);
  if (!loaded) return loaded.error();
  const auto measured = measure(options, *loaded, *request);
  if (!measured) return measured.error();
  if (auto written = write_losses(options, *measured); !written) return written;
  const experiments::report_header header{loaded->model_name, loaded->servers.name,
                                          loaded->costs.name, "virtual",
                                          options.world.seed, loaded->servers};
  if (options.world.json)
    fmt::print("{}", experiments::report_json(header, {*measured}, false));
  else
    print_scores(*measured);
  return {};
}

}  // namespace

void add_eval(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "eval",
      "Score a strategy: perplexity and arithmetic exact match, executed through the actors");
  auto options = std::make_shared<eval_options>();
  options->world.add(command, true);
  for (const char* name : {"--model", "--cluster"}) command.get_option(name)->required(false);
  options->connection.add(command,
                          "Address of a node of a cluster that runs: it scores, by its own plan");
  options->world.add_precisions(command);
  add_device(command, options->world.device);
  options->world.add_server_weights(command);
  add_strategy(command, options->strategy, "How experts are placed and chosen")
      ->capture_default_str();
  command
      .add_option("--quality-budget", options->quality,
                  "Perplexity increase allowed, in per cent, or unbounded")
      ->capture_default_str();
  command
      .add_option("--plan", options->plan,
                  "Run this plan.json, by its strategy and budget, instead of making one")
      ->type_name(file_value);
  command
      .add_option("--losses", options->losses,
                  "File for the loss of each scored token, in nats (a JSON array)")
      ->type_name(file_value);
  auto* text =
      command
          .add_option("--text", options->text, "Text to score; default: the bundled held-out text")
          ->type_name(file_value);
  command.add_option("--tokens", options->tokens, "Tokens of it at most")
      ->check(whole_from(2, 100'000'000))
      ->capture_default_str();
  auto* wikitext = command
                       .add_option("--wikitext", options->wikitext,
                                   "A raw WikiText file: sliding-window perplexity instead")
                       ->type_name(file_value)
                       ->excludes(text);
  command
      .add_option("--prompt-tokens", options->prompt_tokens,
                  "Of each part of the text the first so many tokens are computed as a prompt is, "
                  "and the others scored")
      ->check(whole_from(1, 1'000'000))
      ->excludes(wikitext)
      ->capture_default_str();
  command
      .add_option("--stride", options->stride,
                  "Tokens from one window to the next; default: half of the context")
      ->check(whole_from(1, 1'000'000))
      ->needs(wikitext);
  auto* squad = command
                    .add_option("--squad", options->squad,
                                "A SQuAD 1.1 or 2.0 file: exact match and F1 instead")
                    ->type_name(file_value)
                    ->excludes(text);
  command.add_option("--gsm8k", options->gsm8k, "A GSM8K file: share of right numbers instead")
      ->type_name(file_value)
      ->excludes(squad)
      ->excludes(text);
  command.add_option("--limit", options->limit, "Only the first questions; 0: all")
      ->check(whole_from(0, 1'000'000'000))
      ->capture_default_str();
  command.add_flag("--skip-long", options->skip_long,
                   "Leave out questions that the model's context cannot hold");
  command
      .add_option("--problems", options->problems, "Problems file, {\"prompt\", \"answer\"} a line")
      ->type_name(file_value);
  command
      .add_option("--n-problems", options->n_problems,
                  "Score this many problems (of the bundled file unless --problems)")
      ->check(whole_from(0, 1'000'000'000));
  command
      .add_option(
          "--rate", options->rate,
          "Texts, problems or questions per second, Poisson; 0: all at once. What is chosen "
          "hangs on the load, and budgets are tuned for that of requests")
      ->check(number_from(0, 1e6))
      ->capture_default_str();
  add_search_steps(command, options->search_steps);
  command
      .add_option("--load-period-ms", options->load_period_ms,
                  "How often a server that works looks whether to tell the others of its waits; 0: "
                  "never")
      ->check(number_from(0, 60'000))
      ->capture_default_str();
  options->ablation.add(command);
  command.footer(
      "Examples:\n  ordermoe eval --model data/models/lineage --cluster data/clusters/edge8.toml "
      "--strategy ordermoe --quality-budget 1 --n-problems 50\n"
      "  ordermoe eval --connect 127.0.0.1:7400 --dir edge --n-problems 50");
  set_body(command, [options, &command] {
    if (auto good = check_sources(command, *options); !good) return good;
    return options->connection.given() ? evaluate_connected(*options) : evaluate(*options);
  });
}

}  // namespace ordermoe::cli
