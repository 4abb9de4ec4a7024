#include "bench/experiments/experiment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "ordermoe_version.hpp"

namespace ordermoe::experiments {

namespace {

double milliseconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

traffic sum_of(const std::vector<link_ledger>& links) {
  traffic total;
  for (const auto& link : links) total += link.total;
  return total;
}

/// What a scored or answered run spent of what it was allowed.
void account_budget(const run_setup& setup, const run_result& outcome, std::size_t tokens,
                    strategy_report& report) {
  std::int64_t spent = 0, allowed = 0;
  for (const auto& answer : outcome.outcomes) {
    spent += answer.spent;
    if (answer.budget < planning::unbounded_budget) allowed += answer.budget;
  }
  if (allowed > 0)
    report.budget_spent_ratio = static_cast<double>(spent) / static_cast<double>(allowed);
  if (setup.chosen.policy.calibrated && tokens > 0)
    report.predicted_increase_percent =
        100 * std::expm1(static_cast<double>(spent) / planning::units_per_loss /
                         static_cast<double>(tokens));
}

}  // namespace

std::vector<request_spec> scoring_requests(
    const std::vector<std::vector<std::int32_t>>& documents) {
  std::vector<request_spec> requests;
  for (const auto& document : documents) {
    if (document.size() < 2) continue;
    request_spec spec;
    spec.prompt = document;
    spec.score = true;
    requests.push_back(std::move(spec));
  }
  return requests;
}

spread spread_of(std::vector<double> values) {
  spread found;
  if (values.empty()) return found;
  std::sort(values.begin(), values.end());
  for (const auto value : values) found.mean += value / static_cast<double>(values.size());
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(share * static_cast<double>(values.size())))];
  };
  found.p50 = at(0.50);
  found.p95 = at(0.95);
  if (values.size() >= 500) found.p99 = at(0.99);
  return found;
}

double strategy_report::per_1k(std::int64_t bytes) const {
  const auto tokens = prompt_tokens + new_tokens;
  return tokens == 0 ? 0 : 1000.0 * static_cast<double>(bytes) / static_cast<double>(tokens);
}

