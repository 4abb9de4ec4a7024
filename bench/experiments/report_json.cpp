#include <nlohmann/json.hpp>

#include "bench/experiments/experiment.hpp"
#include "config/build_id.hpp"
#include "ordermoe_version.hpp"

namespace ordermoe::experiments {

namespace {

using json = nlohmann::ordered_json;

double in_ms(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

json or_null(const std::optional<double>& value) {
  return value ? json(*value) : json(nullptr);
}

json spread_json(const spread& s) {
  return {{"mean", s.mean}, {"p50", s.p50}, {"p95", s.p95}, {"p99", or_null(s.p99)}};
}

void add_budget(const strategy_report& s, json& j) {
  if (s.quality_budget_percent && *s.quality_budget_percent < 0)
    j["quality_budget_percent"] = "unbounded";
  else
    j["quality_budget_percent"] = or_null(s.quality_budget_percent);
  j["whole_model"] = s.whole_model == precision::stored
                         ? json(nullptr)
                         : json{{"expert_precision", to_string(s.whole_model)},
                                {"budget_percent", s.whole_model_percent}};
  if (s.pruned_percent) j["pruning"] = {{"budget_percent", *s.pruned_percent}};
}

void add_times(const strategy_report& s, json& j) {
  j["requests"] = s.n_requests;
  j["prompt_tokens"] = s.prompt_tokens;
  j["new_tokens"] = s.new_tokens;
  j["latency_ms"] = spread_json(s.latency_ms);
  j["ttft_ms"] = spread_json(s.ttft_ms);
  j["tpot_ms"] = spread_json(s.tpot_ms);
  j["throughput_tokens_per_s"] = s.throughput_tokens_per_s;
}

void add_traffic(const strategy_report& s, json& j) {
  const auto of_rows = [&](double bytes) { return s.per_1k(static_cast<std::int64_t>(bytes)); };
  j["cross_server_bytes_per_1k_tokens"] = {{"hidden", s.per_1k(s.charged.hidden_bytes)},
                                           {"kv", s.per_1k(s.charged.kv_bytes)},
                                           {"other", s.per_1k(s.charged.other_bytes)},
                                           {"total", s.per_1k(s.charged.charged())}};
  j["serialised_bytes_per_1k_tokens"] = {{"hidden", of_rows(s.serialised_hidden_bytes)},
                                         {"kv", of_rows(s.serialised_kv_bytes)},
                                         {"other", s.per_1k(s.charged.other_bytes)},
                                         {"total", s.per_1k(s.charged.serialised_bytes)}};
  for (std::size_t i = 0; i < s.execution.size(); ++i)
    if (s.execution[i] > 0 || static_cast<execution_kind>(i) != execution_kind::left_out)
      j["execution"][to_string(static_cast<execution_kind>(i))] = s.execution[i];
}

void add_quality(const strategy_report& s, json& j) {
  j["perplexity"] = or_null(s.perplexity);
  j["scored_tokens"] = s.losses.size();
  j["exact_match"] = or_null(s.exact_match);
  j["problems"] = s.n_problems;
  if (s.questions) {
    j["questions"] = s.n_questions;
    j["question_exact_match"] = s.questions->exact_match;
    j["question_f1"] = s.questions->f1;
  }
  j["budget_spent_ratio"] = or_null(s.budget_spent_ratio);
  j["predicted_increase_percent"] = or_null(s.predicted_increase_percent);
}

void add_changes(const strategy_report& s, json& j) {
  j["plan_changes"] = json::array();
  for (const auto& change : s.plan_changes)
    j["plan_changes"].push_back(
        {{"reason", change.reason},
         {"refused", change.refused.empty() ? json(nullptr) : json(change.refused)},
         {"epoch", change.epoch},
         {"asked_ms", in_ms(change.asked_ns)},
         {"held", change.held},
         {"drained_ms", in_ms(change.drained_ns)},
         {"done_ms", in_ms(change.done_ns)},
         {"moved_bytes", change.moved_bytes}});
  j["weight_changes"] = json::array();
  for (const auto& change : s.policy_changes)
    j["weight_changes"].push_back({{"time_ms", in_ms(change.time_ns)},
                                   {"omega_time", change.weights.omega_time},
                                   {"omega_quality", change.weights.omega_quality}});
}

void add_answers(const strategy_report& s, json& j) {
  j["answers"] = json::array();
  for (const auto& answer : s.outcomes)
    j["answers"].push_back({{"request", answer.request},
                            {"access_server", answer.access},
                            {"text", answer.text},
                            {"token_ids", answer.token_ids},
                            {"finish", answer.finish},
                            {"quality_budget_percent", or_null(answer.quality_percent)},
                            {"budget", answer.budget},
                            {"spent", answer.spent},
                            {"latency_ms", in_ms(answer.done_ns - answer.arrival_ns)},
                            {"ttft_ms", in_ms(answer.first_token_ns - answer.arrival_ns)}});
}

json strategy_json(const strategy_report& s, bool with_answers) {
  json j;
  j["name"] = s.name;
  add_budget(s, j);
  add_times(s, j);
  add_traffic(s, j);
  add_quality(s, j);
  j["plan_estimate_token_ms"] = s.plan_estimate_ms;
  j["busiest_server_share"] = s.busiest_server;
  j["host_seconds"] = s.host_seconds;
  j["tensor_seconds"] = s.tensor_seconds;
  add_changes(s, j);
  if (with_answers) add_answers(s, j);
  return j;
}

}  // namespace

std::string report_json(const report_header& header, const std::vector<strategy_report>& strategies,
                        bool with_answers) {
  json out{{"version", version_string},
           {"build", build_id().empty() ? json(nullptr) : json(build_id())},
           {"model", header.model},
           {"cluster", header.cluster},
           {"cost_profile", header.cost_profile},
           {"clock", header.clock},
           {"seed", header.seed}};
  if (names_devices(header.servers)) {
    for (const auto& group : device_groups(header.servers))
      out["devices"][group.kind] = group.servers;
    const auto mixed = mixed_devices(header.servers);
    out["mixed_devices"] = mixed.empty() ? json(nullptr) : json(mixed);
  }
  out["strategies"] = json::array();
  for (const auto& s : strategies) out["strategies"].push_back(strategy_json(s, with_answers));
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace ordermoe::experiments
