#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/common.hpp"
#include "cli/log_writer.hpp"
#include "cli/service_manager.hpp"
#include "config/devices.hpp"
#include "config/json_text.hpp"
#include "config/node_file.hpp"
#include "gateway/gateway.hpp"
#include "gateway/starting_backend.hpp"
#include "net/http/open_files.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/plan_file.hpp"
#include "setup/texts.hpp"

// `ordermoe serve`: a gateway in front of servers in this process, or of a cluster that runs.

namespace ordermoe::cli {

namespace {

struct serve_options {
  std::string listen = "127.0.0.1:8080";
  std::string model, cluster, plan, strategy, quality, costs = "mixtral-8x7b", name, device;
  std::string folder, node;
  std::string keys, certificate, key;
  std::size_t threads = 0, running = 64, waiting = 256, choices = 16, body_kib = 4096;
  std::uint32_t tokens = 1024;
  double longest_s = 120;
  bool json = false;
  log_choice log;
};

/// Of the bundled model on the bundled cluster, as everybody has them.
std::filesystem::path bundled_plan() {
  return setup::data_folder() / "plans" / "lineage-edge8.json";
}

result<void> check_options(const serve_options& options, const CLI::App& command) {
  if (options.certificate.empty() != options.key.empty())
    return error{errc::usage, "--tls-certificate and --tls-key belong together; give both"};
  if (options.folder.empty() && options.node.empty()) return {};
  if (!options.folder.empty() && !options.node.empty())
    return error{errc::usage,
                 "--node and --dir: found both, expected a node in this process, or a running "
                 "cluster"};
  const char* whose = options.folder.empty() ? "node" : "cluster";
  for (const char* name : {"--cluster", "--plan", "--strategy", "--quality-budget", "--costs",
                           "--threads", "--device"})
    if (command.get_option(name)->count() > 0)
      return error{
          errc::usage,
          fmt::format("{}: the {} has it from its own configuration; leave it out", name, whose)};
  return {};
}

/// What the options leave out is the bundled model, cluster and plan.
result<api::cluster_options> cluster_of(const serve_options& options) {
  const auto data = setup::data_folder();
  api::cluster_options made;
  made.model = options.model.empty() ? (data / "models" / "lineage").string() : options.model;
  made.cluster =
      options.cluster.empty() ? (data / "clusters" / "edge8.toml").string() : options.cluster;
  made.plan = options.plan;
  made.strategy = options.strategy;
  made.costs = options.costs;
  made.threads = options.threads;
  made.device = options.device;
  // A plan has a budget of its own.
  if (!options.quality.empty() || options.plan.empty()) {
    const auto quality =
        options.quality.empty() ? result<double>(0.0) : parse_quality(options.quality);
    if (!quality) return at("--quality-budget", quality.error());
    made.quality_percent = *quality;
  }
  const bool is_bundled = options.model.empty() && options.cluster.empty() &&
                          options.plan.empty() && options.strategy.empty() &&
                          made.quality_percent == 0 && options.costs == "mixtral-8x7b";
  if (is_bundled) made.plan = bundled_plan().string();
  return made;
}

/// What a plan by this strategy, where it is known, lets answers lose.
planning::quality_terms quality_of(std::string_view strategy, double percent) {
  const auto* record = planning::find_strategy(strategy);
  return record == nullptr ? planning::quality_terms{.percent = percent}
                           : planning::terms_of(*record, percent);
}

/// What a cluster that runs was planned with.
result<planning::quality_terms> quality_of(const std::filesystem::path& plan) {
  const auto read = setup::read_plan_file(plan);
  if (!read) return read.error();
  auto terms = quality_of(read->origin.strategy, read->origin.quality_percent);
  terms.taken_nats = read->origin.whole_model_nats + read->origin.pruned_nats.value_or(0);
  return terms;
}

struct behind_it {
  std::unique_ptr<gateway::backend> backend;
  gateway::served_model model;
  gateway::starting_backend* starting = nullptr;  ///< The same, where it may not have started.

