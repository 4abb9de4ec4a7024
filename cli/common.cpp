#include "cli/common.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <set>
#include <sstream>

#include "config/files.hpp"
#include "config/json.hpp"
#include "model/architecture/half_trained.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "setup/calibration_profile.hpp"

namespace ordermoe::cli {

namespace fs = std::filesystem;

namespace {

std::atomic<bool> stop_flag{false};
command_body chosen_body;

}  // namespace

bool stop_requested() {
  return stop_flag.load(std::memory_order_relaxed);
}

void install_signal_handlers() {
  const auto handler = [](int) { stop_flag.store(true, std::memory_order_relaxed); };
  std::signal(SIGINT, handler);
  std::signal(SIGTERM, handler);
}

int report(const error& problem) {
  fmt::print(stderr, "ordermoe: {}\n", problem.message);
  return exit_code(problem.code);
}

progress_line::~progress_line() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void progress_line::show(double share_done, const std::string& detail) {
  static const bool terminal = ::isatty(STDERR_FILENO) != 0;
  const int percent = static_cast<int>(100 * share_done);
  if (!terminal || percent == last_percent_) return;
  last_percent_ = percent;
  shown_ = true;
  fmt::print(stderr, "\r\033[K{} {:3d} % {}", what_, percent, detail);
  std::fflush(stderr);
}

fs::path data_folder() {
  if (const char* named = std::getenv("ORDERMOE_DATA")) return named;
  return ORDERMOE_SOURCE_DATA;
}

void set_body(CLI::App& command, command_body body) {
  command.callback([body = std::move(body)] { chosen_body = body; });
}

int run_chosen() {
  if (!chosen_body) return 0;
  const auto done = chosen_body();
  if (!done) return report(done.error());
  if (std::fflush(stdout) != 0) return report({errc::io, "standard output cannot be written"});
  return 0;
}

void world_options::add(CLI::App& command, bool needs_cluster) {
  command.add_option("--model", model, "Folder with config.json, safetensors and tokenizer.model")
      ->required();
  if (needs_cluster)
    command.add_option("--cluster", cluster, "Cluster file (TOML); see `cluster draw`")->required();
  command
      .add_option(
          "--costs", costs,
          "What the emulation charges: mixtral-8x7b, qwen1.5-moe-a2.7b, switch-base-8 or measured")
      ->capture_default_str();
  command
      .add_option("--kv-precision", kv_precision,
                  "How keys and values are kept: bf16, or fp32 in twice the memory")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  command.add_option("--profile", profile, "Calibration profile; made when missing");
  command.add_option("--seed", seed, "Seed of everything random")->capture_default_str();
  command.add_flag("--json", json, "Print JSON on standard output");
}

void world_options::add_precisions(CLI::App& command) {
  cli::add_precisions(command, expert_precision, dense_precision);
}

void world_options::add_choose_precision(CLI::App& command) {
  command.add_flag("--choose-precision", choose_precision,
                   "Let the ordermoe planner keep experts coarser, on some servers or in the whole "
                   "model, where that pays; the profile says what copies cost (`calibrate`)");
}

void world_options::add_server_weights(CLI::App& command) {
  add_choose_precision(command);
  command.add_flag("--own-weights", own_weights,
                   "Each server loads only the experts that its plan hosts, and what every server "
                   "has; otherwise servers of this process share one copy");
}

void add_precisions(CLI::App& command, std::string& expert, std::string& dense) {
  const CLI::IsMember known({"stored", "bf16", "int8", "int4"});
  command
      .add_option("--expert-precision", expert,
                  "What expert weights are turned into: stored (as in the checkpoint), bf16, int8 "
                  "or int4")
      ->check(known)
      ->capture_default_str();
  command
      .add_option("--dense-precision", dense,
                  "The same for attention's projections, dense feed-forward and the output head")
      ->check(known)
      ->capture_default_str();
}

result<void> set_precisions(model::load_options& loading, const std::string& expert,
                            const std::string& dense) {
  const auto experts = parse_precision(expert);
  if (!experts) return at("--expert-precision", experts.error());
  const auto others = parse_precision(dense);
  if (!others) return at("--dense-precision", others.error());
  loading.expert_precision = *experts;
  loading.dense_precision = *others;
  return {};
}

actors::run_setup setup_of(const world& loaded, std::uint64_t seed) {
  actors::run_setup setup;
  setup.model = loaded.model;
  setup.tokens = loaded.tokens;
  setup.servers = loaded.servers;
  setup.costs = loaded.costs;
  setup.profile = loaded.experts;
  setup.seed = seed;
  setup.should_stop = stop_requested;
  return setup;
}

result<fs::path> existing_folder(const std::string& path, const char* flag) {
  std::error_code status;
  if (auto half = model::check_not_half_trained(path); !half) return at(flag, half.error());
  if (!fs::is_directory(path, status))
    return error{errc::not_found, fmt::format("{} {}: no such folder; check the path", flag, path)};
  return fs::path(path);
}

result<cost_profile> load_costs(const std::string& name, const model::model_config& shape) {
  if (name != "measured") return named_cost_profile(name);
  return model::own_costs(shape);
}

result<std::vector<std::vector<std::int32_t>>> read_documents(const fs::path& path,
                                                              const model::tokenizer& tokens,
                                                              std::size_t document_tokens,
                                                              std::size_t max_tokens) {
  const auto text = read_file(path);
  if (!text) return text.error();
  std::vector<std::vector<std::int32_t>> documents;
  std::size_t total = 0;
  const auto ids = tokens.encode(*text);
  for (std::size_t at = 0; at < ids.size() && total < max_tokens; at += document_tokens) {
    const auto n = std::min({document_tokens, ids.size() - at, max_tokens - total});
    if (n < 2) break;
    documents.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                           ids.begin() + static_cast<std::ptrdiff_t>(at + n));
    total += n;
  }
  if (documents.empty())
    return error{errc::out_of_range,
                 fmt::format("{}: the text is too short, it has {} tokens; give at least 2",
                             path.string(), ids.size())};
  return documents;
}

