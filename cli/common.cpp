#include "cli/common.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "cli/spelling.hpp"
#include "config/devices.hpp"
#include "config/files.hpp"
#include "model/architecture/half_trained.hpp"
#include "planning/strategies/strategies.hpp"

namespace ordermoe::cli {

namespace fs = std::filesystem;

namespace {

job work_of_process;
command_body chosen_body;

/// Up once for each signal that asks to stop.
sem_t signals;
/// The last of them; 0: none came.
std::atomic<int> last_signal{0};

/// A signal handler may touch no more than atomics and a semaphore; all exist before any signal is caught.
void on_signal(int signal) {
  last_signal = signal;
  work_of_process.stop();
  ::sem_post(&signals);
}

}  // namespace

job& work() {
  return work_of_process;
}

bool stop_requested() {
  return work_of_process.stopped();
}

void wait_for_stop() {
  while (!stop_requested()) ::sem_wait(&signals);
}

void install_signal_handlers() {
  ::sem_init(&signals, 0, 0);
  // Whoever waits for input hears of it, too: no call is begun again.
  struct sigaction how = {};
  how.sa_handler = on_signal;
  ::sigaction(SIGINT, &how, nullptr);
  ::sigaction(SIGTERM, &how, nullptr);
}

int report(const error& problem) {
  std::fputs(fmt::format("ordermoe: {}\n", problem.message).c_str(), stderr);
  return exit_code(problem.code);
}

progress_display::progress_display() {
  if (::isatty(STDERR_FILENO) == 0) return;
  const auto show = [](const std::stop_token& stop) {
    constexpr auto period = std::chrono::milliseconds(100);
    std::mutex mutex;
    std::condition_variable_any wake;
    std::unique_lock lock(mutex);
    std::string last;
    auto since = std::chrono::steady_clock::now();
    while (!wake.wait_for(lock, stop, period, [] { return false; }) && !stop.stop_requested()) {
      const auto [phase, share] = work().now();
      if (phase.empty()) continue;
      const auto now = std::chrono::steady_clock::now();
      if (std::exchange(last, phase) != phase) since = now;
      std::fputs(fmt::format("\r\033[K{} {:3.0f} % {:4} s", phase, 100 * share,
                             std::chrono::duration_cast<std::chrono::seconds>(now - since).count())
                     .c_str(),
                 stderr);
      std::fflush(stderr);
    }
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  };
  try {
    thread_ = std::jthread(show);
  } catch (const std::system_error&) {
    // Without a thread to spare nothing is shown.
  }
}

progress_display::~progress_display() = default;

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

void set_body(CLI::App& command, command_body body) {
  command.callback([body = std::move(body)] { chosen_body = body; });
}

void set_chosen(command_body body) {
  chosen_body = std::move(body);
}

namespace {

constexpr auto no_output = "standard output cannot be written; make room or send it elsewhere";

/// What went wrong where it was asked to end is that it was asked to.
result<void> or_interrupted(error problem) {
  if (stop_requested()) return error{errc::interrupted, "interrupted"};
  return problem;
}

/// Libraries tell by exceptions that the system refuses something.
result<void> run_body() {
  try {
    if (auto done = chosen_body(); !done) return done;
  } catch (const model::device_failure& problem) {
    return error{errc::failed, problem.what()};
  } catch (const std::bad_alloc&) {
    return error{errc::failed, "the system gives no more memory; free some, or ask for less"};
  } catch (const fs::filesystem_error& problem) {
    return error{errc::io,
                 fmt::format("{}: {}", problem.path1().string(), problem.code().message())};
  } catch (const std::system_error& problem) {
    if (problem.code() == std::errc::resource_unavailable_try_again)
      return error{errc::failed,
                   "the system gives no more threads; ask for fewer with --threads, or end other "
                   "programs"};
    return or_interrupted({errc::io, fmt::format("{} ({})", no_output, problem.code().message())});
  } catch (const std::exception& problem) {
    return error{errc::failed, problem.what()};
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return or_interrupted({errc::io, no_output});
  return {};
}

}  // namespace

namespace {

/// As shells expect of who was interrupted: a loop goes on behind a command that only says that it failed.
int end_interrupted(int code) {
  if (last_signal == SIGTERM) return 128 + SIGTERM;
  if (last_signal != SIGINT) return code;
  std::fflush(nullptr);
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  return 128 + SIGINT;
}

}  // namespace

int run_chosen() {
  if (!chosen_body) return 0;
  const auto done = run_body();
  if (done) return 0;
  const int code = report(done.error());
  return done.error().code == errc::interrupted ? end_interrupted(code) : code;
}

std::string text_of(const CLI::ParseError& problem) {
  // Of a value that is none of those of an option the library says "--mode: lcoal not in {emulated,local}".
  const std::string said = problem.what();
  constexpr std::string_view between = " not in {";
  const auto name = said.find(": "), among = said.find(between);
  if (name == std::string::npos || among == std::string::npos || !said.ends_with('}')) return said;
  const auto found = said.substr(name + 2, among - name - 2);
  const auto begin = among + between.size();
  return fmt::format(
      "{}: found '{}'; {}", said.substr(0, name), found,
      nearest_of(found, CLI::detail::split(said.substr(begin, said.size() - 1 - begin), ',')));
}

int run_command_line(CLI::App& app, int argc, char** argv) {
  if (const auto misspelt = check_spelling(app, {argv + 1, argv + argc})) return report(*misspelt);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() == 0) return app.exit(problem);
    return report({errc::usage, text_of(problem)});
  }
  return run_chosen();
}

