#include <fmt/format.h>

#include "cli/common.hpp"
#include "cli/shell.hpp"
#include "config/build_id.hpp"
#include "config/freed_memory.hpp"
#include "model/kernels/kernels.hpp"
#include "ordermoe_version.hpp"

namespace {

std::string version_line() {
  const auto id = ordermoe::build_id();
  return fmt::format("ordermoe {}{}", ordermoe::version_string,
                     id.empty() ? "" : fmt::format(" (build {})", id));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ordermoe;
  keep_freed_memory();
  cli::install_signal_handlers();
  CLI::App app{"Serves Mixture-of-Experts language models from several uneven edge servers."};
  app.set_version_flag("--version", version_line());
  app.require_subcommand(1);
  app.footer("Each subcommand's --help ends with an example that works as pasted.");
  cli::add_demo(app);
  cli::add_run(app);
  cli::add_eval(app);
  cli::add_calibrate(app);
  cli::add_plan(app);
  cli::add_cert(app);
  cli::add_cluster(app);
  cli::add_node(app);
  cli::add_admin(app);
  cli::add_serve(app);
  cli::add_chat(app);
  cli::add_relay(app);
  cli::add_testbed(app);
  cli::add_trace(app);
  cli::add_model(app);
  if (const auto code = cli::answer_shell(app, argc, argv)) return *code;
  if (auto good = model::check_kernels(); !good) return cli::report(good.error());
  return cli::run_command_line(app, argc, argv);
}
