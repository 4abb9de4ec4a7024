#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/common.hpp"
#include "config/files.hpp"
#include "model/kernels/thread_team.hpp"
#include "model/reference.hpp"

namespace ordermoe::cli {

namespace {

struct run_options {
  world_options world;
  std::string prompts, strategy = "ordermoe", mode = "emulated", trace, plan, quality = "0",
                       residency, stop;
  std::uint32_t max_new_tokens = 64;
  double temperature = 0, rate = 0;
  std::size_t horizon = 0, search_steps = 10000, threads = 0;
  bool horizon_given = false, chat = false;
  double adapt_weights = 0, drift_percent = 0;
  std::vector<std::string> replans;
};

/// "12.5:layer-shards": after 12.5 s plan anew as layer-shards would.
result<actors::replan_order> parse_replan(const std::string& text,
                                          const planning::strategy_options& planning) {
  const auto problem = error{
      errc::usage, fmt::format("--replan '{}': expected SECONDS:STRATEGY with one of {}, as in "
                               "2.5:layer-shards",
                               text, fmt::join(planning::strategy_names(), ", "))};
  const auto colon = text.find(':');
  if (colon == std::string::npos) return problem;
  double seconds = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + colon, seconds);
  const auto name = text.substr(colon + 1);
  const auto names = planning::strategy_names();
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + colon || !(seconds >= 0) ||
      seconds > 1e6 || std::find(names.begin(), names.end(), name) == names.end())
    return problem;
  return actors::replan_order{static_cast<std::int64_t>(seconds * 1e9), name, planning};
}

void print_changes(const experiments::strategy_report& measured) {
  for (const auto& change : measured.plan_changes)
    if (change.refused.empty())
      fmt::print(
          "plan {} ({}): asked at {:.1f} ms, drained at {:.1f} ms, in force at {:.1f} ms, "
          "{:.2f} GB of weights moved\n",
          change.epoch, change.reason, static_cast<double>(change.asked_ns) * 1e-6,
          static_cast<double>(change.drained_ns) * 1e-6, static_cast<double>(change.done_ns) * 1e-6,
          static_cast<double>(change.moved_bytes) * 1e-9);
    else
      fmt::print("plan kept ({}): {}\n", change.reason, change.refused);
  if (!measured.policy_changes.empty())
    fmt::print("weights changed {} times, last to omega_T = {:.3f}, omega_Q = {:.3f}\n",
               measured.policy_changes.size(), measured.policy_changes.back().weights.omega_time,
               measured.policy_changes.back().weights.omega_quality);
}

/// The ids of every prompt: its text as it is, or a conversation as the model's template writes it.
result<std::vector<std::vector<std::int32_t>>> encode_prompts(const run_options& options,
                                                              const world& loaded,
                                                              const std::vector<prompt>& prompts) {
  std::optional<model::chat_template> chat;
  if (options.chat) {
    auto read = model::chat_template::load(options.world.model);
    if (!read) return read.error();
    chat = std::move(*read);
  }
  std::vector<std::vector<std::int32_t>> encoded;
  for (const auto& [text, messages] : prompts) {
    const auto place = fmt::format("{}: prompt {}", options.prompts, encoded.size() + 1);
    if (chat) {
      const model::chat_message alone[] = {{model::chat_role::user, text}};
      auto ids = messages.empty() ? chat->encode(*loaded.tokens, alone)
                                  : chat->encode(*loaded.tokens, messages);
      if (!ids) return at(place, ids.error());
      encoded.push_back(std::move(*ids));
    } else if (!messages.empty()) {
      return error{errc::usage, place +
                                    ": found `messages`, expected `prompt`, as --chat is not "
                                    "given; give it"};
    } else {
      encoded.push_back(loaded.tokens->encode(text));
    }
    if (encoded.back().empty())
      return error{errc::out_of_range,
                   place +
                       ": the tokenizer makes no tokens of it, expected one at least; give it "
                       "a text"};
  }
  return encoded;
}

/// What each of so many servers in this process computes with.
std::size_t threads_for(const run_options& options, std::size_t n_servers) {
  if (options.threads > 0) return options.threads;
  return std::max<std::size_t>(1, std::thread::hardware_concurrency() / n_servers);
}