result<strategy_report> measure(const experiment& content) {
  const auto& setup = content.setup;
  strategy_report report;
  report.name = setup.chosen.name;
  if (setup.chosen.has_budget) report.quality_budget_percent = setup.quality_percent;
  report.whole_model = setup.chosen.whole_model;
  report.whole_model_percent = planning::percent_of_nats(setup.chosen.whole_model_nats);
  report.plan_estimate_ms = setup.chosen.plan.estimated_token_ns * 1e-6;
  report.n_requests = setup.requests.size();

  if (!setup.requests.empty()) {
    auto outcome = run_requests(setup);
    if (!outcome) return outcome.error();
    std::vector<double> latency, ttft, tpot;
    std::int64_t first_arrival = std::numeric_limits<std::int64_t>::max(), last_done = 0;
    for (const auto& answer : outcome->outcomes) {
      const auto n = static_cast<std::int64_t>(answer.token_ids.size());
      report.new_tokens += n;
      latency.push_back(milliseconds(answer.done_ns - answer.arrival_ns));
      if (n > 0) ttft.push_back(milliseconds(answer.first_token_ns - answer.arrival_ns));
      if (n > 1)
        tpot.push_back(milliseconds(answer.done_ns - answer.first_token_ns) /
                       static_cast<double>(n - 1));
      first_arrival = std::min(first_arrival, answer.arrival_ns);
      last_done = std::max(last_done, answer.done_ns);
    }
    for (const auto& spec : setup.requests)
      report.prompt_tokens += static_cast<std::int64_t>(spec.prompt.size());
    report.latency_ms = spread_of(std::move(latency));
    report.ttft_ms = spread_of(std::move(ttft));
    report.tpot_ms = spread_of(std::move(tpot));
    const auto span_s = static_cast<double>(last_done - first_arrival) * 1e-9;
    if (span_s > 0)
      report.throughput_tokens_per_s = static_cast<double>(report.new_tokens) / span_s;
    report.charged = sum_of(outcome->links);
    const auto& shape = setup.model->config();
    if (setup.costs.hidden_bytes > 0)
      report.serialised_hidden_bytes = static_cast<double>(report.charged.hidden_bytes) /
                                       static_cast<double>(setup.costs.hidden_bytes) *
                                       static_cast<double>(shape.hidden_size * sizeof(float));
    if (setup.costs.kv_row_bytes > 0)
      report.serialised_kv_bytes = static_cast<double>(report.charged.kv_bytes) /
                                   static_cast<double>(setup.costs.kv_row_bytes) *
                                   static_cast<double>(shape.kv_row_size() * sizeof(float));
    double slots = 0;
    for (const auto count : outcome->executions) slots += static_cast<double>(count);
    for (std::size_t i = 0; i < report.execution.size(); ++i)
      report.execution[i] = slots > 0 ? static_cast<double>(outcome->executions[i]) / slots : 0;
    if (last_done > 0)
      for (const auto& server : outcome->servers)
        report.busiest_server =
            std::max(report.busiest_server, static_cast<double>(server.busy_ns) /
                                                static_cast<double>(last_done - first_arrival));
    report.host_seconds += outcome->host_seconds;
    report.tensor_seconds += outcome->tensor_seconds;
    account_budget(setup, *outcome,
                   static_cast<std::size_t>(report.prompt_tokens + report.new_tokens), report);
    report.outcomes = std::move(outcome->outcomes);
    report.plan_changes = std::move(outcome->plan_changes);
    report.policy_changes = std::move(outcome->policy_changes);
  }

  auto scored = setup;
  scored.trace.clear();
  scored.replans.clear();
  scored.keep_final_hidden = false;
  if (!content.scored_documents.empty()) {
    scored.requests = scoring_requests(content.scored_documents);
    draw_arrivals(scored.requests, scored.servers, 4, setup.seed);
    const auto outcome = run_requests(scored);
    if (!outcome) return outcome.error();
    double nats = 0;
    for (const auto& answer : outcome->outcomes) {
      const auto skipped =
          answer.request == 0 ? 0 : std::min(content.context_tokens - 1, answer.losses.size());
      report.losses.insert(report.losses.end(),
                           answer.losses.begin() + static_cast<std::ptrdiff_t>(skipped),
                           answer.losses.end());
    }
    for (const auto loss : report.losses) nats += loss;
    report.perplexity = std::exp(nats / static_cast<double>(report.losses.size()));
    std::size_t tokens = 0;
    for (const auto& document : content.scored_documents) tokens += document.size();
    account_budget(setup, *outcome, tokens, report);
    report.host_seconds += outcome->host_seconds;
    report.tensor_seconds += outcome->tensor_seconds;
  }
  if (!content.problems.empty() && setup.tokens) {
    scored.requests.clear();
    for (const auto& problem : content.problems) {
      request_spec spec;
      spec.prompt = setup.tokens->encode(problem.prompt);
      spec.max_new_tokens = content.answer_tokens;
      scored.requests.push_back(std::move(spec));
    }
    draw_arrivals(scored.requests, scored.servers, 4, setup.seed + 1);
    const auto outcome = run_requests(scored);
    if (!outcome) return outcome.error();
    std::size_t right = 0;
    for (std::size_t i = 0; i < content.problems.size(); ++i)
      right += model::answer_line(outcome->outcomes[i].text) ==
               model::answer_line(content.problems[i].answer);
    report.n_problems = content.problems.size();
    report.exact_match = static_cast<double>(right) / static_cast<double>(content.problems.size());
    report.host_seconds += outcome->host_seconds;
    report.tensor_seconds += outcome->tensor_seconds;
  }
  if (!content.asked.questions.empty() && setup.tokens) {
    const auto& questions = content.asked.questions;
    scored.requests.clear();
    for (const auto& question : questions) {
      request_spec spec;
      spec.prompt = setup.tokens->encode(question.prompt);
      spec.max_new_tokens = content.asked.answer_tokens;
      spec.stop_strings = content.asked.stop_strings;
      scored.requests.push_back(std::move(spec));
    }
    draw_arrivals(scored.requests, scored.servers, 4, setup.seed + 4);
    const auto outcome = run_requests(scored);
    if (!outcome) return outcome.error();
    model::squad_score sum;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      const auto score = content.asked.score(outcome->outcomes[i].text, questions[i]);
      sum.exact_match += score.exact_match;
      sum.f1 += score.f1;
    }
    const auto n = static_cast<double>(questions.size());
    report.n_questions = questions.size();
    report.questions = model::squad_score{sum.exact_match / n, sum.f1 / n};
    report.host_seconds += outcome->host_seconds;
    report.tensor_seconds += outcome->tensor_seconds;
  }
  return report;
}

