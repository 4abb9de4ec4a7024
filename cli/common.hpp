#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/experiments/experiment.hpp"
#include "config/cluster.hpp"
#include "config/error.hpp"
#include "model/text/chat_template.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"
#include "setup/preparation.hpp"

/// What the subcommands share: exit codes, interrupts, progress, and reading their common inputs.
namespace ordermoe::cli {

/// Set by SIGINT and SIGTERM; long work asks it and ends with errc::interrupted.
bool stop_requested();
void install_signal_handlers();

/// Prints "ordermoe: message" on stderr and returns the exit code.
int report(const error& problem);

/// One line on stderr that is rewritten in place, and only on a terminal.
class progress_line {
 public:
  explicit progress_line(std::string what) : what_(std::move(what)) {}
  ~progress_line();
  void show(double share_done, const std::string& detail = {});

 private:
  std::string what_;
  int last_percent_ = -1;
  bool shown_ = false;
};

/// The folder with the bundled models, texts and clusters: $ORDERMOE_DATA, or data/ of the source
/// tree that this program was built from.
std::filesystem::path data_folder();

/// A subcommand: parses its options in CLI11 and runs when chosen.
using command_body = std::function<result<void>()>;
void set_body(CLI::App& command, command_body body);
/// Runs the chosen subcommand's body and gives the exit code.
int run_chosen();

/// The options that most subcommands take, and what they name.
struct world_options {
  std::string model, cluster, costs = "mixtral-8x7b", profile, expert_precision = "stored";
  std::string dense_precision = "stored";
  std::string kv_precision = "bf16";
  std::uint64_t seed = 1;
  bool json = false;
  bool choose_precision = false;
  bool own_weights = false;
  void add(CLI::App& command, bool needs_cluster);
  /// Of commands that run the model; the others load it as stored.
  void add_precisions(CLI::App& command);
  void add_choose_precision(CLI::App& command);
  /// --choose-precision and --own-weights, of commands that run one strategy.
  void add_server_weights(CLI::App& command);
};

/// --expert-precision and --dense-precision of a command that has no world.
void add_precisions(CLI::App& command, std::string& expert, std::string& dense);
/// What they name, for load().
result<void> set_precisions(model::load_options& loading, const std::string& expert,
                            const std::string& dense);

struct world {
  std::string model_name;
  std::shared_ptr<const model::transformer> model;
  std::shared_ptr<const model::tokenizer> tokens;
  cost_profile costs;
  cluster servers;
  planning::profile experts;
};

/// An emulated run in that world, without a strategy or requests.
actors::run_setup setup_of(const world& loaded, std::uint64_t seed);

result<std::filesystem::path> existing_folder(const std::string& path, const char* flag);
/// Loads what the options name. Without --profile, uses MODEL/profile.json where it belongs to the
/// model, or else calibrates on the bundled calibration text.
result<world> load_world(const world_options& options);
result<cost_profile> load_costs(const std::string& name, const model::model_config& shape);
/// Calibrates on a text file and gives the profile.
result<planning::profile> calibrate_on(const std::filesystem::path& model_folder,
                                       const model::transformer& model,
                                       const model::tokenizer& tokens,
                                       const std::filesystem::path& text, std::size_t max_tokens,
                                       std::uint64_t seed,
                                       const std::vector<precision>& copies = {});

/// The model's experts at every precision that servers may keep them in: those of the cluster and
/// of a plan that is given, and with --choose-precision those that the profile has. Before a
/// strategy is chosen.
result<void> load_coarser(actors::run_setup& setup, const world_options& options,
                          const planning::strategy_options& choice);
/// With --own-weights: each server loads the experts that the chosen plan places on it, and nothing
/// is shared any more. Errors also: infeasible where that is more than a server has, as the
/// cluster's memory is meant where the model charges its own costs.
result<void> load_own_weights(actors::run_setup& setup, const world_options& options);

/// A text file as documents of at most `document_tokens` tokens, `max_tokens` in all.
result<std::vector<std::vector<std::int32_t>>> read_documents(const std::filesystem::path& path,
                                                              const model::tokenizer& tokens,
                                                              std::size_t document_tokens,
                                                              std::size_t max_tokens);

struct prompt {
  std::string text;  ///< Where there are messages, the last of them.
  std::vector<model::chat_message> messages;
};

/// Prompts: a JSON object with `prompt` or with `messages` (role and content) on each line, or
/// plain lines; "-" reads standard input.
result<std::vector<prompt>> read_prompts(const std::string& path);

/// Parses "0", "1.5", "unbounded" (negative).
result<double> parse_quality(const std::string& text);

/// prepare_strategy on the bundled calibration text.
result<void> choose_strategy(actors::run_setup& setup, const std::string& name,
                             const planning::strategy_options& options);

/// The comparison table on stdout.
void print_table(const std::vector<experiments::strategy_report>& strategies);
/// A line where a strategy keeps the whole model coarser.
void print_whole_model(const experiments::strategy_report& report);

// One for each subcommand.
void add_demo(CLI::App& app);
void add_run(CLI::App& app);
void add_eval(CLI::App& app);
void add_calibrate(CLI::App& app);
void add_plan(CLI::App& app);
void add_cluster(CLI::App& app);
void add_testbed(CLI::App& app);
void add_trace(CLI::App& app);
void add_model(CLI::App& app);

}  // namespace ordermoe::cli
