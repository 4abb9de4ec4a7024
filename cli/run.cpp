#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench/experiments/workloads.hpp"
#include "cli/answers.hpp"
#include "cli/common.hpp"
#include "cli/planning_flags.hpp"
#include "cli/run_connected.hpp"
#include "cli/table.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "config/threads.hpp"
#include "model/kernels/thread_team.hpp"
#include "model/reference.hpp"

namespace ordermoe::cli {

namespace {

struct run_options {
  world_flags world;
  planning_flags planning;
  std::string prompts, mode = "emulated", trace, plan, save_plan, stop;
  std::uint32_t max_new_tokens = 64;
  double temperature = 0;
  std::size_t threads = 0;
  bool chat = false;
  bool names_costs = false;
  std::string connect, folder;
  std::size_t at_once = 0;
  double adapt_weights = 0, drift_percent = 0;
  std::vector<std::string> replans;

  bool is_local() const { return mode == "local"; }
  bool is_reference() const { return mode == "reference"; }
};

/// What is asked: texts, and the ids of each.
struct questions {
  std::vector<setup::prompt> prompts;
  setup::token_documents encoded;
};

/// Refuses options that would do nothing, or nothing of what they say.
result<void> check_options(const run_options& options, const CLI::App& command) {
  const auto given = [&](const char* name) { return command.get_option(name)->count() > 0; };
  const auto refuse = [](const char* name, const char* why) {
    return error{errc::usage, fmt::format("{}: {}; leave it out", name, why)};
  };
  if (options.connect.empty() && options.world.model.empty())
    return error{errc::usage, "--model is required, or --connect for a cluster that runs"};
  if (options.connect.empty() != options.folder.empty())
    return error{errc::usage,
                 "--connect ADDRESS and --dir DIR belong together: DIR has the certificates"};
  if (options.connect.empty() && given("--at-once"))
    return refuse("--at-once", "it is for --connect; --rate spreads the requests of other runs");
  if (!options.connect.empty()) {
    for (const auto* option : command.get_options()) {
      const auto& name = option->get_name();
      const auto& taken = {"--connect", "--dir",           "--prompts", "--max-new-tokens",
                           "--json",    "--seed",          "--stop",    "--temperature",
                           "--at-once", "--quality-budget"};
      if (option->count() > 0 && std::ranges::find(taken, name) == taken.end())
        return refuse(name.c_str(), "the cluster of --connect has it from its own configuration");
    }
    return {};
  }
  if (options.is_reference())
    for (const char* name :
         {"--cluster",        "--costs",        "--profile",        "--strategy",
          "--quality-budget", "--plan",         "--save-plan",      "--trace",
          "--rate",           "--horizon",      "--threshold",      "--ablate",
          "--residency",      "--search-steps", "--trial-requests", "--choose-precision",
          "--choose-pruning", "--own-weights",  "--adapt-weights",  "--replan",
          "--replan-on-drift"})
      if (given(name)) return refuse(name, "--mode reference has no servers and no strategy");
  if (options.mode == "emulated" && given("--threads"))
    return refuse("--threads",
                  "virtual time does not depend on threads; they are for --mode local "
                  "and --mode reference");
  if (!options.is_reference() && options.world.cluster.empty())
    return error{
        errc::usage,
        fmt::format("--mode {} needs --cluster FILE; draw one with `ordermoe cluster draw`",
                    options.mode)};
  if (!options.plan.empty())
    for (const char* name : {"--search-steps", "--trial-requests"})
      if (given(name)) return refuse(name, "nothing is searched for with --plan");
  return {};
}

result<void> check_adaptation(const run_options& options,
                              const setup::preparation_request& request) {
  if (!(options.adapt_weights > 0)) return {};
  if (request.strategy != "paper")
    return error{errc::usage, fmt::format("--adapt-weights: {} has no such weights; leave it out, "
                                          "or choose --strategy paper",
                                          request.strategy)};
  if (!(request.options.quality_percent > 0))
    return error{errc::usage,
                 "--adapt-weights: weighs time against a budget, and there is none above 0; give "
                 "--quality-budget"};
  return {};
}

result<void> check_outputs(const run_options& options) {
  const std::vector<std::filesystem::path> inputs{options.world.cluster, options.prompts,
                                                  options.plan, options.world.profile};
  if (auto good = check_output("--trace", options.trace, inputs); !good) return good;
  if (auto good = check_output("--save-plan", options.save_plan, inputs); !good) return good;
  if (!options.trace.empty() && are_one_file(options.trace, options.save_plan))
    return error{errc::usage,
                 fmt::format("--save-plan {}: is what --trace names, too; choose another name",
                             options.save_plan)};
  return {};
}

/// "12.5:layer-shards": after 12.5 s plan anew as layer-shards would.
result<actors::replan_order> parse_replan(const std::string& text,
                                          const planning::strategy_options& planning) {
  const auto problem = error{
      errc::usage, fmt::format("--replan '{}': expected SECONDS:STRATEGY with one of {}, as in "
                               "2.5:layer-shards",
                               text, fmt::join(planning::accepted_strategy_names(), ", "))};
  const auto colon = text.find(':');
  if (colon == std::string::npos) return problem;
  double seconds = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + colon, seconds);
  const auto name = planning::canonical_strategy_name(text.substr(colon + 1));
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + colon || !(seconds >= 0) ||
      seconds > 1e6 || planning::find_strategy(name) == nullptr)
    return problem;
  return actors::replan_order{static_cast<std::int64_t>(seconds * 1e9), name, planning};
}

