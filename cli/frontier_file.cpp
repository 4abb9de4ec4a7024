#include "cli/frontier_file.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "bench/experiments/testbed/row_file.hpp"
#include "config/files.hpp"
#include "config/json.hpp"
#include "config/json_text.hpp"

namespace ordermoe::cli {

namespace {

using json = nlohmann::ordered_json;

json or_null(const std::optional<double>& value) {
  return value ? json(*value) : json(nullptr);
}

json to_json(const measurement& m) {
  json out{{"seed", m.seed}, {"strategy", m.row}, {"infeasible", m.infeasible}};
  if (m.infeasible) return out;
  out["latency_ms"] = m.latency_ms;
  out["tpot_ms"] = m.tpot_ms;
  out["ttft_ms"] = m.ttft_ms;
  out["megabytes_per_1k_tokens"] = m.megabytes;
  out["perplexity"] = m.perplexity;
  if (m.increase) {
    out["increase_percent"] = m.increase->percent;
    out["increase_low"] = m.increase->low;
    out["increase_high"] = m.increase->high;
  }
  out["exact_match"] = or_null(m.exact_match);
  out["budget_spent_ratio"] = or_null(m.budget_spent_ratio);
  out["whole_model"] = m.whole_model;
  if (m.pruned_percent) out["pruned_percent"] = *m.pruned_percent;
  out["plan_estimate_token_ms"] = m.plan_estimate_ms;
  return out;
}

std::optional<double> number_or_none(const json_value& in, const char* key) {
  const auto found = in.find(key);
  return found ? std::optional(found->number()) : std::nullopt;
}

measurement from_json(const json_value& in) {
  measurement m;
  m.seed = in.at("seed").unsigned_integer();
  m.row = in.at("strategy").string();
  m.infeasible = in.at("infeasible").boolean();
  if (m.infeasible) return m;
  m.latency_ms = in.at("latency_ms").number(0);
  m.tpot_ms = in.at("tpot_ms").number(0);
  m.ttft_ms = in.at("ttft_ms").number(0);
  m.megabytes = in.at("megabytes_per_1k_tokens").number(0);
  m.perplexity = in.at("perplexity").number(0);
  if (const auto percent = number_or_none(in, "increase_percent"))
    m.increase = {*percent, in.at("increase_low").number(), in.at("increase_high").number()};
  m.exact_match = number_or_none(in, "exact_match");
  m.budget_spent_ratio = number_or_none(in, "budget_spent_ratio");
  m.whole_model = in.at("whole_model").string();
  m.pruned_percent = number_or_none(in, "pruned_percent");
  m.plan_estimate_ms = in.at("plan_estimate_token_ms").number();
  return m;
}

/// The row of a cluster that is there twice; empty: none.
std::string repeated(const std::vector<measurement>& all) {
  std::set<std::pair<std::uint64_t, std::string>> known;
  for (const auto& m : all)
    if (!known.emplace(m.seed, m.row).second) return fmt::format("{} of seed {}", m.row, m.seed);
  return {};
}

}  // namespace

std::string frontier_text(const frontier_settings& settings, const std::vector<measurement>& all) {
  json list = json::array();
  for (const auto& m : all) list.push_back(to_json(m));
  return json_text(json{{"settings", settings}, {"measurements", std::move(list)}}, 1) + "\n";
}

result<std::vector<measurement>> read_frontier(const std::filesystem::path& file,
                                               const frontier_settings& settings) {
  std::error_code status;
  if (!std::filesystem::exists(file, status)) return std::vector<measurement>{};
  const auto text = read_file(file);
  if (!text) return text.error();
  auto document = json_document::parse(*text, file.string());
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"settings", "measurements"});
  std::vector<measurement> all;
  for (const auto& one : root.at("measurements").items()) all.push_back(from_json(one));
  auto read = (*document)->finish(std::move(all));
  if (!read) return read.error();
  if (const auto twice = repeated(*read); !twice.empty())
    return error{errc::malformed,
                 fmt::format("{}: found {} twice, expected it once; take one of them out",
                             file.string(), twice)};
  const auto whole = json::parse(*text);
  const auto other = experiments::testbed::difference_of(
      whole.contains("settings") ? whole["settings"] : json(), settings);
  if (!other.empty())
    return error{
        errc::mismatch,
        fmt::format("{}: settings.{}; what was measured with other settings cannot be continued: "
                    "give --out another name",
                    file.string(), other)};
  return read;
}

}  // namespace ordermoe::cli