result<planning::profile> calibrate_on(const fs::path& model_folder,
                                       const model::transformer& model,
                                       const model::tokenizer& tokens, const fs::path& text,
                                       std::size_t max_tokens, std::uint64_t seed,
                                       const std::vector<precision>& copies) {
  const auto documents = read_documents(
      text, tokens, std::min<std::size_t>(256, model.config().max_context), max_tokens);
  if (!documents) return documents.error();
  progress_line line("calibrating");
  model::calibration_options options;
  options.seed = seed;
  for (const auto kept : copies) {
    model::load_options loading;
    loading.expert_precision = kept;
    auto coarser = model::transformer::load(model_folder, loading);
    if (!coarser) return coarser.error();
    options.copies.push_back({kept, std::move(*coarser)});
  }
  options.progress = [&](double share) { line.show(share); };
  options.should_stop = stop_requested;
  const auto statistics = model::calibrate(model, *documents, options);
  if (!statistics) return statistics.error();
  auto digest = model::model_digest(model_folder);
  if (!digest) return digest.error();
  return setup::make_profile(*statistics, fs::canonical(model_folder).filename().string(),
                             std::move(*digest), seed);
}

namespace {

/// Tokens to calibrate on where nobody says: 8192, or what 1e13 FLOPs execute, since every expert
/// runs on every token.
std::size_t usual_calibration(const model::model_config& shape) {
  constexpr double most_flops = 1e13;
  constexpr std::size_t least = 256, usual = 8192;
  const auto costs = model::own_costs(shape);
  const double of_token =
      static_cast<double>(shape.n_layers) *
      (static_cast<double>(costs.attention_flops) +
       static_cast<double>(shape.n_experts) * static_cast<double>(costs.expert_flops));
  return std::clamp(static_cast<std::size_t>(most_flops / of_token), least, usual);
}

}  // namespace