result<std::vector<actors::replan_order>> replans_of(const run_options& options,
                                                     const setup::preparation_request& request) {
  std::vector<actors::replan_order> orders;
  auto planning = request.options;
  planning.plan.reset();
  for (const auto& text : options.replans) {
    auto order = parse_replan(text, planning);
    if (!order) return order.error();
    // The paper substitutes within groups, which only similarity placements have.
    if (request.strategy == "paper" && !planning::find_strategy(order->strategy)->places_groups)
      return error{
          errc::usage,
          fmt::format("--replan {}: paper substitutes within groups of experts, and plans "
                      "of {} have none; expected {}",
                      text, order->strategy, planning::strategies_for_which([](const auto& one) {
                        return one.places_groups;
                      }))};
    orders.push_back(std::move(*order));
  }
  return orders;
}

/// What each of so many servers in this process computes with.
std::size_t threads_for(const run_options& options, std::size_t n_servers) {
  if (options.threads > 0) return options.threads;
  return std::max<std::size_t>(1, std::thread::hardware_concurrency() / n_servers);
}

result<questions> read_questions(const run_options& options) {
  questions asked;
  auto prompts = setup::read_prompts(options.prompts);
  if (stop_requested()) return error{errc::interrupted, "interrupted"};
  if (!prompts) return prompts.error();
  asked.prompts = std::move(*prompts);
  return asked;
}

result<void> encode(questions& asked, const run_options& options, const model::tokenizer& tokens) {
  std::optional<model::chat_template> chat;
  if (options.chat) {
    auto read = model::chat_template::load(options.world.model);
    if (!read) return read.error();
    chat = std::move(*read);
  }
  auto encoded = setup::encode_prompts(asked.prompts, tokens, chat);
  if (!encoded) return encoded.error();
  asked.encoded = std::move(*encoded);
  return {};
}

answer_printer printer_of(const run_options& options, const questions& asked) {
  return {asked.prompts,
          options.chat ? answer_printer::layout::conversation : answer_printer::layout::continued};
}

// ------------------------------------------------------------------------------------ reference

result<model::generation> answer_alone(const run_options& options, const setup::world& loaded,
                                       const questions& asked, std::size_t i) {
  model::generation_options generate;
  generate.max_new_tokens = options.max_new_tokens;
  generate.sampling = {options.temperature, options.world.seed};
  generate.request = i;
  if (!options.stop.empty()) generate.stop_strings = {options.stop};
  auto answer = model::generate(*loaded.model, loaded.tokens.get(), asked.encoded[i], generate);
  if (!answer) return at(asked.prompts[i].place, answer.error());
  return answer;
}

