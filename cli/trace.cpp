#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "cli/trace_gap.hpp"
#include "config/json_text.hpp"
#include "trace/merge.hpp"
#include "trace/verify.hpp"

namespace ordermoe::cli {

namespace {

struct merge_command {
  std::vector<std::string> parts;
  std::string out;
  bool json = false;
};

result<void> merge(const merge_command& options) {
  const std::vector<std::filesystem::path> parts(options.parts.begin(), options.parts.end());
  if (auto good = check_output("--out", options.out, parts); !good) return good;
  result<trace::merge_summary> merged = error{errc::failed, "not run"};
  {
    progress_line line("merging");
    merged = trace::merge_traces(parts, options.out, [&](double share) { line.show(share); });
  }
  if (!merged) return merged.error();
  if (options.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"out", options.out},
                                                        {"files", parts.size()},
                                                        {"lines", merged->lines},
                                                        {"requests", merged->requests}},
                                 2));
  else
    fmt::print("{}: {} lines of {} files, {} requests\n", options.out, merged->lines, parts.size(),
               merged->requests);
  return {};
}

void add_merge(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "merge", "Put the traces of a cluster's nodes together, so that they can be verified");
  auto options = std::make_shared<merge_command>();
  command.add_option("files", options->parts, "trace.jsonl of every node")
      ->type_name(file_value)
      ->required();
  command.add_option("--out", options->out, "File to write")->type_name(file_value)->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Example, after a cluster with --trace has ended:\n"
      "  ordermoe trace merge edge/nodes/*/trace.jsonl --out trace.jsonl");
  set_body(command, [options] { return merge(*options); });
}

}  // namespace

void add_trace(CLI::App& app) {
  auto& parent = *app.add_subcommand("trace", "Work with traces");
  parent.require_subcommand(1);
  add_merge(parent);
  add_trace_gap(parent);
  auto& command =
      *parent.add_subcommand("verify", "Check every constraint and every decision of a trace");
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command.add_option("file", *file, "trace.jsonl written by `ordermoe run --trace`")
      ->type_name(file_value)
      ->required();
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
      if (!s.mixed_devices.empty()) j["mixed_devices"] = s.mixed_devices;
      for (std::size_t i = 0; i < s.slots.size(); ++i)
        if (trace::is_told(s, i))
          j["slots"][to_string(static_cast<actors::execution_kind>(i))] = s.slots[i];
      fmt::print("{}\n", json_text(j, 2));
      return {};
    }
    fmt::print(
        "{}: valid. {} lines, sha256 {}\n"
        "strategy {}, seed {}: {} requests, {} prompt and {} new tokens, {} decisions, {} batches, "
        "{} transfers, {:.1f} MB charged, {:.2f} s\n",
        *file, s.lines, s.sha256, s.strategy, s.seed, s.requests, s.prompt_tokens, s.new_tokens,
        s.decisions, s.batches, s.charged.messages, static_cast<double>(s.charged.charged()) * 1e-6,
        static_cast<double>(s.duration_ns) * 1e-9);
    if (!s.mixed_devices.empty()) fmt::print("{}\n", s.mixed_devices);
    return {};
  });
}

}  // namespace ordermoe::cli