result<void> run_reference(const run_options& options, const world& loaded,
                           const std::vector<prompt>& prompts,
                           const std::vector<std::vector<std::int32_t>>& encoded) {
  nlohmann::ordered_json answers = nlohmann::json::array();
  progress_line line("generating");
  model::thread_team team(threads_for(options, 1));
  const model::team_scope scope(&team);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (stop_requested()) return error{errc::interrupted, "interrupted"};
    line.show(static_cast<double>(i) / static_cast<double>(prompts.size()));
    model::generation_options generate;
    generate.max_new_tokens = options.max_new_tokens;
    generate.sampling = {options.temperature, options.world.seed};
    generate.request = i;
    if (!options.stop.empty()) generate.stop_strings = {options.stop};
    const auto answer = model::generate(*loaded.model, loaded.tokens.get(), encoded[i], generate);
    if (!answer) return at(fmt::format("prompt {}", i + 1), answer.error());
    answers.push_back({{"request", i},
                       {"text", answer->text},
                       {"token_ids", answer->token_ids},
                       {"finish", to_string(answer->reason)}});
    if (!options.world.json) fmt::print("> {}\n{}\n\n", prompts[i].text, answer->text);
  }
  if (options.world.json)
    fmt::print("{}\n", nlohmann::ordered_json{{"mode", "reference"},
                                              {"model", loaded.model_name},
                                              {"seed", options.world.seed},
                                              {"answers", answers}}
                           .dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  return {};
}

result<void> run(const run_options& options) {
  const auto quality = parse_quality(options.quality);
  if (!quality) return quality.error();
  auto prompts = read_prompts(options.prompts);
  if (!prompts) return prompts.error();
  if (options.mode != "reference" && options.world.cluster.empty())
    return error{
        errc::usage,
        fmt::format("--mode {} needs --cluster FILE; draw one with `ordermoe cluster draw`",
                    options.mode)};
  auto world_wanted = options.world;
  if (options.mode == "reference") world_wanted.cluster.clear();
  auto loaded = load_world(world_wanted);
  if (!loaded) return loaded.error();
  auto encoded = encode_prompts(options, *loaded, *prompts);
  if (!encoded) return encoded.error();
  if (options.mode == "reference") return run_reference(options, *loaded, *prompts, *encoded);

  planning::strategy_options choice;
  choice.quality_percent = *quality;
  choice.seed = options.world.seed;
  choice.search_steps = options.search_steps;
  choice.choose_precision = options.world.choose_precision;
  choice.expected_rate = options.rate;
  choice.concurrency = std::clamp(static_cast<double>(prompts->size()), 1.0, 4.0);
  if (options.horizon_given) choice.horizon = options.horizon;
  if (!options.residency.empty()) choice.residency = options.residency;
  if (!options.plan.empty()) {
    auto plan = planning::read_plan(options.plan);
    if (!plan) return plan.error();
    choice.plan = std::move(*plan);
  }

  experiments::experiment content;
  auto& setup = content.setup;
  setup = setup_of(*loaded, options.world.seed);
  setup.mode = options.mode == "local" ? actors::run_mode::local : actors::run_mode::emulated;
  setup.threads_per_server = threads_for(options, setup.servers.size());
  setup.trace = options.trace;
  setup.monitor.on = options.adapt_weights > 0 || options.drift_percent > 0;
  setup.monitor.kappa = options.adapt_weights;
  setup.monitor.drift_margin = options.drift_percent / 100;
  setup.monitor.planning = choice;
  for (const auto& text : options.replans) {
    auto planning = choice;
    planning.plan.reset();
    auto order = parse_replan(text, planning);
    if (!order) return order.error();
    setup.replans.push_back(std::move(*order));
  }
  for (std::size_t i = 0; i < prompts->size(); ++i) {
    actors::request_spec spec;
    spec.prompt = std::move((*encoded)[i]);
    spec.max_new_tokens = options.max_new_tokens;
    spec.temperature = options.temperature;
    spec.sampling_seed = options.world.seed;
    if (!options.stop.empty()) spec.stop_strings = {options.stop};
    setup.requests.push_back(std::move(spec));
  }
  if (auto good = actors::check_prompts(setup); !good) return good.error();
  actors::draw_arrivals(setup.requests, setup.servers, options.rate, options.world.seed);
  if (auto loaded = load_coarser(setup, options.world, choice); !loaded) return loaded.error();
  if (auto ready = choose_strategy(setup, options.strategy, choice); !ready) return ready.error();
  loaded->model.reset();
  if (auto own = load_own_weights(setup, options.world); !own) return own.error();
  result<experiments::strategy_report> measured = error{errc::failed, "not run"};
  {
    progress_line line("answering");
    setup.on_progress = [&](std::size_t done, std::size_t total) {
      line.show(static_cast<double>(done) / static_cast<double>(total));
    };
    measured = experiments::measure(content);
  }
  if (!measured) return measured.error();
  const experiments::report_header header{
      loaded->model_name, loaded->servers.name, loaded->costs.name,
      setup.mode == actors::run_mode::local ? "wall" : "virtual", options.world.seed};
  if (options.world.json) {
    fmt::print("{}", experiments::report_json(header, {*measured}, true));
    return {};
  }
  for (const auto& answer : measured->outcomes)
    fmt::print("> {}\n{}\n\n", (*prompts)[answer.request].text, answer.text);
  fmt::print("{} requests on {} ({} clock, charged as {}, seed {})\n", prompts->size(),
             header.cluster, header.clock, header.cost_profile, header.seed);
  print_table({*measured});
  print_changes(*measured);
  return {};
}

}  // namespace