result<void> run_reference(const run_options& options) {
  auto asked = read_questions(options);
  if (!asked) return asked.error();
  auto wanted = options.world.options();
  if (!wanted) return wanted.error();
  wanted->use = setup::profile_use::none;
  const auto loaded = load_world(*wanted);
  if (!loaded) return loaded.error();
  if (auto done = encode(*asked, options, *loaded->tokens); !done) return done;
  if (auto enough = check_threads(threads_for(options, 1) - 1); !enough) return enough;
  nlohmann::ordered_json answers = nlohmann::json::array();
  auto printer = printer_of(options, *asked);
  model::thread_team team(threads_for(options, 1));
  const model::team_scope scope(&team);
  for (std::size_t i = 0; i < asked->prompts.size(); ++i) {
    if (stop_requested()) return error{errc::interrupted, "interrupted"};
    const auto answer = answer_alone(options, *loaded, *asked, i);
    if (!answer) return answer.error();
    answers.push_back({{"request", i},
                       {"text", answer->text},
                       {"token_ids", answer->token_ids},
                       {"finish", to_string(answer->reason)}});
    if (!options.world.json) printer.show(i, answer->text);
  }
  if (options.world.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"mode", "reference"},
                                                        {"model", loaded->model_name},
                                                        {"seed", options.world.seed},
                                                        {"answers", answers}},
                                 2));
  return {};
}

// -------------------------------------------------------------------------------------- servers

/// All that a run on servers needs, and nothing that only its preparation did.
struct ready_run {
  std::string model_name, costs;
  actors::service_options service;
  experiments::workload load;
};

std::vector<actors::request_spec> requests_of(const run_options& options, const questions& asked) {
  std::vector<actors::request_spec> requests;
  for (std::size_t i = 0; i < asked.encoded.size(); ++i) {
    actors::request_spec spec;
    spec.prompt = asked.encoded[i];
    spec.quality_percent = asked.prompts[i].quality_percent;
    spec.max_new_tokens = options.max_new_tokens;
    spec.temperature = options.temperature;
    spec.sampling_seed = options.world.seed;
    if (!options.stop.empty()) spec.stop_strings = {options.stop};
    requests.push_back(std::move(spec));
  }
  return requests;
}

result<void> check_lengths(const setup::world& loaded, const questions& asked,
                           const std::vector<actors::request_spec>& requests) {
  actors::run_setup setup;
  static_cast<actors::service_options&>(setup) = setup::service_in(loaded, 0);
  setup.requests = requests;
  std::vector<std::string> places;
  for (const auto& prompt : asked.prompts) places.push_back(prompt.place);
  return actors::check_prompts(setup, places);
}

/// What the strategy was prepared to, in this command's mode and watched as it says.
actors::service_options service_of(const run_options& options,
                                   const setup::preparation_request& request,
                                   actors::service_options service) {
  service.mode = options.is_local() ? actors::run_mode::local : actors::run_mode::emulated;
  service.threads_per_server = threads_for(options, service.servers.size());
  service.monitor.on = options.adapt_weights > 0 || options.drift_percent > 0;
  service.monitor.kappa = options.adapt_weights;
  service.monitor.drift_margin = options.drift_percent / 100;
  service.monitor.planning = request.options;
  return service;
}

void print_own_weights(const actors::service_options& service) {
  for (std::size_t m = 0; m < service.server_models.size(); ++m)
    fmt::print(stderr, "server {} ({}): {:.1f} MB of weights\n", m, service.servers.servers[m].name,
               static_cast<double>(service.server_models[m]->resident_bytes()) * 1e-6);
}

