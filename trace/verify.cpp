#include "trace/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/sha256.hpp"
#include "trace/checker.hpp"
#include "trace/fields.hpp"

namespace ordermoe::trace {

namespace {

/// Lines of a file, one at a time.
class line_source {
 public:
  explicit line_source(const std::filesystem::path& path) : file_(path, std::ios::binary) {}
  bool is_open() const { return file_.is_open(); }
  /// False at the end. A last line without its newline is told by `is_complete`.
  bool next(std::string& text) {
    if (!std::getline(file_, text)) return false;
    complete_ = !file_.eof();
    bytes_ += text.size() + (complete_ ? 1 : 0);
    return true;
  }
  bool is_complete() const { return complete_; }
  bool is_bad() const { return file_.bad(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::ifstream file_;
  std::uint64_t bytes_ = 0;
  bool complete_ = true;
};

struct sealed_lines {
  std::uint64_t lines = 0;  ///< Before the closing one.
  std::uint64_t bytes = 0;
  std::string sha256;
};

/// The closing line against all lines before it.
result<sealed_lines> check_seal(const std::filesystem::path& path,
                                const std::function<void(std::uint64_t)>& tell) {
  line_source source(path);
  if (!source.is_open()) {
    const int why = errno;
    return error{why == ENOENT || why == ENOTDIR ? errc::not_found : errc::io,
                 fmt::format("{}: cannot be read: {}", path.string(), std::strerror(why))};
  }
  sha256 hash;
  std::string text, last;
  std::uint64_t n = 0;
  while (source.next(text)) {
    if (n > 0) {
      last += '\n';
      hash.update(last);
    }
    std::swap(text, last);
    if (++n % 4096 == 0) tell(source.bytes());
  }
  if (source.is_bad()) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  const auto refuse = [&](const std::string& what) {
    return error{errc::malformed,
                 fmt::format("{}:{}: {}; the trace is cut short or was changed, run "
                             "again",
                             path.string(), std::max<std::uint64_t>(n, 1), what)};
  };
  if (n == 0 || line_type(last) != "end")
    return refuse("found no closing line, expected one of type end");
  if (!source.is_complete()) return refuse("found no newline after the closing line");
  line_fields fields(last);
  const auto lines = fields.integer<std::uint64_t>("lines");
  const auto claimed = std::string(fields.word("sha256"));
  if (!fields.end()) return refuse(fields.problem());
  if (lines != n - 1) return refuse(fmt::format("lines: found {}, expected {}", lines, n - 1));
  const auto digest = hash.finish();
  if (claimed != digest)
    return refuse(
        fmt::format("sha256: found {}, expected {}, that of the lines before", claimed, digest));
  return sealed_lines{n - 1, source.bytes(), digest};
}

}  // namespace

result<trace_summary> verify_trace(const std::filesystem::path& path,
                                   const verify_progress& progress) {
  std::error_code ignored;
  const auto size = static_cast<double>(std::max<std::uintmax_t>(
      1, std::filesystem::is_regular_file(path, ignored) ? std::filesystem::file_size(path, ignored)
                                                         : 1));
  const auto tell = [&](double bytes) {
    if (progress) progress(std::min(1.0, bytes / size));
  };
  // Hashing takes little of the time that recomputing does.
  constexpr double hash_share = 0.1;
  std::error_code status;
  if (std::filesystem::is_directory(path, status))
    return error{errc::not_found, fmt::format("{}: is a folder, expected a trace", path.string())};
  const auto seal =
      check_seal(path, [&](std::uint64_t bytes) { tell(hash_share * static_cast<double>(bytes)); });
  if (!seal) return seal.error();

  line_source source(path);
  std::string text;
  if (!source.next(text)) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  verifier checks(path.string(), text);
  if (checks.failed()) return checks.problem();
  for (std::uint64_t number = 2; number <= seal->lines; ++number) {
    if (!source.next(text))
      return error{errc::io, fmt::format("{}: reading failed", path.string())};
    if (!checks.line(number, text)) return checks.problem();
    if (number % 1024 == 0)
      tell(size * hash_share + (1 - hash_share) * static_cast<double>(source.bytes()));
  }
  if (!checks.finish(seal->lines + 1)) return checks.problem();
  auto summary = std::move(checks.summary);
  summary.lines = seal->lines;
  summary.bytes = seal->bytes;
  summary.sha256 = seal->sha256;
  tell(size);
  return summary;
}

bool is_told(const trace_summary& s, std::size_t kind) {
  return s.slots[kind] > 0 ||
         static_cast<serving::execution_kind>(kind) != serving::execution_kind::left_out;
}

std::string summary_text(const trace_summary& s) {
  std::string text =
      fmt::format("The trace holds: {} lines, {} bytes, sha256 {}\n", s.lines, s.bytes, s.sha256);
  text += fmt::format("  run         {} mode, strategy {}, seed {}, {:.3f} s\n",
                      serving::to_string(s.mode), s.strategy, s.seed,
                      static_cast<double>(s.duration_ns) * 1e-9);
  if (!s.mixed_devices.empty()) text += fmt::format("  devices     {}\n", s.mixed_devices);
  text += fmt::format("  requests    {}, {} of them scored; {} prompt tokens, {} new tokens\n",
                      s.requests, s.scored_requests, s.prompt_tokens, s.new_tokens);
  text +=
      fmt::format("  decisions   {} recomputed; predicted loss {} units\n", s.decisions, s.loss);
  text += "  slots      ";
  for (std::size_t kind = 0; kind < s.slots.size(); ++kind)
    if (is_told(s, kind))
      text += fmt::format("{} {} {}", kind > 0 ? "," : "", s.slots[kind],
                          to_string(static_cast<serving::execution_kind>(kind)));
  text += "\n";
  if (s.plans > 1 || s.policy_changes > 0)
    text +=
        fmt::format("  plans       {} in force one after the other; policies changed {} times\n",
                    s.plans, s.policy_changes);
  text += fmt::format(
      "  links       {} messages; {} bytes of hidden states, {} of KV rows, {} other; "
      "busy {:.3f} s\n",
      s.charged.messages, s.charged.hidden_bytes, s.charged.kv_bytes, s.charged.other_bytes,
      static_cast<double>(s.charged.busy_ns) * 1e-9);
  text += fmt::format(
      "  servers     {} batches, {} snapshots, {} KV reservations and releases; busy "
      "{:.3f} s\n",
      s.batches, s.snapshots, s.kv_changes, static_cast<double>(s.compute_busy_ns) * 1e-9);
  return text;
}

std::string summary_json(const trace_summary& s) {
  nlohmann::ordered_json slots, charged, line;
  for (std::size_t kind = 0; kind < s.slots.size(); ++kind)
    if (is_told(s, kind))
      slots[to_string(static_cast<serving::execution_kind>(kind))] = s.slots[kind];
  charged["messages"] = s.charged.messages;
  charged["hidden_bytes"] = s.charged.hidden_bytes;
  charged["kv_bytes"] = s.charged.kv_bytes;
  charged["other_bytes"] = s.charged.other_bytes;
  charged["serialised_bytes"] = s.charged.serialised_bytes;
  charged["busy_ns"] = s.charged.busy_ns;
  line["holds"] = true;
  line["mode"] = serving::to_string(s.mode);
  line["strategy"] = s.strategy;
  line["seed"] = s.seed;
  if (!s.mixed_devices.empty()) line["mixed_devices"] = s.mixed_devices;
  line["lines"] = s.lines;
  line["bytes"] = s.bytes;
  line["sha256"] = s.sha256;
  line["requests"] = s.requests;
  line["scored_requests"] = s.scored_requests;
  line["prompt_tokens"] = s.prompt_tokens;
  line["new_tokens"] = s.new_tokens;
  line["decisions"] = s.decisions;
  line["slots"] = slots;
  line["loss"] = s.loss;
  line["snapshots"] = s.snapshots;
  line["plans"] = s.plans;
  line["policy_changes"] = s.policy_changes;
  line["batches"] = s.batches;
  line["kv_changes"] = s.kv_changes;
  line["links"] = charged;
  line["compute_busy_ns"] = s.compute_busy_ns;
  line["duration_ns"] = s.duration_ns;
  return line.dump() + "\n";
}

}  // namespace ordermoe::trace