result<world> load_world(const world_options& options) {
  world loaded;
  const auto folder = existing_folder(options.model, "--model");
  if (!folder) return folder.error();
  loaded.model_name = fs::canonical(*folder).filename().string();
  model::load_options loading;
  if (auto set = set_precisions(loading, options.expert_precision, options.dense_precision); !set)
    return set.error();
  loading.kv =
      options.kv_precision == "bf16" ? model::kv_precision::bf16 : model::kv_precision::fp32;
  auto model = model::transformer::load(*folder, loading);
  if (!model) return model.error();
  loaded.model = *model;
  if (loading.expert_precision != model::precision::stored)
    loaded.model_name += fmt::format(" ({} experts)", options.expert_precision);
  if (loading.dense_precision != model::precision::stored)
    loaded.model_name += fmt::format(" ({} dense)", options.dense_precision);
  auto tokens = model::tokenizer::load(*folder);
  if (!tokens) return tokens.error();
  loaded.tokens = *tokens;
  const auto& shape = loaded.model->config();
  if (loaded.tokens->vocab_size() > shape.vocab_size)
    return error{
        errc::mismatch,
        fmt::format(
            "{}: the tokenizer has {} pieces, the model {} rows; they do not belong together",
            folder->string(), loaded.tokens->vocab_size(), shape.vocab_size)};
  auto costs = load_costs(options.costs, shape);
  if (!costs) return costs.error();
  loaded.costs = at_precision(std::move(*costs), loading.expert_precision, loading.dense_precision);
  if (!options.cluster.empty()) {
    auto servers = read_cluster(options.cluster);
    if (!servers) return servers.error();
    loaded.servers = std::move(*servers);
  }
  const auto digest = model::model_digest(*folder);
  if (!digest) return digest.error();
  const auto beside = *folder / "profile.json";
  std::error_code status;
  if (!options.profile.empty() || fs::exists(beside, status)) {
    const fs::path path = options.profile.empty() ? beside : fs::path(options.profile);
    auto experts = planning::read_profile(path);
    if (!experts) return experts.error();
    if (experts->model_digest != *digest)
      return error{errc::mismatch, fmt::format("{}: made for a model with digest {}, {} has {}; "
                                               "run `ordermoe calibrate` for this model",
                                               path.string(), experts->model_digest.substr(0, 12),
                                               folder->string(), digest->substr(0, 12))};
    loaded.experts = std::move(*experts);
    return loaded;
  }
  fmt::print(
      stderr,
      "ordermoe: no profile given and none in the model folder; calibrating on the bundled text\n");
  auto experts = calibrate_on(*folder, *loaded.model, *loaded.tokens,
                              data_folder() / "eval" / "calibration.txt", usual_calibration(shape),
                              options.seed);
  if (!experts) return experts.error();
  loaded.experts = std::move(*experts);
  return loaded;
}

result<void> load_coarser(actors::run_setup& setup, const world_options& options,
                          const planning::strategy_options& choice) {
  std::set<precision> wanted;
  for (const auto& server : setup.servers.servers) wanted.insert(server.expert_precision);
  if (choice.plan)
    wanted.insert(choice.plan->expert_precision.begin(), choice.plan->expert_precision.end());
  if (options.choose_precision) {
    const auto& copies = setup.profile.layers.front().copies;
    if (copies.empty())
      return error{errc::mismatch,
                   fmt::format("--choose-precision: the profile of {} does not say what coarser "
                               "experts cost; run `ordermoe calibrate` for this model",
                               options.model)};
    for (const auto& copy : copies) wanted.insert(copy.kept);
  }
  wanted.erase(precision::stored);
  if (wanted.empty()) return {};
  if (options.expert_precision != to_string(precision::stored))
    return error{
        errc::usage,
        fmt::format("--expert-precision {}: servers of the cluster or plan keep experts in "
                    "precisions of their own, which are those of the model as stored; "
                    "leave it out",
                    options.expert_precision)};
  for (const auto kept : wanted) {
    model::load_options loading;
    if (auto set = set_precisions(loading, to_string(kept), options.dense_precision); !set)
      return set.error();
    loading.kv = setup.model->kv();
    auto coarser = model::transformer::load(options.model, loading);
    if (!coarser) return coarser.error();
    setup.coarser[kept] = std::move(*coarser);
  }
  return {};
}

