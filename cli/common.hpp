#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "config/error.hpp"
#include "config/job.hpp"
#include "model/transformer.hpp"
#include "setup/world.hpp"

/// What the subcommands share: exit codes, interrupts, progress, and their common options.
namespace ordermoe::cli {

/// The work of this process; SIGINT and SIGTERM stop it, and it ends with errc::interrupted.
job& work();
bool stop_requested();
void install_signal_handlers();
/// Until a signal stops the work; sleeps meanwhile. Of one thread, once the handlers are installed.
void wait_for_stop();

/// Prints "ordermoe: message" on stderr and returns the exit code.
int report(const error& problem);

/// What is wrong with a command line, in this program's words.
std::string text_of(const CLI::ParseError& problem);

/// As long as it lives, shows on stderr how far work() is, and only on a terminal.
class progress_display {
 public:
  progress_display();
  /// Clears the line: only then standard output is written to.
  ~progress_display();
  progress_display(const progress_display&) = delete;
  progress_display& operator=(const progress_display&) = delete;

 private:
  std::jthread thread_;
};

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

/// A subcommand: parses its options in CLI11 and runs when chosen.
using command_body = std::function<result<void>()>;
void set_body(CLI::App& command, command_body body);
/// This body is run, whatever command was named.
void set_chosen(command_body body);
/// Runs the chosen subcommand's body and gives the exit code. Where SIGINT interrupted it this process ends by that signal, so
/// that a shell leaves the loop around it.
int run_chosen();

/// Parses the command line, with a suggestion for names that are misspelt, and runs what it names.
int run_command_line(CLI::App& app, int argc, char** argv);

/// What an option's value is called where it names a file or a folder: shells complete by it.
inline constexpr const char* file_value = "FILE";
inline constexpr const char* folder_value = "FOLDER";
inline constexpr const char* memory_as_drawn_help =
    "Servers have 12 to 48 GB as drawn, whatever the model weighs, instead of a ratio";

inline constexpr const char* dense_by_layer_help =
    "With --memory-as-drawn: what layers have besides experts, and room for keys and values, only "
    "with their experts, a share with each, as a pipeline's stage has its own layers'; servers "
    "have the more memory";

/// A finite number from low to high; NaN and what only begins with a number are refused.
CLI::Validator number_from(double low, double high);
/// A whole number from low to high, without sign.
CLI::Validator whole_from(std::uint64_t low, std::uint64_t high);
/// A cost profile that check_cost_profile knows.
CLI::Validator cost_profile_check();
/// --seed: a whole number below 2^64.
CLI::Option* add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what);
CLI::Option* add_search_steps(CLI::App& command, std::size_t& steps);
CLI::Option* add_strategy(CLI::App& command, std::string& strategy, const std::string& what);

/// --device: what every server computes on.
CLI::Option* add_device(CLI::App& command, std::string& device);

/// The options that most subcommands take.
struct world_flags {
  std::string model, cluster, costs = "mixtral-8x7b", profile, expert_precision = "stored";
  std::string dense_precision = "stored";
  std::string kv_precision = "bf16";
  std::string device;  ///< Empty: what the cluster file says of each server.
  std::uint64_t seed = 1;
  bool json = false;
  bool choose_precision = false, choose_pruning = false;
  bool own_weights = false;
  void add(CLI::App& command, bool needs_cluster);
  /// Of commands that run the model; the others load it as stored.
  void add_precisions(CLI::App& command);
  void add_choose_pruning(CLI::App& command);
  /// --choose-precision and --choose-pruning.
  void add_choices(CLI::App& command);
  /// These and --own-weights, of commands that run one strategy.
  void add_server_weights(CLI::App& command);
  /// What they ask for.
  result<setup::world_options> options() const;
};

/// The world that the options name, and a note on stderr where a profile had to be made or does not
/// fit the model.
result<setup::world> load_world(const setup::world_options& options);
result<setup::world> load_world(const world_flags& flags);

/// Says on stderr what servers compute on, where that is not the kernels alone, and what that means for answers.
void tell_of_devices(const cluster& servers);

/// Says on stderr why a profile is no ground for a budget (setup/calibration.hpp).
void warn_of(const error& unfit);

/// --expert-precision and --dense-precision of a command that has no world.
void add_precisions(CLI::App& command, std::string& expert, std::string& dense);
/// What they name, for load().
result<void> set_precisions(model::load_options& loading, const std::string& expert,
                            const std::string& dense);

/// Error: not_found, naming what is there in its place.
result<std::filesystem::path> existing_folder(const std::string& path, const char* flag);

/// What is in a folder, as what a command reads.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder);
/// Whether both name the same file, there or not, which what is written to one would take from the other.
bool are_one_file(const std::filesystem::path& a, const std::filesystem::path& b);
/// What a command is about to write can be written, and is none of the files that it reads. `flag`
/// is named in messages; an empty path is fine. Error: io or usage.
result<void> check_output(const std::string& flag, const std::filesystem::path& path,
                          const std::vector<std::filesystem::path>& inputs = {});

/// Parses "0", "1.5", "unbounded" (negative).
result<double> parse_quality(const std::string& text);
/// That of one request. Error: usage.
result<double> parse_stated_quality(const std::string& text);

// One for each subcommand.
void add_demo(CLI::App& app);
void add_run(CLI::App& app);
void add_eval(CLI::App& app);
void add_calibrate(CLI::App& app);
void add_plan(CLI::App& app);
void add_cert(CLI::App& app);
void add_cluster(CLI::App& app);
void add_relay(CLI::App& app);
void add_testbed(CLI::App& app);
void add_trace(CLI::App& app);
void add_model(CLI::App& app);
void add_node(CLI::App& app);
void add_admin(CLI::App& app);
void add_serve(CLI::App& app);
void add_chat(CLI::App& app);

}  // namespace ordermoe::cli