result<setup::prepared> prepare(const run_options& options, const setup::world& loaded,
                                const setup::preparation_request& request) {
  const progress_display shown;
  if (options.is_local()) {
    const auto n = loaded.servers.size();
    if (auto enough = check_threads(n * threads_for(options, n)); !enough) return enough.error();
  }
  auto ready = setup::prepare(loaded, request, work());
  if (!ready && !options.plan.empty()) return at(options.plan, ready.error());
  if (!ready) return ready;
  if (!options.save_plan.empty())
    if (auto written =
            write_file(options.save_plan, setup::plan_file_json(loaded, request, *ready));
        !written)
      return written.error();
  if (!options.world.own_weights) return ready;
  return setup::with_own_weights(loaded, std::move(*ready));
}

result<std::optional<setup::plan_file>> read_given_plan(const run_options& options) {
  if (options.plan.empty()) return std::optional<setup::plan_file>();
  auto read = setup::read_plan_file(options.plan);
  if (!read) return read.error();
  return std::optional(std::move(*read));
}

/// Charges that nobody named are those of a plan that is given. On the wall clock nothing is charged, and what is planned with
/// is the model that runs.
world_flags charged(const run_options& options, const std::optional<setup::plan_file>& given) {
  auto flags = options.world;
  if (options.names_costs) return flags;
  const auto of_plan = given ? setup::named_costs(given->origin) : std::string();
  if (!of_plan.empty())
    flags.costs = of_plan;
  else if (options.is_local())
    flags.costs = "measured";
  return flags;
}

std::string text_of_budget(double percent) {
  return percent < 0 ? "an unbounded loss" : fmt::format("{:g} %", percent);
}

/// A plan with another budget than its own is tuned anew, which takes time at each run.
void tell_of_tuning(const run_options& options, const std::optional<setup::plan_file>& given,
                    const setup::preparation_request& request) {
  const double percent = request.options.quality_percent;
  if (!given || percent == 0 || percent == given->origin.quality_percent) return;
  fmt::print(stderr, "ordermoe: {} is for {}: tuning it for {}{}\n", options.plan,
             text_of_budget(given->origin.quality_percent), text_of_budget(percent),
             options.save_plan.empty() ? "; --save-plan keeps it" : "");
}

/// From the options to a service that can start: loads, plans, tunes.
result<ready_run> make_ready(const run_options& options, questions& asked) {
  const auto given = read_given_plan(options);
  if (!given) return given.error();
  auto request = options.planning.request(
      options.world, setup::expected_concurrency(asked.prompts.size()), *given);
  if (!request) return request.error();
  request->plans_change = !options.replans.empty() || options.drift_percent > 0;
  if (auto good = check_adaptation(options, *request); !good) return good.error();
  tell_of_tuning(options, *given, *request);
  auto orders = replans_of(options, *request);
  if (!orders) return orders.error();
  const auto loaded = load_world(charged(options, *given), *given, *request);
  if (!loaded) return loaded.error();
  if (auto done = encode(asked, options, *loaded->tokens); !done) return done.error();
  auto load = experiments::answering(requests_of(options, asked), options.planning.rate);
  load.trace = options.trace;
  load.replans = std::move(*orders);
  if (auto fits = check_lengths(*loaded, asked, load.requests); !fits) return fits.error();
  auto ready = prepare(options, *loaded, *request);
  if (!ready) return ready.error();
  print_own_weights(ready->service);
  return ready_run{loaded->model_name, loaded->costs.name,
                   service_of(options, *request, std::move(ready->service)), std::move(load)};
}

void print_changes(const experiments::strategy_report& measured) {
  for (const auto& change : measured.plan_changes)
    if (change.refused.empty())
      fmt::print(
          "plan {} ({}): asked at {:.1f} ms, {}in force at {:.1f} ms, {:.2f} GB of weights moved\n",
          change.epoch, change.reason, static_cast<double>(change.asked_ns) * 1e-6,
          change.held
              ? fmt::format("drained at {:.1f} ms, ", static_cast<double>(change.drained_ns) * 1e-6)
              : std::string(),
          static_cast<double>(change.done_ns) * 1e-6,
          static_cast<double>(change.moved_bytes) * 1e-9);
    else
      fmt::print("plan kept ({}): {}\n", change.reason, change.refused);
  if (!measured.policy_changes.empty())
    fmt::print("weights changed {} times, last to omega_T = {:.3f}, omega_Q = {:.3f}\n",
               measured.policy_changes.size(), measured.policy_changes.back().weights.omega_time,
               measured.policy_changes.back().weights.omega_quality);
}