result<void> load_own_weights(actors::run_setup& setup, const world_options& options) {
  if (!options.own_weights) return {};
  const auto& placed = setup.chosen.plan;
  const planning::placement_index index(placed);
  std::vector<std::shared_ptr<const model::transformer>> own;
  for (std::size_t m = 0; m < placed.n_servers; ++m) {
    model::load_options loading;
    if (auto set = set_precisions(loading, options.expert_precision, options.dense_precision); !set)
      return set.error();
    if (setup.chosen.whole_model != precision::stored)
      loading.expert_precision = setup.chosen.whole_model;
    if (placed.precision_at(m) != precision::stored)
      loading.expert_precision = placed.precision_at(m);
    loading.kv = setup.model->kv();
    loading.hosts = [&](layer_id layer, expert_id expert) {
      return index.hosts(m, layer.index(), expert.index());
    };
    auto loaded = model::transformer::load(options.model, loading);
    if (!loaded) return loaded.error();
    const auto& server = setup.servers.servers[m];
    const auto bytes = static_cast<std::int64_t>((*loaded)->resident_bytes());
    const auto room = server.memory_bytes - server.kv_bytes;
    if (options.costs == "measured" && bytes > room)
      return error{errc::infeasible,
                   fmt::format("server {} ({}): its weights take {} bytes, {} are left beside KV; "
                               "give it more memory or plan again",
                               m, server.name, bytes, room)};
    fmt::print(stderr, "server {} ({}): {:.1f} MB of weights\n", m, server.name,
               static_cast<double>(bytes) * 1e-6);
    own.push_back(std::move(*loaded));
  }
  setup.server_models = std::move(own);
  setup.model = setup.server_models.front();
  setup.coarser.clear();
  return {};
}

namespace {

std::vector<model::chat_message> read_messages(const json_value& list) {
  std::vector<model::chat_message> messages;
  for (const json_value& item : list.items()) {
    constexpr model::chat_role roles[] = {model::chat_role::system, model::chat_role::user,
                                          model::chat_role::assistant};
    const auto role = item.at("role").one_of({"system", "user", "assistant"});
    messages.push_back({roles[role], item.at("content").string()});
  }
  if (messages.empty()) list.refuse("no messages", "one at least");
  return messages;
}

}  // namespace

result<std::vector<prompt>> read_prompts(const std::string& path) {
  std::string text;
  if (path == "-") {
    std::ostringstream all;
    all << std::cin.rdbuf();
    text = all.str();
  } else {
    auto read = read_file(path, std::size_t{64} << 20);
    if (!read) return read.error();
    text = std::move(*read);
  }
  const auto place = path == "-" ? std::string("standard input") : path;
  std::vector<prompt> prompts;
  std::istringstream lines(text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    if (line.front() != '{') {
      prompts.push_back({line, {}});
      continue;
    }
    const auto where = fmt::format("{}:{}", place, number);
    auto document = json_document::parse(line, where);
    if (!document) return document.error();
    const auto root = (*document)->root();
    prompt read;
    if (const auto messages = root.find("messages")) {
      read.messages = read_messages(*messages);
      if (!read.messages.empty()) read.text = read.messages.back().content;
    } else {
      read.text = root.at("prompt").string();
    }
    if (const auto outcome = (*document)->outcome(); !outcome) return outcome.error();
    if (read.text.empty())
      return error{errc::out_of_range,
                   fmt::format("{}: `{}` is empty; remove the line or give a text", where,
                               read.messages.empty() ? "prompt" : "content")};
    prompts.push_back(std::move(read));
  }
  if (prompts.empty())
    return error{
        errc::out_of_range,
        place + ": no prompts; give one a line, as plain text or as {\"prompt\": \"...\"}"};
  return prompts;
}

