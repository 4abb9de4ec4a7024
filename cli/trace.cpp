#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "trace/verify.hpp"

namespace ordermoe::cli {

void add_trace(CLI::App& app) {
  auto& parent = *app.add_subcommand("trace", "Work with traces");
  parent.require_subcommand(1);
  auto& command =
      *parent.add_subcommand("verify", "Check every constraint and every decision of a trace");
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command.add_option("file", *file, "trace.jsonl written by `ordermoe run --trace`")->required();
  command.add_flag("--json", *json, "Print JSON on standard output");
  command.footer("Example:\n  ordermoe trace verify trace.jsonl");
  set_body(command, [file, json]() -> result<void> {
    result<trace::trace_summary> checked = error{errc::failed, "not run"};
    {
      progress_line line("verifying");
      checked = trace::verify_trace(*file, [&](double share) { line.show(share); });
    }
    if (!checked) return checked.error();
    const auto& s = *checked;
    if (*json) {
      nlohmann::ordered_json j{{"valid", true},
                               {"strategy", s.strategy},
                               {"seed", s.seed},
                               {"lines", s.lines},
                               {"sha256", s.sha256},
                               {"requests", s.requests},
                               {"prompt_tokens", s.prompt_tokens},
                               {"new_tokens", s.new_tokens},
                               {"decisions", s.decisions},
                               {"snapshots", s.snapshots},
                               {"batches", s.batches},
                               {"transfers", s.charged.messages},
                               {"charged_bytes", s.charged.charged()},
                               {"loss_units", s.loss},
                               {"duration_ns", s.duration_ns}};
      for (std::size_t i = 0; i < s.slots.size(); ++i)
        j["slots"][to_string(static_cast<actors::execution_kind>(i))] = s.slots[i];
      fmt::print("{}\n", j.dump(2));
      return {};
    }
    fmt::print(
        "{}: valid. {} lines, sha256 {}\n"
        "strategy {}, seed {}: {} requests, {} prompt and {} new tokens, {} decisions, {} batches, "
        "{} transfers, {:.1f} MB charged, {:.2f} s\n",
        *file, s.lines, s.sha256, s.strategy, s.seed, s.requests, s.prompt_tokens, s.new_tokens,
        s.decisions, s.batches, s.charged.messages, static_cast<double>(s.charged.charged()) * 1e-6,
        static_cast<double>(s.duration_ns) * 1e-9);
    return {};
  });
}

}  // namespace ordermoe::cli
