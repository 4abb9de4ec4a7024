#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "config/error.hpp"
#include "planning/serving/ledgers.hpp"
#include "planning/serving/run_mode.hpp"

/// Checks a trace.jsonl after the fact, from the file alone. docs/TRACE.md states the fields and
/// the checks.
///
/// Goals: every decision recomputed by the code that made it, every byte and nanosecond of links
/// and servers derived anew from the decisions and compared with what links and servers wrote, each
/// for itself. Memory is bounded by requests in flight, links and servers, not by the length of the
/// trace. Non-goals: tensors (a trace holds router logits and no hidden states).
namespace ordermoe::trace {

/// What a trace that holds contains.
struct trace_summary {
  serving::run_mode mode = serving::run_mode::emulated;
  std::string strategy;
  std::uint64_t seed = 0;
  std::string
      mixed_devices;  ///< What to know where servers are of several kinds (config/devices.hpp).
  std::uint64_t lines = 0;  ///< The closing line not counted.
  std::uint64_t bytes = 0;  ///< Of the file.
  std::string sha256;       ///< Of all lines but the closing one.
  std::uint64_t requests = 0;
  std::uint64_t scored_requests = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;  ///< Sampled, an end of text included.
  std::int64_t decisions = 0;   ///< Rows times layers.
  serving::execution_counts slots{};
  std::int64_t loss = 0;  ///< Units, all requests.
  std::uint64_t snapshots = 0;
  std::uint64_t plans = 1;           ///< The first included.
  std::uint64_t policy_changes = 0;  ///< Of eq. (45).
  std::uint64_t batches = 0;
  std::uint64_t kv_changes = 0;
  serving::traffic charged;          ///< Sum over links.
  std::int64_t compute_busy_ns = 0;  ///< Sum over servers.
  std::int64_t duration_ns = 0;      ///< Latest time on any line.
};

/// Told the share of the work that is done, 0 to 1; the file is read twice, once for its hash.
using verify_progress = std::function<void(double share)>;

/// Errors name file:line, what was found and what was expected: not_found, io; malformed for a line
/// that the actors could not have written; failed where a check does not hold; those of
/// parse_header for the first line.
result<trace_summary> verify_trace(const std::filesystem::path& path,
                                   const verify_progress& progress = {});

/// Whether a summary tells of slots of this kind: few rules leave any out.
bool is_told(const trace_summary& summary, std::size_t kind);

/// For the command line: a table for people, an object for programs; each ends with a newline.
std::string summary_text(const trace_summary& summary);
std::string summary_json(const trace_summary& summary);

}  // namespace ordermoe::trace