result<double> parse_quality(const std::string& text) {
  if (text == "unbounded") return -1.0;
  std::size_t used = 0;
  double percent = -1;
  try {
    percent = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  if (used != text.size() || !std::isfinite(percent) || percent < 0 || percent > 1000)
    return error{errc::usage, fmt::format("--quality-budget '{}': expected a perplexity increase "
                                          "in per cent from 0 to 1000, or 'unbounded'",
                                          text)};
  return percent;
}

result<void> choose_strategy(actors::run_setup& setup, const std::string& name,
                             const planning::strategy_options& options) {
  constexpr std::size_t tuning_tokens = 8192;
  const auto context = std::min<std::size_t>(256, setup.model->config().max_context);
  const auto documents = read_documents(data_folder() / "eval" / "calibration.txt", *setup.tokens,
                                        context, tuning_tokens);
  if (!documents) return documents.error();
  progress_line line("planning " + name);
  line.show(0);
  return setup::prepare_strategy(setup, name, options, *documents);
}

void print_table(const std::vector<experiments::strategy_report>& strategies) {
  const auto number = [](std::optional<double> value, int digits, double scale = 1) {
    return value ? fmt::format("{:.{}f}", *value * scale, digits) : std::string("-");
  };
  const auto budget = [](const experiments::strategy_report& s) -> std::string {
    if (!s.quality_budget_percent) return "-";
    return *s.quality_budget_percent < 0 ? "none" : fmt::format("{:g}%", *s.quality_budget_percent);
  };
  fmt::print(
      "{:<18}{:>7} |{:>9}{:>9}{:>9}{:>9}{:>9} |{:>9} |{:>8}{:>8}{:>7}{:>8} |{:>6}{:>6}{:>6}{:>6} "
      "|{:>8}{:>6}{:>7}\n",
      "strategy", "budget", "latency", "p50", "p95", "TTFT", "per tok", "tokens/s", "hidden", "KV",
      "other", "ours", "loc=", "loc~", "rem=", "rem~", "ppl", "EM", "spent");
  fmt::print(
      "{:<18}{:>7} |{:>9}{:>9}{:>9}{:>9}{:>9} |{:>9} |{:>8}{:>8}{:>7}{:>8} |{:>6}{:>6}{:>6}{:>6} "
      "|{:>8}{:>6}{:>7}\n",
      "", "ppl", "ms mean", "ms", "ms", "ms mean", "ms mean", "", "MB/1k", "MB/1k", "MB/1k",
      "MB/1k", "%", "%", "%", "%", "", "", "%");
  for (const auto& s : strategies)
    fmt::print(
        "{:<18}{:>7} |{:>9.1f}{:>9.1f}{:>9.1f}{:>9.1f}{:>9.2f} |{:>9.1f} "
        "|{:>8.2f}{:>8.2f}{:>7.2f}{:>8.2f} |{:>6.1f}{:>6.1f}{:>6.1f}{:>6.1f} |{:>8}{:>6}{:>7}\n",
        s.name, budget(s), s.latency_ms.mean, s.latency_ms.p50, s.latency_ms.p95, s.ttft_ms.mean,
        s.tpot_ms.mean, s.throughput_tokens_per_s, s.per_1k(s.charged.hidden_bytes) * 1e-6,
        s.per_1k(s.charged.kv_bytes) * 1e-6, s.per_1k(s.charged.other_bytes) * 1e-6,
        s.per_1k(s.charged.serialised_bytes) * 1e-6, 100 * s.execution[0], 100 * s.execution[1],
        100 * s.execution[2], 100 * s.execution[3], number(s.perplexity, 4),
        number(s.exact_match, 2), number(s.budget_spent_ratio, 0, 100));
  for (const auto& s : strategies) print_whole_model(s);
}

void print_whole_model(const experiments::strategy_report& report) {
  if (report.whole_model == precision::stored) return;
  fmt::print(
      "{}: the whole model's experts in {}, which takes {:.2f} % of perplexity of its budget\n",
      report.name, to_string(report.whole_model), report.whole_model_percent);
}

}  // namespace ordermoe::cli