  void start(gateway::starting_backend::start_function how) {
    auto made = std::make_unique<gateway::starting_backend>(std::move(how));
    starting = made.get();
    backend = std::move(made);
  }
};

result<behind_it> start_here(const serve_options& options) {
  const auto wanted = cluster_of(options);
  if (!wanted) return wanted.error();
  // Planning takes long, and what is wrong with the words of a model need not wait for it.
  const auto folder = existing_folder(wanted->model, "--model");
  if (!folder) return folder.error();
  auto model = gateway::describe_model(*folder);
  if (!model) return model.error();
  behind_it made;
  made.model = std::move(*model);
  if (wanted->plan.empty()) {
    made.model.quality =
        quality_of(wanted->strategy.empty() ? std::string_view("ordermoe") : wanted->strategy,
                   wanted->quality_percent.value_or(0));
  } else {
    const auto quality = quality_of(std::filesystem::path(wanted->plan));
    if (!quality) return quality.error();
    made.model.quality = *quality;
    if (wanted->quality_percent && quality->is_kept)
      made.model.quality.percent = *wanted->quality_percent;
  }
  auto servers = read_cluster(wanted->cluster);
  if (!servers) return servers.error();
  if (!options.device.empty())
    for (auto& server : servers->servers) server.device = options.device;
  tell_of_devices(*servers);
  made.model.computes_alike = mixed_devices(*servers).empty();
  made.start([wanted = *wanted] { return gateway::start_cluster(wanted, work()); });
  return made;
}

/// Of a cluster that runs, by its file: whether its servers compute on one kind of device.
result<void> tell_of_kinds(const std::filesystem::path& cluster, gateway::served_model& of) {
  const auto servers = read_cluster(cluster);
  if (!servers) return servers.error();
  tell_of_devices(*servers);
  of.computes_alike = mixed_devices(*servers).empty();
  return {};
}

result<behind_it> start_node(const serve_options& options) {
  const auto file = read_node_file(options.node);
  if (!file) return file.error();
  auto model = gateway::describe_model(file->model);
  if (!model) return model.error();
  const auto quality = quality_of(file->plan);
  if (!quality) return quality.error();
  behind_it made;
  made.model = std::move(*model);
  made.model.quality = *quality;
  if (file->most_positions > 0)
    made.model.context = std::min<std::size_t>(made.model.context, file->most_positions);
  if (auto told = tell_of_kinds(file->cluster, made.model); !told) return told.error();
  const auto log = open_log_as_told(options.log, file->log, file->name);
  if (!log) return log.error();
  made.start(
      [config = options.node, log = *log] { return gateway::start_node(config, log, work()); });
  return made;
}

result<behind_it> connect(const serve_options& options) {
  const setup::cluster_folder folder{options.folder};
  const auto files = setup::read_cluster_folder(folder);
  if (!files) return files.error();
  const auto place = existing_folder(
      options.model.empty() ? files->front().model.string() : options.model, "--model");
  if (!place) return place.error();
  auto model = gateway::describe_model(*place);
  if (!model) return model.error();
  const auto quality = quality_of(folder.plan());
  if (!quality) return quality.error();
  behind_it made;
  made.model = std::move(*model);
  made.model.quality = *quality;
  if (const auto most = files->front().most_positions; most > 0)
    made.model.context = std::min<std::size_t>(made.model.context, most);
  if (auto told = tell_of_kinds(files->front().cluster, made.model); !told) return told.error();
  auto behind = gateway::connect_cluster(options.folder);
  if (!behind) return behind.error();
  made.backend = std::move(*behind);
  const auto servers = made.backend->servers();
  if (!servers) return servers.error();
  for (const auto& server : nlohmann::json::parse(*servers))
    if (const auto digest = server.value("model", std::string());
        !digest.empty() && digest != made.model.digest)
      return error{
          errc::mismatch,
          fmt::format("--dir {}: serves a model with digest {}, {} has {}; name the folder "
                      "of the model that it serves with --model",
                      options.folder, digest.substr(0, 12), place->string(),
                      made.model.digest.substr(0, 12))};
  return made;
}

result<gateway::gateway_options> gateway_of(const serve_options& options,
                                            gateway::served_model model) {
  gateway::gateway_options made;
  const auto at_address = net::parse_address(options.listen);
  if (!at_address) return at("--listen", at_address.error());
  made.listen = *at_address;
  if (!options.certificate.empty()) made.tls = {options.certificate, options.key};
  if (!options.keys.empty()) {
    auto keys = gateway::api_keys::read(options.keys);
    if (!keys) return keys.error();
    made.keys = std::move(*keys);
  }
  made.limits.body_bytes = options.body_kib << 10;
  made.model = std::move(model);
  if (!options.name.empty()) made.model.id = options.name;
  made.most_running = options.running;
  made.most_waiting = options.waiting;
  made.most_choices = options.choices;
  made.default_tokens = options.tokens;
  made.longest_answer = std::chrono::milliseconds(std::llround(options.longest_s * 1000));
  made.pages = setup::data_folder() / "dashboard";
  return made;
}

void say_ready(const serve_options& options, const gateway::gateway& running,
               const std::string& model) {
  const auto url = fmt::format("{}://{}", options.certificate.empty() ? "http" : "https",
                               net::to_string(running.listens_at()));
  if (options.json) {
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"url", url}, {"model", model}}));
  } else {
    fmt::print("{} answers at {}/v1\n", model, url);
    fmt::print(
        "Try:  curl {}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "        -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"75 * 5\"}}], "
        "\"temperature\": 0}}'\n",
        url);
  }
  std::fflush(stdout);
  notify("READY=1");
}

/// As many descriptors as there are, and says where they are too few for the connections that are wanted.
void make_room(std::size_t connections) {
  net::raise_open_files();
  const auto room = net::room_for_connections(connections);
  if (room.served < connections)
    fmt::print(stderr,
               "ordermoe: {} connections are taken in the place of {}, since this process may have "
               "{} files open (`ulimit -Hn`, LimitNOFILE= of a unit)\n",
               room.served, connections, net::most_open_files());
}