void add_run(CLI::App& app) {
  auto& command = *app.add_subcommand("run", "Answer prompts on a cluster");
  auto options = std::make_shared<run_options>();
  options->world.add(command, false);
  options->world.add_precisions(command);
  options->world.add_server_weights(command);
  command.add_option("--cluster", options->world.cluster,
                     "Cluster file (TOML); not needed for --mode reference");
  command
      .add_option("--prompts", options->prompts,
                  "A prompt a line, plain or {\"prompt\": ...}; - for standard input")
      ->required();
  command.add_flag("--chat", options->chat,
                   "Each prompt is a user's message to an instruct variant, written by its chat "
                   "template; a line may also be {\"messages\": [{\"role\", \"content\"}, ...]}");
  std::string strategies = "How experts are placed and chosen";
  for (const auto& record : planning::strategy_records())
    strategies += fmt::format("\n{}: {}", record.name, record.sentence);
  command.add_option("--strategy", options->strategy, strategies)
      ->check(CLI::IsMember(planning::strategy_names()))
      ->capture_default_str();
  command
      .add_option("--mode", options->mode,
                  "emulated (virtual time), local (wall clock) or reference (one process)")
      ->check(CLI::IsMember({"emulated", "local", "reference"}))
      ->capture_default_str();
  command
      .add_option("--threads", options->threads,
                  "Threads that each server of --mode local, or the reference, computes with; 0: "
                  "this machine's processors, shared between them")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  command
      .add_option("--max-new-tokens", options->max_new_tokens, "New tokens for each prompt at most")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  command.add_option("--temperature", options->temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--stop", options->stop, "End an answer before this text");
  command.add_option("--trace", options->trace,
                     "Write every decision, transfer and batch to this file");
  command.add_option("--plan", options->plan, "Use this plan.json instead of making one");
  command
      .add_option("--quality-budget", options->quality,
                  "Perplexity increase allowed, in per cent, or unbounded")
      ->capture_default_str();
  auto* horizon = command.add_option("--horizon", options->horizon,
                                     "Look-ahead depth in layers; 0: the whole model");
  command
      .add_option("--residency", options->residency,
                  "Where attention may run: access or roaming; default: the plan's")
      ->check(CLI::IsMember({"access", "roaming"}));
  command.add_option("--rate", options->rate, "Requests per second, Poisson; 0: all at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option(
          "--adapt-weights", options->adapt_weights,
          "Step of the paper's eq. (45), which moves the weights of time and quality by what "
          "requests spent and waited (strategy paper); 0: never")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      .add_option("--replan-on-drift", options->drift_percent,
                  "Plan anew where measured expert activation changes the plan's expected cost by "
                  "this many per cent; 0: never")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  command.add_option("--replan", options->replans,
                     "SECONDS:STRATEGY: at this time switch to this strategy's placement, once "
                     "running requests have ended; repeatable");
  command
      .add_option("--search-steps", options->search_steps, "Moves that the ordermoe planner tries")
      ->capture_default_str();
  command.footer(
      "Example:\n  ordermoe run --model data/models/lineage --cluster data/clusters/edge8.toml \\\n"
      "    --prompts data/eval/prompts.jsonl --strategy ordermoe --quality-budget 1 --trace "
      "trace.jsonl");
  set_body(command, [options, horizon] {
    options->horizon_given = horizon->count() > 0;
    return run(*options);
  });
}

}  // namespace ordermoe::cli