void print_report(const experiments::report_header& header,
                  const experiments::strategy_report& measured) {
  fmt::print("{:-<96}\n{} requests on {} ({} clock, charged as {}, seed {})\n", "",
             measured.n_requests, header.cluster, header.clock, header.cost_profile, header.seed);
  print_table({measured});
  print_changes(measured);
}

result<experiments::strategy_report> answer(const ready_run& ready, bool shows_progress) {
  std::optional<progress_display> shown;
  if (shows_progress) shown.emplace();
  return experiments::measure(ready.service, {&ready.load, 1}, work());
}

result<void> run_on_servers(const run_options& options) {
  auto asked = read_questions(options);
  if (!asked) return asked.error();
  auto ready = make_ready(options, *asked);
  if (!ready) return ready.error();
  auto printer = printer_of(options, *asked);
  const bool streams = options.is_local() && !options.world.json;
  if (streams) ready->load.watcher = printer.sink();
  const auto measured = answer(*ready, !streams);
  if (!measured) return measured.error();
  std::vector<stated_budget> budgets;
  for (const auto& each : measured->outcomes)
    budgets.push_back({asked->prompts[static_cast<std::size_t>(each.request)].quality_percent,
                       each.quality_percent});
  tell_of_smaller_budgets(budgets);
  const auto& service = ready->service;
  const experiments::report_header header{
      ready->model_name,  service.servers.name,
      ready->costs,       options.is_local() ? "wall" : "virtual",
      options.world.seed, service.servers};
  if (options.world.json) {
    fmt::print("{}", experiments::report_json(header, {*measured}, true));
    return {};
  }
  if (!streams)
    for (const auto& each : measured->outcomes)
      printer.show(static_cast<std::size_t>(each.request), each.text);
  print_report(header, *measured);
  return {};
}

result<void> run_at_cluster(const run_options& options) {
  auto prompts = setup::read_prompts(options.prompts);
  if (stop_requested()) return error{errc::interrupted, "interrupted"};
  if (!prompts) return prompts.error();
  connected_run wanted;
  wanted.address = options.connect;
  wanted.folder = options.folder;
  wanted.prompts = std::move(*prompts);
  wanted.max_new_tokens = options.max_new_tokens;
  wanted.temperature = options.temperature;
  wanted.seed = options.world.seed;
  wanted.stop = options.stop;
  if (!options.planning.quality.empty()) {
    const auto percent = parse_stated_quality(options.planning.quality);
    if (!percent) return percent.error();
    wanted.quality_percent = *percent;
  }
  wanted.concurrency = options.at_once;
  wanted.json = options.world.json;
  return run_connected(wanted);
}

result<void> run(const run_options& options, const CLI::App& command) {
  if (auto good = check_options(options, command); !good) return good;
  if (!options.connect.empty()) return run_at_cluster(options);
  if (options.is_reference()) return run_reference(options);
  if (auto good = check_outputs(options); !good) return good;
  return run_on_servers(options);
}