CLI::Validator number_from(double low, double high) {
  return {[low, high](std::string& text) -> std::string {
            double value = 0;
            const auto* end = text.data() + text.size();
            const auto read = std::from_chars(text.data(), end, value);
            if (read.ec == std::errc{} && read.ptr == end && value >= low && value <= high)
              return {};
            return fmt::format("found '{}', expected a number from {:g} to {:g}", text, low, high);
          },
          fmt::format("{:g} to {:g}", low, high)};
}

CLI::Validator cost_profile_check() {
  return {[](const std::string& text) {
            const auto known = check_cost_profile(text);
            return known ? std::string() : known.error().message;
          },
          ""};
}

CLI::Validator whole_from(std::uint64_t low, std::uint64_t high) {
  return {
      [low, high](std::string& text) -> std::string {
        std::uint64_t value = 0;
        const auto* end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        // The command line's reader takes what begins with 0 for octal.
        const bool is_octal = text.size() > 1 && text.front() == '0';
        if (read.ec == std::errc{} && read.ptr == end && value >= low && value <= high && !is_octal)
          return {};
        return fmt::format("found '{}', expected a whole number from {} to {}{}", text, low, high,
                           is_octal ? ", without zeros before it" : "");
      },
      fmt::format("{} to {}", low, high)};
}

CLI::Option* add_seed(CLI::App& command, std::uint64_t& seed, const std::string& what) {
  auto range = whole_from(0, UINT64_MAX);
  range.description("");
  return command.add_option("--seed", seed, what)->check(range)->capture_default_str();
}