std::string report_json(const report_header& header, const std::vector<strategy_report>& strategies,
                        bool with_answers) {
  using json = nlohmann::ordered_json;
  const auto spread_json = [](const spread& s) {
    json j{{"mean", s.mean}, {"p50", s.p50}, {"p95", s.p95}};
    j["p99"] = s.p99 ? json(*s.p99) : json(nullptr);
    return j;
  };
  const auto maybe = [](const std::optional<double>& value) {
    return value ? json(*value) : json(nullptr);
  };
  json out;
  out["version"] = version_string;
  out["model"] = header.model;
  out["cluster"] = header.cluster;
  out["cost_profile"] = header.cost_profile;
  out["clock"] = header.clock;
  out["seed"] = header.seed;
  out["strategies"] = json::array();
  for (const auto& s : strategies) {
    json j;
    j["name"] = s.name;
    if (s.quality_budget_percent && *s.quality_budget_percent < 0)
      j["quality_budget_percent"] = "unbounded";
    else
      j["quality_budget_percent"] = maybe(s.quality_budget_percent);
    j["whole_model"] = s.whole_model == precision::stored
                           ? json(nullptr)
                           : json{{"expert_precision", to_string(s.whole_model)},
                                  {"budget_percent", s.whole_model_percent}};
    j["requests"] = s.n_requests;
    j["prompt_tokens"] = s.prompt_tokens;
    j["new_tokens"] = s.new_tokens;
    j["latency_ms"] = spread_json(s.latency_ms);
    j["ttft_ms"] = spread_json(s.ttft_ms);
    j["tpot_ms"] = spread_json(s.tpot_ms);
    j["throughput_tokens_per_s"] = s.throughput_tokens_per_s;
    j["cross_server_bytes_per_1k_tokens"] = {{"hidden", s.per_1k(s.charged.hidden_bytes)},
                                             {"kv", s.per_1k(s.charged.kv_bytes)},
                                             {"other", s.per_1k(s.charged.other_bytes)},
                                             {"total", s.per_1k(s.charged.charged())}};
    j["serialised_bytes_per_1k_tokens"] = {
        {"hidden", s.per_1k(static_cast<std::int64_t>(s.serialised_hidden_bytes))},
        {"kv", s.per_1k(static_cast<std::int64_t>(s.serialised_kv_bytes))},
        {"other", s.per_1k(s.charged.other_bytes)},
        {"total", s.per_1k(s.charged.serialised_bytes)}};
    for (std::size_t i = 0; i < s.execution.size(); ++i)
      j["execution"][to_string(static_cast<execution_kind>(i))] = s.execution[i];
    j["perplexity"] = maybe(s.perplexity);
    j["scored_tokens"] = s.losses.size();
    j["exact_match"] = maybe(s.exact_match);
    j["problems"] = s.n_problems;
    if (s.questions) {
      j["questions"] = s.n_questions;
      j["question_exact_match"] = s.questions->exact_match;
      j["question_f1"] = s.questions->f1;
    }
    j["budget_spent_ratio"] = maybe(s.budget_spent_ratio);
    j["predicted_increase_percent"] = maybe(s.predicted_increase_percent);
    j["plan_estimate_token_ms"] = s.plan_estimate_ms;
    j["busiest_server_share"] = s.busiest_server;
    j["host_seconds"] = s.host_seconds;
    j["tensor_seconds"] = s.tensor_seconds;
    j["plan_changes"] = json::array();
    for (const auto& change : s.plan_changes)
      j["plan_changes"].push_back(
          {{"reason", change.reason},
           {"refused", change.refused.empty() ? json(nullptr) : json(change.refused)},
           {"epoch", change.epoch},
           {"asked_ms", milliseconds(change.asked_ns)},
           {"drained_ms", milliseconds(change.drained_ns)},
           {"done_ms", milliseconds(change.done_ns)},
           {"moved_bytes", change.moved_bytes}});
    j["weight_changes"] = json::array();
    for (const auto& change : s.policy_changes)
      j["weight_changes"].push_back({{"time_ms", milliseconds(change.time_ns)},
                                     {"omega_time", change.weights.omega_time},
                                     {"omega_quality", change.weights.omega_quality}});
    if (with_answers) {
      j["answers"] = json::array();
      for (const auto& answer : s.outcomes)
        j["answers"].push_back(
            {{"request", answer.request},
             {"access_server", answer.access},
             {"text", answer.text},
             {"token_ids", answer.token_ids},
             {"finish", answer.finish},
             {"latency_ms", milliseconds(answer.done_ns - answer.arrival_ns)},
             {"ttft_ms", milliseconds(answer.first_token_ns - answer.arrival_ns)}});
    }
    out["strategies"].push_back(std::move(j));
  }
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace ordermoe::experiments
