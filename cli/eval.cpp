#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "cli/common.hpp"

namespace ordermoe::cli {

namespace {

struct eval_options {
  world_options world;
  std::string strategy = "ordermoe", quality = "0", text, problems, wikitext, squad, gsm8k;
  std::size_t tokens = 10240, n_problems = 0, search_steps = 10000, stride = 0, limit = 0;
  bool skip_long = false;
};

/// Overlapping windows: each begins `stride` tokens after the one before, and only what the one
/// before has not predicted counts.
std::vector<std::vector<std::int32_t>> sliding_windows(std::span<const std::int32_t> ids,
                                                       std::size_t context, std::size_t stride) {
  std::vector<std::vector<std::int32_t>> parts;
  for (std::size_t start = 0;; start += stride) {
    const auto part = ids.subspan(start, std::min(context, ids.size() - start));
    parts.emplace_back(part.begin(), part.end());
    if (start + context >= ids.size()) return parts;
  }
}

result<void> add_wikitext(const eval_options& options, const world& loaded,
                          experiments::experiment& content) {
  auto text = model::read_wikitext(options.wikitext);
  if (!text) return text.error();
  auto ids = loaded.tokens->encode(*text);
  ids.resize(std::min(ids.size(), options.tokens));
  const auto context = loaded.model->config().max_context;
  const auto stride = options.stride == 0 ? context / 2 : options.stride;
  if (stride >= context)
    return error{errc::usage, fmt::format("--stride {}: expected fewer than the {} tokens of the "
                                          "model's context",
                                          stride, context)};
  if (ids.size() < 2)
    return error{errc::out_of_range, options.wikitext +
                                         ": the text has fewer than two tokens; give "
                                         "a longer one"};
  content.scored_documents = sliding_windows(ids, context, stride);
  content.context_tokens = context - stride;
  return {};
}

result<void> add_questions(const eval_options& options, const world& loaded,
                           experiments::experiment& content) {
  const bool squad = !options.squad.empty();
  auto questions = squad ? model::read_squad(options.squad) : model::read_gsm8k(options.gsm8k);
  if (!questions) return questions.error();
  auto& asked = content.asked;
  asked.answer_tokens = squad ? 32 : 256;
  const auto context = loaded.model->config().max_context;
  std::size_t n_long = 0;
  for (auto& question : *questions) {
    if (options.limit > 0 && asked.questions.size() == options.limit) break;
    const auto tokens = loaded.tokens->encode(question.prompt).size();
    if (tokens + asked.answer_tokens > context) {
      if (!options.skip_long)
        return error{errc::out_of_range,
                     fmt::format("{}: question {} takes {} tokens and {} for its answer, the "
                                 "model's context is {}; leave such questions out with --skip-long",
                                 squad ? options.squad : options.gsm8k, question.id, tokens,
                                 asked.answer_tokens, context)};
      ++n_long;
      continue;
    }
    asked.questions.push_back(std::move(question));
  }
  if (n_long > 0)
    fmt::print(stderr, "{} questions are longer than the context and left out\n", n_long);
  if (asked.questions.empty())
    return error{errc::out_of_range, "every question is longer than the model's context"};
  if (squad) {
    asked.stop_strings = {"\n"};
    asked.score = [](const std::string& text, const model::question& question) {
      return model::score_squad(text, question.answers);
    };
  } else {
    asked.stop_strings = {"\nQuestion:"};
    asked.score = [](const std::string& text, const model::question& question) {
      const bool right = model::gsm8k_answer(text) == question.answers.front();
      return model::squad_score{right ? 1.0 : 0.0, right ? 1.0 : 0.0};
    };
  }
  return {};
}

result<void> evaluate(const eval_options& options) {
  const auto quality = parse_quality(options.quality);
  if (!quality) return quality.error();
  const auto loaded = load_world(options.world);
  if (!loaded) return loaded.error();
  experiments::experiment content;
  auto& setup = content.setup;
  setup = setup_of(*loaded, options.world.seed);
  const auto data = data_folder() / "eval";
  const bool asks = !options.squad.empty() || !options.gsm8k.empty();
  if (!options.wikitext.empty())
    if (auto done = add_wikitext(options, *loaded, content); !done) return done;
  if (asks)
    if (auto done = add_questions(options, *loaded, content); !done) return done;
  if (!asks && options.wikitext.empty()) {
    auto documents = read_documents(
        options.text.empty() ? data / "held-out.txt" : std::filesystem::path(options.text),
        *loaded->tokens, std::min<std::size_t>(256, loaded->model->config().max_context),
        options.tokens);
    if (!documents) return documents.error();
    content.scored_documents = std::move(*documents);
  }
  if (options.n_problems > 0 || !options.problems.empty()) {
    auto problems =
        model::read_problems(options.problems.empty() ? data / "problems.jsonl"
                                                      : std::filesystem::path(options.problems));
    if (!problems) return problems.error();
    if (options.n_problems > 0) problems->resize(std::min(problems->size(), options.n_problems));
    content.problems = std::move(*problems);
  }
  planning::strategy_options choice;
  choice.quality_percent = *quality;
  choice.seed = options.world.seed;
  choice.search_steps = options.search_steps;
  choice.choose_precision = options.world.choose_precision;
  if (auto coarser = load_coarser(setup, options.world, choice); !coarser) return coarser.error();
  if (auto ready = choose_strategy(setup, options.strategy, choice); !ready) return ready.error();
  if (auto own = load_own_weights(setup, options.world); !own) return own.error();
  result<experiments::strategy_report> measured = error{errc::failed, "not run"};
  {
    progress_line line("scoring");
    setup.on_progress = [&](std::size_t done, std::size_t total) {
      line.show(static_cast<double>(done) / static_cast<double>(total));
    };
    measured = experiments::measure(content);
  }
  if (!measured) return measured.error();
  const experiments::report_header header{loaded->model_name, loaded->servers.name,
                                          loaded->costs.name, "virtual", options.world.seed};
  if (options.world.json) {
    fmt::print("{}", experiments::report_json(header, {*measured}, false));
    return {};
  }
  fmt::print("{}", measured->name);
  if (measured->perplexity)
    fmt::print(": perplexity {:.4f} over {} tokens", *measured->perplexity,
               measured->losses.size());
  if (measured->questions)
    fmt::print(": exact match {:.4f}, F1 {:.4f} over {} questions",
               measured->questions->exact_match, measured->questions->f1, measured->n_questions);
  if (measured->exact_match)
    fmt::print(", exact match {:.3f} over {} problems", *measured->exact_match,
               measured->n_problems);
  if (measured->budget_spent_ratio)
    fmt::print(", {:.0f} % of the budget spent", 100 * *measured->budget_spent_ratio);
  if (measured->predicted_increase_percent)
    fmt::print(", predicted increase {:.3f} %", *measured->predicted_increase_percent);
  fmt::print("\n");
  print_whole_model(*measured);
  return {};
}

}  // namespace

void add_eval(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "eval",
      "Score a strategy: perplexity and arithmetic exact match, executed through the actors");
  auto options = std::make_shared<eval_options>();
  options->world.add(command, true);
  options->world.add_precisions(command);
  options->world.add_server_weights(command);
  command.add_option("--strategy", options->strategy, "How experts are placed and chosen")
      ->check(CLI::IsMember(planning::strategy_names()))
      ->capture_default_str();
  command
      .add_option("--quality-budget", options->quality,
                  "Perplexity increase allowed, in per cent, or unbounded")
      ->capture_default_str();
  command.add_option("--text", options->text, "Text to score; default: the bundled held-out text");
  command.add_option("--tokens", options->tokens, "Tokens of it at most")
      ->check(CLI::Range(2u, 100'000'000u))
      ->capture_default_str();
  auto* wikitext = command.add_option("--wikitext", options->wikitext,
                                      "A raw WikiText file: sliding-window perplexity instead");
  command
      .add_option("--stride", options->stride,
                  "Tokens from one window to the next; default: half of the context")
      ->needs(wikitext);
  auto* squad = command.add_option("--squad", options->squad,
                                   "A SQuAD 1.1 or 2.0 file: exact match and F1 instead");
  command.add_option("--gsm8k", options->gsm8k, "A GSM8K file: share of right numbers instead")
      ->excludes(squad);
  command.add_option("--limit", options->limit, "Only the first questions; 0: all")
      ->capture_default_str();
  command.add_flag("--skip-long", options->skip_long,
                   "Leave out questions that the model's context cannot hold");
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
