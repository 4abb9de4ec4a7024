#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/common.hpp"
#include "cli/log_writer.hpp"
#include "cli/service_manager.hpp"
#include "config/log_events.hpp"
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
    fmt::print("{}\n", nlohmann::ordered_json{{"name", name}, {"address", at}}.dump());
  else
    fmt::print("{} serves at {}\n", name, at);
  std::fflush(stdout);
  notify("READY=1");
}

/// Alive as long as its actors answer.
void wait_for_end(actors::node& running) {
  const auto period = watchdog_period();
  auto last = std::chrono::steady_clock::now();
  while (!stop_requested()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto now = std::chrono::steady_clock::now();
    if (period.count() == 0 || now - last < period) continue;
    last = now;
    if (running.status_json()) notify("WATCHDOG=1");
  }
}

result<void> run_node(const node_command& options) {
  const auto file = read_node_file(options.config);
  if (!file) return file.error();
  const auto log = open_log_as_told(options.log, file->log, file->name);
  if (!log) return log.error();
  auto ready = setup::prepare_node(*file, work());
  if (!ready) return ready.error();
  ready->log = *log;
  const auto boot = ready->transport.boot;
  const auto sink = ready->service.sink;
  auto running = actors::node::start(std::move(*ready));
  if (!running) return running.error();
  say_ready(options, file->name, **running);
  log->tell(log_event::node_ready, {{"address", address_of(**running)}, {"boot", boot}});
  wait_for_end(**running);
  notify("STOPPING=1");
  log->tell(log_event::node_ends, {});
  result<void> closed;
  if (sink) closed = (*running)->close_trace();
  (*running)->stop();
  if (sink && closed) closed = sink->close();
  return closed;
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
      "Runs until it is interrupted.\n"
      "Example, after `ordermoe cluster up --dir edge`:\n"
      "  ordermoe node --config edge/nodes/s0/node.toml --log-level debug --log-format json");
  set_body(command, [options] { return run_node(*options); });
}

}  // namespace ordermoe::cli