void add_requests(CLI::App& command, run_options& options) {
  command
      .add_option("--prompts", options.prompts,
                  "A prompt a line, plain or {\"prompt\": ..., \"quality_budget_percent\": ...}, "
                  "the budget of its "
                  "answer, where it is to have less than others; - for standard input")
      ->type_name(file_value)
      ->required();
  command.add_flag("--chat", options.chat,
                   "Each prompt is a user's message to an instruct variant, written by its chat "
                   "template; a line may also be {\"messages\": [{\"role\", \"content\"}, ...]}");
  command
      .add_option("--max-new-tokens", options.max_new_tokens, "New tokens for each prompt at most")
      ->check(whole_from(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--temperature", options.temperature, "0 is greedy")
      ->check(number_from(0, 100))
      ->capture_default_str();
  command.add_option("--stop", options.stop, "End an answer before this text");
}

void add_mode(CLI::App& command, run_options& options) {
  command
      .add_option("--cluster", options.world.cluster,
                  "Cluster file (TOML); none for --mode reference")
      ->type_name(file_value);
  command
      .add_option("--mode", options.mode,
                  "emulated (virtual time), local (wall clock) or reference (one process, no "
                  "servers)")
      ->check(CLI::IsMember({"emulated", "local", "reference"}))
      ->capture_default_str();
  command
      .add_option("--threads", options.threads,
                  "Threads that each server of --mode local, or the reference, computes with; 0: "
                  "this machine's processors, shared between them")
      ->check(whole_from(0, 1024))
      ->capture_default_str();
}

void add_changes(CLI::App& command, run_options& options) {
  command
      .add_option(
          "--adapt-weights", options.adapt_weights,
          "Step of the paper's eq. (45), which moves the weights of time and quality by what "
          "requests spent and waited (strategy paper); 0: never")
      ->check(number_from(0, 1))
      ->capture_default_str();
  command
      .add_option("--replan-on-drift", options.drift_percent,
                  "Plan anew where measured expert activation changes the plan's expected cost by "
                  "this many per cent; 0: never")
      ->check(number_from(0, 1000))
      ->capture_default_str();
  command.add_option("--replan", options.replans,
                     "SECONDS:STRATEGY: at this time switch to this strategy's placement, once "
                     "running requests have ended; repeatable");
}

}  // namespace

void add_run(CLI::App& app) {
  auto& command = *app.add_subcommand("run", "Answer prompts on a cluster");
  auto options = std::make_shared<run_options>();
  options->world.add(command, false);
  command.get_option("--model")->required(false);
  options->world.add_precisions(command);
  add_device(command, options->world.device);
  options->world.add_server_weights(command);
  add_mode(command, *options);
  command.add_option("--connect", options->connect,
                     "Ask a node of a cluster that runs, at HOST:PORT, instead of a model here");
  command
      .add_option("--dir", options->folder,
                  "With --connect: the cluster's folder, whose certificates are shown")
      ->type_name(folder_value);
  command
      .add_option("--at-once", options->at_once,
                  "With --connect: requests in flight at most; 0: all")
      ->check(whole_from(0, 1 << 20))
      ->capture_default_str();
  add_requests(command, *options);
  options->planning.add(command);
  command.get_option("--quality-budget")
      ->description(
          "Perplexity increase allowed, in per cent, or unbounded; default: 0, or that of --plan. "
          "With "
          "--connect: of each answer, 0 to 100, the plan's at most; default: the plan's");
  command
      .add_option("--plan", options->plan,
                  "Use this plan.json, made by `plan` or --save-plan for this model, cluster "
                  "and strategy")
      ->type_name(file_value);
  command.add_option("--save-plan", options->save_plan, "Write the plan that is used")
      ->type_name(file_value);
  command
      .add_option("--trace", options->trace,
                  "Write every decision, transfer and batch to this file")
      ->type_name(file_value);
  add_changes(command, *options);
  command.footer(
      "`ordermoe testbed strategies` says what each strategy does. In the table latency, TTFT (to "
      "the first\n"
      "token) and per tok are ms; loc and rem: per cent of expert slots run where the token was or "
      "on\n"
      "another server, = exact, ~ by a substitute; none: left out; EM: share of right sums; spent: "
      "per cent\n"
      "of the quality budget.\n"
      "Example:\n  ordermoe run --model data/models/lineage --cluster data/clusters/edge8.toml \\\n"
      "    --prompts data/eval/prompts.jsonl --strategy ordermoe --quality-budget 1 --trace "
      "trace.jsonl");
  command.get_option("--costs")
      ->description(command.get_option("--costs")->get_description() +
                    "; default: those of --plan, else mixtral-8x7b, with --mode local measured")
      ->default_str("");
  set_body(command, [options, &command] {
    options->names_costs = command.count("--costs") > 0;
    return run(*options, command);
  });
}

}  // namespace ordermoe::cli
