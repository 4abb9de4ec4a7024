#include "cli/testbed_experiments.hpp"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/experiments/testbed/page.hpp"
#include "bench/experiments/testbed/plot.hpp"
#include "cli/testbed_runner.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "ordermoe_version.hpp"

namespace ordermoe::cli {

namespace tb = experiments::testbed;

namespace {

struct experiment_options {
  std::string name;  ///< Of an experiment, or all.
  world_flags world;
  std::string out;
  bool is_quick = false;
  std::uint64_t seeds = 5, first_seed = 11;
  std::size_t at_once = 0;
  testbed_load load;
};

/// A number that --quick makes smaller unless it is stated.
struct quick_default {
  const char* flag;
  void (*set)(experiment_options&);
};

constexpr quick_default quick_defaults[] = {
    {"--seeds", [](experiment_options& o) { o.seeds = 1; }},
    {"--requests", [](experiment_options& o) { o.load.of.requests = 16; }},
    {"--max-new-tokens", [](experiment_options& o) { o.load.of.max_new_tokens = 24; }},
    {"--scored-tokens", [](experiment_options& o) { o.load.of.scored_tokens = 1536; }},
    {"--problems", [](experiment_options& o) { o.load.of.problems = 8; }},
    {"--search-steps", [](experiment_options& o) { o.load.of.search_steps = 1000; }},
    {"--trial-requests", [](experiment_options& o) { o.load.trial_requests = 8; }},
    {"--tuning-texts", [](experiment_options& o) { o.load.tuning_texts = 8; }}};

void complete(experiment_options& options, const CLI::App& command) {
  if (options.is_quick)
    for (const auto& each : quick_defaults)
      if (command.count(each.flag) == 0) each.set(options);
  constexpr double ms_per_token = 25;
  if (command.count("--sla-ms") == 0)
    options.load.sla_ms = ms_per_token * options.load.of.max_new_tokens;
  options.load.choose_pruning = options.world.choose_pruning;
  if (options.at_once == 0) options.at_once = std::max(1u, std::thread::hardware_concurrency());
}

result<tb::settings> settings_of(const experiment_options& options, const setup::world& loaded) {
  const auto origin = origin_of(loaded);
  if (!origin) return origin.error();
  const auto& load = options.load;
  tb::settings settings{{"version", version_string},
                        {"model", loaded.model_name},
                        {"model_digest", loaded.model_digest},
                        {"profile", sha256_hex(planning::profile_json(loaded.profile))},
                        {"costs", loaded.costs.name},
                        {"kv_precision", options.world.kv_precision},
                        {"seed", options.world.seed},
                        {"quick", options.is_quick},
                        {"requests", load.of.requests},
                        {"max_new_tokens", load.of.max_new_tokens},
                        {"scored_tokens", load.of.scored_tokens},
                        {"problems", load.of.problems},
                        {"search_steps", load.of.search_steps},
                        {"trial_requests", load.trial_requests},
                        {"tuning_texts", load.tuning_texts},
                        {"sla_ms", load.sla_ms}};
  if (load.choose_pruning) settings["choose_pruning"] = true;
  settings.update(*origin);
  return settings;
}

std::vector<const tb::experiment*> wanted(const std::string& name) {
  std::vector<const tb::experiment*> found;
  for (const auto& one : tb::experiments())
    if (name == "all" || one.name == name) found.push_back(&one);
  return found;
}

/// Figures and the page of all that the folder has. Without figures there is a page all the same.
result<void> write_page(const testbed_request& asked,
                        const std::vector<tb::measured_experiment>& all) {
  for (const auto& one : all) {
    const auto made = tb::draw_figures(asked.folder, *one.of, one.rows);
    if (!made && made.error().code != errc::failed) return made.error();
    if (!made) fmt::print(stderr, "ordermoe: {}\n", made.error().message);
    if (!made || *made == tb::drawn::figures) continue;
    fmt::print(stderr,
               "ordermoe: gnuplot is not there: no figures; Debian's package is gnuplot-nox, and "
               "the same command draws them then\n");
    break;
  }
  return write_file(asked.folder / "report.html", tb::page_html(asked.folder, asked.settings, all));
}

void print_json(const testbed_request& asked, const std::vector<tb::measured_experiment>& all) {
  auto out = nlohmann::ordered_json::object();
  out["settings"] = asked.settings;
  out["experiments"] = nlohmann::ordered_json::array();
  for (const auto& one : all)
    if (std::ranges::find(asked.experiments, one.of) != asked.experiments.end())
      out["experiments"].push_back(
          nlohmann::ordered_json::parse(tb::json_text(*one.of, one.rows, asked.settings)));
  out["claims"] = nlohmann::ordered_json::array();
  for (const auto& one : tb::judgements(all))
    out["claims"].push_back(
        {{"figure", one.about->figure},
         {"experiment", one.about->experiment},
         {"says", one.about->says},
         {"judged", one.subject},
         {"published", one.about->published ? nlohmann::ordered_json(*one.about->published)
                                            : nlohmann::ordered_json(nullptr)},
         {"measured",
          one.value ? nlohmann::ordered_json(one.value->median) : nlohmann::ordered_json(nullptr)},
         {"clusters", one.value ? one.value->n : 0},
         {"agrees_from", tb::rule_of(*one.about)},
         {"order", tb::to_string(one.ordering)},
         {"near", one.number_agrees ? nlohmann::ordered_json(*one.number_agrees)
                                    : nlohmann::ordered_json(nullptr)}});
  fmt::print("{}\n", json_text(out, 1));
}

void print_text(const testbed_request& asked, const std::vector<tb::measured_experiment>& all) {
  for (const auto& one : all) {
    if (std::ranges::find(asked.experiments, one.of) == asked.experiments.end()) continue;
    fmt::print("{}{}: {}\n", one.of->name,
               one.of->figure.empty() ? "" : fmt::format(" ({})", one.of->figure),
               one.of->question);
    if (!one.of->note.empty()) fmt::print("{}\n", one.of->note);
    fmt::print("\n{}\n", tb::table_text(one));
    for (const auto& found : tb::judgements({one})) fmt::print("- {}\n", tb::judgement_text(found));
    fmt::print("\n");
  }
  fmt::print("{}\n", (asked.folder / "report.html").string());
}

result<void> run(const experiment_options& options) {
  if (options.out.empty())
    return error{errc::usage, "--out: found no folder, expected one; name where to write"};
  testbed_request asked;
  asked.folder = options.out;
  asked.experiments = wanted(options.name);
  asked.how_much = options.is_quick ? tb::scale::quick : tb::scale::whole;
  asked.first_seed = options.first_seed;
  asked.seeds = options.seeds;
  asked.at_once = options.at_once;
  testbed_bench bench(options.world, options.load, asked.folder);
  if (auto opened = bench.open(); !opened) return opened;
  auto settings = settings_of(options, bench.stored());
  if (!settings) return settings.error();
  asked.settings = std::move(*settings);
  const auto outcome = run_experiments(asked, bench);
  if (!outcome) return outcome.error();
  const auto& all = outcome->experiments;
  if (auto written = write_page(asked, all); !written) return written;
  const bool is_cut_short = outcome->problem && outcome->problem->code == errc::interrupted;
  if (is_cut_short) return *outcome->problem;
  if (options.world.json)
    print_json(asked, all);
  else
    print_text(asked, all);
  if (outcome->problem) return *outcome->problem;
  return {};
}

struct page_options {
  std::string folder;
  bool json = false;
};

/// What an earlier run left, by today's tables and sentences; nothing is measured, and rows stay as they are.
result<void> rewrite_page(const page_options& options) {
  const auto folder = existing_folder(options.folder, "FOLDER");
  if (!folder) return folder.error();
  auto settings = tb::read_settings(*folder);
  if (!settings) return settings.error();
  const auto lock = tb::folder_lock::take(*folder);
  if (!lock) return lock.error();
  testbed_request asked;
  asked.folder = *folder;
  asked.settings = std::move(*settings);
  std::vector<tb::measured_experiment> all;
  for (const auto& one : tb::experiments()) {
    tb::rows_of_experiment rows(one, tb::scale_of(asked.settings));
    if (auto read = tb::read_rows(*folder, tb::digest_of(asked.settings), rows); !read) return read;
    if (auto in_order = rows.in_order(); !in_order.empty()) {
      all.push_back({&one, std::move(in_order)});
      asked.experiments.push_back(&one);
    }
  }
  if (all.empty())
    return error{errc::not_found,
                 fmt::format("{}: found no rows; measure some with `ordermoe testbed all --out {}`",
                             folder->string(), folder->string())};
  if (auto written = write_page(asked, all); !written) return written;
  if (options.json)
    print_json(asked, all);
  else
    print_text(asked, all);
  return {};
}

void add_page(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "page", "Write report.html and the figures of a folder again, from its rows");
  auto options = std::make_shared<page_options>();
  command
      .add_option("FOLDER", options->folder,
                  "Folder of an experiment, whichever build measured its rows")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--json", options->json, "Print settings, rows and findings as JSON");
  command.footer(
      "Example:\n  ordermoe testbed load --model data/models/lineage --quick --out testbed-quick\n "
      " "
      "ordermoe testbed page testbed-quick");
  set_body(command, [options] { return rewrite_page(*options); });
}

void add_numbers(CLI::App& command, experiment_options& options) {
  auto& load = options.load;
  command.add_option("--seeds", options.seeds, "Clusters to draw; --quick: 1")
      ->check(whole_from(1, 1000))
      ->capture_default_str();
  command
      .add_option("--first-seed", options.first_seed,
                  "Seed of the first cluster; 1 to 10 are those that strategies were made on")
      ->check(whole_from(0, UINT64_MAX - 1000))
      ->capture_default_str();
  command.add_option("--requests", load.of.requests, "Requests for each point; --quick: 16")
      ->check(whole_from(1, 100'000))
      ->capture_default_str();
  command
      .add_option("--max-new-tokens", load.of.max_new_tokens,
                  "New tokens for each request, all of them as many; --quick: 24")
      ->check(whole_from(1, 4096))
      ->capture_default_str();
  command
      .add_option("--scored-tokens", load.of.scored_tokens,
                  "Held-out tokens that perplexity is measured on; --quick: 1536")
      ->check(whole_from(16, 10'000'000))
      ->capture_default_str();
  command
      .add_option("--problems", load.of.problems, "Arithmetic problems for exact match; --quick: 8")
      ->check(whole_from(1, 100'000))
      ->capture_default_str();
  add_search_steps(command, load.of.search_steps);
  command
      .add_option("--trial-requests", load.trial_requests,
                  "Requests that candidate plans are tried on; --quick: 8")
      ->check(whole_from(1, 100'000))
      ->capture_default_str();
  command
      .add_option(
          "--tuning-texts", load.tuning_texts,
          "Texts that budgets are tuned on, of the model's, two at least; 0: all; --quick: 8")
      ->check(whole_from(0, 100'000))
      ->check([](const std::string& given) {
        return std::string(
            given == "1" ? "how texts differ says how sure a loss is: give 2 or more, or 0" : "");
      })
      ->capture_default_str();
  command
      .add_option("--sla-ms", load.sla_ms,
                  "A request is in time that is answered within this; default: 25 for each new "
                  "token")
      ->check(number_from(0, 1e9));
  command
      .add_option("--at-once", options.at_once,
                  "Points to measure at the same time; no row depends on it; 0: one a processor")
      ->check(whole_from(0, 1024))
      ->capture_default_str();
}

void add_one(CLI::App& parent, const std::string& name, const std::string& question) {
  auto& command = *parent.add_subcommand(name, question);
  auto options = std::make_shared<experiment_options>();
  options->name = name;
  options->world.add(command, false);
  options->world.add_choose_pruning(command);
  command
      .add_option("--out", options->out,
                  "Folder for rows, figures and report.html; one that an interrupted run left goes "
                  "on")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--quick", options->is_quick,
                   "One cluster, few points, texts and requests: minutes instead of hours");
  add_numbers(command, *options);
  command.footer(fmt::format(
      "Example:\n  ordermoe testbed {0} --model data/models/lineage --quick --out testbed-quick\n  "
      "ordermoe testbed {0} --model data/models/lineage --out testbed",
      name));
  auto* chosen = &command;
  set_body(command, [options, chosen]() -> result<void> {
    complete(*options, *chosen);
    return run(*options);
  });
}

}  // namespace

void add_experiments(CLI::App& parent) {
  for (const auto& one : tb::experiments()) {
    auto question = std::string(one.question);
    if (!one.figure.empty()) question += fmt::format(" ({} of the paper)", one.figure);
    add_one(parent, std::string(one.name), question);
  }
  add_one(parent, "all", "Every experiment, and one report of all of them");
  add_page(parent);
}

}  // namespace ordermoe::cli