/// Until what is behind the gateway has started. Errors: what it says; interrupted.
result<void> wait_for(const gateway::starting_backend& starting) {
  const progress_display shown;
  for (;;) {
    if (const auto outcome = starting.outcome()) return *outcome;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

result<void> serve(const serve_options& options, const CLI::App& command) {
  if (auto good = check_options(options, command); !good) return good;
  // What is wrong with an address, keys or TLS is said before anything takes long.
  const auto alone = gateway_of(options, {});
  if (!alone) return alone.error();
  if (auto good = gateway::check_gateway(*alone); !good) return good;
  make_room(alone->limits.connections);
  auto behind = !options.folder.empty() ? connect(options)
                : !options.node.empty() ? start_node(options)
                                        : start_here(options);
  if (!behind) return behind.error();
  auto wanted = gateway_of(options, std::move(behind->model));
  if (!wanted) return wanted.error();
  const auto model = wanted->model.id;
  const auto* starting = behind->starting;
  auto running = gateway::gateway::start(std::move(*wanted), std::move(behind->backend));
  if (!running) return running.error();
  if (starting != nullptr)
    if (auto started = wait_for(*starting); !started) return started;
  say_ready(options, **running, model);
  wait_for_stop();
  notify("STOPPING=1");
  (*running)->stop();
  return {};
}

void add_what(CLI::App& command, serve_options& options) {
  command.add_option("--model", options.model, "Folder of the model; none: the bundled `lineage`")
      ->type_name(folder_value);
  command
      .add_option("--cluster", options.cluster,
                  "Cluster file (TOML) of the servers in this process; none: the bundled edge8")
      ->type_name(file_value);
  command
      .add_option("--dir", options.folder,
                  "Answer from the running cluster of this folder (`ordermoe cluster up`)")
      ->type_name(folder_value);
  command
      .add_option("--node", options.node,
                  "Run this node of a cluster (node.toml), and answer from it")
      ->type_name(file_value);
  add_log_flags(command, options.log);
  command
      .add_option("--plan", options.plan,
                  "plan.json, as `ordermoe plan` writes it; none: one is made, which takes a "
                  "while, but for the bundled model")
      ->type_name(file_value);
  add_strategy(command, options.strategy, "How to plan; none: ordermoe, or that of --plan");
  command.add_option(
      "--quality-budget", options.quality,
      "Perplexity that answers may lose, in per cent, or `unbounded`; none: 0, or that of "
      "--plan");
  command.add_option("--costs", options.costs, "What the planner charges")->capture_default_str();
  add_device(command, options.device);
  command.add_option("--name", options.name, "The model's name to clients; none: its folder's");
  command
      .add_option("--threads", options.threads,
                  "Threads that each server computes with; 0: the machine's, shared")
      ->check(whole_from(0, 1024))
      ->capture_default_str();
}

void add_who(CLI::App& command, serve_options& options) {
  command
      .add_option("--listen", options.listen,
                  "HOST:PORT, port 0 for any; other hosts only with keys and TLS")
      ->capture_default_str();
  command.add_option("--api-keys", options.keys, "File with a key a line; clients show one")
      ->type_name(file_value);
  command.add_option("--tls-certificate", options.certificate, "PEM, its chain behind it")
      ->type_name(file_value);
  command.add_option("--tls-key", options.key, "PEM")->type_name(file_value);
}

void add_limits(CLI::App& command, serve_options& options) {
  command.add_option("--most-running", options.running, "Answers that are made at a time")
      ->check(whole_from(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--most-waiting", options.waiting,
                  "Answers that wait for their turn; more are told to come later (429)")
      ->check(whole_from(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--most-choices", options.choices, "Answers to one request (n)")
      ->check(whole_from(1, 1024))
      ->capture_default_str();
  command
      .add_option("--default-tokens", options.tokens,
                  "Tokens of a chat's answer at most, where the request does not say")
      ->check(whole_from(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--longest-s", options.longest_s, "Seconds that an answer may take")
      ->check(number_from(0.001, 86400))
      ->capture_default_str();
  command.add_option("--most-body-kib", options.body_kib, "KiB of a request's body")
      ->check(whole_from(1, 1 << 20))
      ->capture_default_str();
}

}  // namespace

void add_serve(CLI::App& app) {
  auto& command = *app.add_subcommand("serve", "Answer over HTTP, as OpenAI's interface does");
  auto options = std::make_shared<serve_options>();
  add_who(command, *options);
  add_what(command, *options);
  add_limits(command, *options);
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Without --dir, all servers of the cluster file are in this process. Runs until it is "
      "interrupted.\n"
      "docs/SERVING.md has what it answers. Examples:\n"
      "  ordermoe serve\n"
      "  ordermoe serve --dir edge --listen 127.0.0.1:8000");
  set_body(command, [options, &command] { return serve(*options, command); });
}

}  // namespace ordermoe::cli
