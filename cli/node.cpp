#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <thread>

#include "cli/common.hpp"
#include "cli/log_writer.hpp"
#include "cli/service_manager.hpp"
#include "config/json_text.hpp"
#include "config/log_events.hpp"
#include "net/http/open_files.hpp"
#include "setup/joining.hpp"
#include "setup/node_setup.hpp"

namespace ordermoe::cli {

namespace {

struct node_command {
  std::string config;
  log_choice log;
  bool json = false;
};

std::string address_of(const actors::node& running) {
  return net::to_string(running.listens_at().empty() ? net::address{"nowhere", 0}
                                                     : running.listens_at().front());
}

void say_ready(const node_command& options, const std::string& name, const actors::node& running) {
  const auto at = address_of(running);
  if (options.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"name", name}, {"address", at}}));
  else
    fmt::print("{} serves at {}\n", name, at);
  std::fflush(stdout);
  notify("READY=1");
}

/// Every thread that asks for memory gets an arena of the allocator's for itself, up to eight for each processor, and what was
/// free in one stays there: after some hundreds of clients that asked for much, more than half of what a node held was that. So
/// there are no more arenas than processors, and what is free goes back to the system now and then. Of this process alone: an
/// embedding program's memory is its own.
class memory_upkeep {
 public:
  memory_upkeep() {
#ifdef __GLIBC__
    ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
#endif
  }
  void look() {
    constexpr std::chrono::seconds period(10);
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < period) return;
    last_ = now;
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

using seconds_clock = std::chrono::steady_clock;

/// Tells the service manager, as often as it wants to hear it, that all is well.
class liveness {
 public:
  void tell(const std::function<bool()>& is_well) {
    const auto now = seconds_clock::now();
    if (period_.count() == 0 || now - last_ < period_) return;
    last_ = now;
    if (is_well()) notify("WATCHDOG=1");
  }

 private:
  std::chrono::milliseconds period_ = watchdog_period();
  seconds_clock::time_point last_ = seconds_clock::now();
};

/// Tells it the same on a thread of its own while weights are loaded or let go, when there are no actors to ask.
class alive_meanwhile {
 public:
  alive_meanwhile() {
    if (const auto period = watchdog_period(); period.count() > 0)
      thread_ = std::jthread([period](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        do {
          notify("WATCHDOG=1");
          wake.wait_for(lock, stop, period, [] { return false; });
        } while (!stop.stop_requested());
        // Whoever tells it from then on counts from then on.
        notify("WATCHDOG=1");
      });
  }

 private:
  std::jthread thread_;
};

enum class node_end { asked, another_plan };

/// Alive as long as its actors answer.
node_end wait_for_end(actors::node& running, const node_file& file, const log_outlet& log,
                      memory_upkeep& memory) {
  liveness alive;
  setup::plan_watch plans(file, log);
  const auto is_well = [&] { return running.status_json().has_value(); };
  const auto pause = [&] {
    alive.tell(is_well);
    return stop_requested();
  };
  while (!pause()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    memory.look();
    if (plans.look(running, pause)) return node_end::another_plan;
  }
  return node_end::asked;
}

/// Until it is asked to end, or other files are there. `is_watched`: a service manager was told before that it is ready.
result<node_end> serve(const node_command& options, const node_file& file, const log_outlet& log,
                       memory_upkeep& memory, bool is_watched) {
  std::optional<alive_meanwhile> loading;
  if (is_watched) loading.emplace();
  auto ready = setup::prepare_node(file, work());
  if (!ready) return ready.error();
  ready->log = log;
  const auto boot = ready->transport.boot;
  const auto sink = ready->service.sink;
  auto running = actors::node::start(std::move(*ready));
  if (!running) return running.error();
  loading.reset();
  say_ready(options, file.name, **running);
  log.tell(log_event::node_ready, {{"address", address_of(**running)}, {"boot", boot}});
  const auto end = wait_for_end(**running, file, log, memory);
  if (end == node_end::asked) {
    notify("STOPPING=1");
    log.tell(log_event::node_ends, {});
  }
  const alive_meanwhile ending;
  result<void> closed;
  if (sink) closed = (*running)->close_trace();
  (*running)->stop();
  if (sink && closed) closed = sink->close();
  if (!closed) return closed.error();
  return end;
}

/// A service manager is told that it is ready: there is nothing to wait for but operators. False where it is asked to end.
result<bool> wait_for_plan(const node_command& options, const node_file& file,
                           const log_outlet& log) {
  if (options.json)
    fmt::print("{}\n",
               json_text(nlohmann::ordered_json{{"name", file.name}, {"waits_for", "plan"}}));
  else
    fmt::print(
        "{} asks the other members for the plan in force; where it is none yet, `ordermoe "
        "admin members add {}` lets it in\n",
        file.name, file.name);
  std::fflush(stdout);
  notify("READY=1\nSTATUS=waits for the plan in force, and to be added to the cluster");
  liveness alive;
  const auto come = setup::await_plan(file, {log,
                                             [&] {
                                               alive.tell([] { return true; });
                                               return stop_requested();
                                             },
                                             {}});
  if (come) return true;
  if (come.error().code == errc::interrupted) return false;
  return come.error();
}

result<void> run_node(const node_command& options) {
  memory_upkeep memory;  // Before there are other threads.
  net::raise_open_files();
  const auto file = read_node_file(options.config);
  if (!file) return file.error();
  const auto log = open_log_as_told(options.log, file->log, file->name);
  if (!log) return log.error();
  bool is_watched = setup::lacks_plan(*file);
  if (is_watched) {
    const auto goes_on = wait_for_plan(options, *file, *log);
    if (!goes_on) return goes_on.error();
    if (!*goes_on) return {};
  }
  for (;;) {
    const auto ended = serve(options, *file, *log, memory, is_watched);
    if (!ended) return ended.error();
    if (*ended == node_end::asked) return {};
    is_watched = true;
  }
}

}  // namespace

void add_node(CLI::App& app) {
  auto& command = *app.add_subcommand("node", "Run one server of a cluster");
  auto options = std::make_shared<node_command>();
  command.add_option("--config", options->config, "node.toml (config/README.md has the schema)")
      ->type_name(file_value)
      ->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  add_log_flags(command, options->log);
  command.footer(
      "Runs until it is interrupted. Where plan or profile are missing, it fetches those in force "
      "from the\n"
      "other members first, as soon as it is one itself.\n"
      "Example, after `ordermoe cluster up --dir edge`:\n"
      "  ordermoe node --config edge/nodes/s0/node.toml --log-level debug --log-format json");
  set_body(command, [options] { return run_node(*options); });
}

}  // namespace ordermoe::cli