CLI::Option* add_search_steps(CLI::App& command, std::size_t& steps) {
  return command.add_option("--search-steps", steps, "Moves that the ordermoe planner tries")
      ->check(whole_from(1, 1'000'000'000))
      ->capture_default_str();
}

CLI::Option* add_strategy(CLI::App& command, std::string& strategy, const std::string& what) {
  return command.add_option("--strategy", strategy, what)
      ->check(CLI::IsMember(planning::accepted_strategy_names()))
      ->transform(planning::canonical_strategy_name);
}

void world_flags::add(CLI::App& command, bool needs_cluster) {
  command.add_option("--model", model, "Folder with config.json, safetensors and tokenizer.model")
      ->type_name(folder_value)
      ->required();
  if (needs_cluster)
    command.add_option("--cluster", cluster, "Cluster file (TOML); see `cluster draw`")
        ->type_name(file_value)
        ->required();
  auto known = cost_profile_names();
  known.emplace_back("measured");
  command
      .add_option("--costs", costs,
                  fmt::format("What the emulation charges: {}, the last being the model itself; "
                              "behind it :batch-us=N for each batch and :message-us=N for each "
                              "message between servers",
                              fmt::join(known, ", ")))
      ->check(cost_profile_check())
      ->capture_default_str();
  command
      .add_option("--kv-precision", kv_precision,
                  "How keys and values are kept: bf16, or fp32 in twice the memory")
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  command
      .add_option("--profile", profile,
                  "Calibration profile; default: MODEL/profile.json, else one is made; none: "
                  "nothing is assumed of the model, which only " +
                      planning::strategies_without_profile() + " accept")
      ->type_name(file_value);
  add_seed(command, seed, "Seed of everything random");
  command.add_flag("--json", json, "Print JSON on standard output");
}

void world_flags::add_precisions(CLI::App& command) {
  cli::add_precisions(command, expert_precision, dense_precision);
}

CLI::Option* add_device(CLI::App& command, std::string& device) {
  return command
      .add_option(
          "--device", device,
          "What is computed on, by every server: cpu (the kernels), libtorch:cpu, libtorch:cuda:0; "
          "default: what the cluster file says of each, else cpu")
      ->check([](const std::string& name) {
        const auto known = check_device(name);
        return known ? std::string() : known.error().message;
      })
      ->type_name("DEVICE");
}

void world_flags::add_choices(CLI::App& command) {
  command.add_flag("--choose-precision", choose_precision,
                   "Let the ordermoe planner keep experts coarser, on some servers or in the whole "
                   "model, where that pays; the profile says what copies cost (`calibrate`)");
  add_choose_pruning(command);
}

void world_flags::add_choose_pruning(CLI::App& command) {
  command.add_flag("--choose-pruning", choose_pruning,
                   "Let the ordermoe planner leave the experts that are missed least out for "
                   "everybody, as static-pruning, where that is faster or nothing else fits; "
                   "requests cannot have less than that takes of the budget");
}

void world_flags::add_server_weights(CLI::App& command) {
  add_choices(command);
  command.add_flag("--own-weights", own_weights,
                   "Each server loads only the experts that its plan hosts, and what every server "
                   "has; otherwise servers of this process share one copy");
}

result<setup::world_options> world_flags::options() const {
  setup::world_options made;
  made.model = model;
  made.cluster = cluster;
  made.costs = costs;
  made.profile = profile;
  made.seed = seed;
  made.choose_precision = choose_precision;
  made.device = device;
  made.kv = kv_precision == "bf16" ? model::kv_precision::bf16 : model::kv_precision::fp32;
  model::load_options loading;
  if (auto set = set_precisions(loading, expert_precision, dense_precision); !set)
    return set.error();
  made.expert_precision = loading.expert_precision;
  made.dense_precision = loading.dense_precision;
  return made;
}

result<setup::world> load_world(const setup::world_options& options) {
  if (auto there = existing_folder(options.model, "--model"); !there) return there.error();
  auto loaded = setup::load_world(options, work());
  if (loaded) tell_of_devices(loaded->servers);
  if (loaded && loaded->made_profile)
    std::fputs(
        "ordermoe: no profile given and none in the model folder; calibrated on the bundled "
        "text\n",
        stderr);
  if (!loaded || (loaded->knows_nothing && loaded->servers.size() == 1)) return loaded;
  if (loaded->knows_nothing)
    fmt::print(
        stderr,
        "ordermoe: without a profile of {} every expert is taken to be chosen as often as any "
        "other, and a token's experts not to depend on those of the layer before; `ordermoe "
        "calibrate --connect` measures them on a running cluster\n",
        loaded->model_name);
  else if (loaded->unfit)
    warn_of(*loaded->unfit);
  return loaded;
}

void tell_of_devices(const cluster& servers) {
  if (const auto mixed = mixed_devices(servers); !mixed.empty())
    fmt::print(stderr, "ordermoe: {}\n", mixed);
  else if (names_devices(servers))
    fmt::print(stderr, "ordermoe: servers compute on {}\n", to_string(device_groups(servers)));
}

void warn_of(const error& unfit) {
  fmt::print(stderr, "ordermoe: {}; until then no quality budget above 0 is kept\n", unfit.message);
}

result<setup::world> load_world(const world_flags& flags) {
  const auto options = flags.options();
  if (!options) return options.error();
  return load_world(*options);
}

void add_precisions(CLI::App& command, std::string& expert, std::string& dense) {
  const CLI::IsMember known({"stored", "bf16", "int8", "int4"});
  command
      .add_option("--expert-precision", expert,
                  "What expert weights are turned into: stored (as in the checkpoint), bf16 (with "
                  "rows rounded to it, too), int8 or int4 (with rows in int8)")
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

namespace {

/// A large model may be here by its card alone, which has the command that makes it.
result<void> check_not_card_alone(const fs::path& folder, const char* flag) {
  std::error_code status;
  const auto card = folder / "CARD.md";
  if (!fs::exists(card, status) || fs::exists(folder / "config.json", status)) return {};
  constexpr std::size_t most_bytes = 1 << 20;
  constexpr std::string_view mark = "\n    ordermoe ";
  const auto text = read_file(card, most_bytes);
  const auto begin = text ? text->find(mark) : std::string::npos;
  if (begin == std::string::npos) return {};
  const auto command = text->substr(begin + 5, text->find('\n', begin + 1) - begin - 5);
  return error{errc::not_found,
               fmt::format("{} {}: found CARD.md and no model; as the card says it is made by `{}`",
                           flag, folder.string(), command)};
}

}  // namespace

result<fs::path> existing_folder(const std::string& path, const char* flag) {
  std::error_code status;
  if (auto half = model::check_not_half_trained(path); !half) return half.error();
  if (fs::is_directory(path, status)) {
    if (auto made = check_not_card_alone(path, flag); !made) return made.error();
    return fs::path(path);
  }
  if (fs::exists(path, status))
    return error{errc::not_found,
                 fmt::format("{} {}: found a file, expected a folder; name the one that it is in",
                             flag, path)};
  const char* data = std::getenv("ORDERMOE_DATA");
  if (data != nullptr && path.starts_with(data) && !fs::is_directory(data, status))
    return error{errc::not_found, fmt::format("ORDERMOE_DATA {}: no such folder; name the one that "
                                              "has models, clusters and texts, or unset it",
                                              data)};
  return error{errc::not_found, fmt::format("{} {}: no such folder; check the path", flag, path)};
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code status;
  for (fs::directory_iterator each(folder, status), end; !status && each != end;
       each.increment(status))
    all.push_back(each->path());
  return all;
}

bool are_one_file(const fs::path& a, const fs::path& b) {
  if (a.empty() || b.empty() || is_written_through(a)) return false;
  std::error_code status;
  if (fs::equivalent(a, b, status)) return true;
  // A relative path of which nothing is there yet stays relative otherwise.
  const auto first = fs::weakly_canonical(fs::absolute(a, status), status);
  return !status && first == fs::weakly_canonical(fs::absolute(b, status), status) && !status;
}

result<void> check_output(const std::string& flag, const fs::path& path,
                          const std::vector<fs::path>& inputs) {
  if (path.empty()) return {};
  if (auto writable = check_writable(path); !writable) return at(flag, writable.error());
  for (const auto& input : inputs) {
    if (are_one_file(path, input))
      return error{errc::usage,
                   fmt::format("{} {}: is a file that this command reads; choose another name",
                               flag, path.string())};
  }
  return {};
}

result<double> parse_quality(const std::string& text) {
  if (text == "unbounded") return -1.0;
  double percent = -1;
  const auto* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, percent);
  if (read.ec != std::errc{} || read.ptr != end || !(percent >= 0 && percent <= 1000))
    return error{errc::usage, fmt::format("--quality-budget '{}': expected a perplexity increase "
                                          "in per cent from 0 to 1000, or 'unbounded'",
                                          text)};
  return percent;
}

result<double> parse_stated_quality(const std::string& text) {
  const auto percent = parse_quality(text);
  if (percent && *percent >= 0 && *percent <= planning::most_stated_percent) return percent;
  return error{
      errc::usage,
      fmt::format("--quality-budget '{}': expected a perplexity increase in per cent from 0 "
                  "to {:g}, of each answer; leave it out for the plan's",
                  text, planning::most_stated_percent)};
}

}  // namespace ordermoe::cli
