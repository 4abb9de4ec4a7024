#include "bench/experiments/workloads.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "setup/trials.hpp"

namespace ordermoe::experiments {

namespace {

double milliseconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

/// What a scored or answered run spent of what it was allowed.
void account_budget(const run_setup& asked, const run_result& answered, std::size_t tokens,
                    strategy_report& report) {
  std::int64_t spent = 0, allowed = 0;
  for (const auto& answer : answered.outcomes) {
    spent += answer.spent;
    if (answer.budget < planning::unbounded_budget) allowed += answer.budget;
  }
  if (allowed > 0)
    report.budget_spent_ratio = static_cast<double>(spent) / static_cast<double>(allowed);
  if (asked.chosen.policy.calibrated && tokens > 0)
    report.predicted_increase_percent =
        100 * std::expm1(static_cast<double>(spent) / planning::units_per_loss /
                         static_cast<double>(tokens));
}

/// From first arrival to last answer.
std::int64_t span_ns(const run_result& answered) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
  for (const auto& answer : answered.outcomes) {
    first = std::min(first, answer.arrival_ns);
    last = std::max(last, answer.done_ns);
  }
  return last > first ? last - first : 0;
}

void account_times(const run_result& answered, strategy_report& report) {
  std::vector<double> latency, ttft, tpot;
  for (const auto& answer : answered.outcomes) {
    const auto n = static_cast<std::int64_t>(answer.token_ids.size());
    report.new_tokens += n;
    latency.push_back(milliseconds(answer.done_ns - answer.arrival_ns));
    if (n > 0) ttft.push_back(milliseconds(answer.first_token_ns - answer.arrival_ns));
    if (const auto further = further_tokens(answer); further > 0)
      tpot.push_back(milliseconds(answer.done_ns - answer.first_token_ns) /
                     static_cast<double>(further));
  }
  report.latency_ms = spread_of(std::move(latency));
  report.ttft_ms = spread_of(std::move(ttft));
  report.tpot_ms = spread_of(std::move(tpot));
  const auto seconds = static_cast<double>(span_ns(answered)) * 1e-9;
  if (seconds > 0)
    report.throughput_tokens_per_s = static_cast<double>(report.new_tokens) / seconds;
}

/// Charged bytes as rows, and those rows in bytes of our own model.
double serialised(std::int64_t charged, std::int64_t row, std::size_t own_row) {
  if (row <= 0) return 0;
  return static_cast<double>(charged) / static_cast<double>(row) *
         static_cast<double>(own_row * sizeof(float));
}

void account_traffic(const run_setup& asked, const run_result& answered, strategy_report& report) {
  for (const auto& link : answered.links) report.charged += link.total;
  const auto& shape = asked.model->config();
  report.serialised_hidden_bytes =
      serialised(report.charged.hidden_bytes, asked.costs.hidden_bytes, shape.hidden_size);
  report.serialised_kv_bytes =
      serialised(report.charged.kv_bytes, asked.costs.kv_row_bytes, shape.kv_row_size());
}

void account_execution(const run_result& answered, strategy_report& report) {
  double slots = 0;
  for (const auto count : answered.executions) slots += static_cast<double>(count);
  for (std::size_t i = 0; i < report.execution.size(); ++i)
    report.execution[i] = slots > 0 ? static_cast<double>(answered.executions[i]) / slots : 0;
  const auto span = static_cast<double>(span_ns(answered));
  if (span <= 0) return;
  for (const auto& server : answered.servers)
    report.busiest_server =
        std::max(report.busiest_server, static_cast<double>(server.busy_ns) / span);
}

void account_answers(const run_setup& asked, run_result& answered, strategy_report& report) {
  report.n_requests = asked.requests.size();
  for (const auto& spec : asked.requests)
    report.prompt_tokens += static_cast<std::int64_t>(spec.prompt.size());
  account_times(answered, report);
  account_traffic(asked, answered, report);
  account_execution(answered, report);
  account_budget(asked, answered,
                 static_cast<std::size_t>(report.prompt_tokens + report.new_tokens), report);
  report.outcomes = std::move(answered.outcomes);
  report.plan_changes = std::move(answered.plan_changes);
  report.policy_changes = std::move(answered.policy_changes);
}

void account_losses(const run_setup& asked, const run_result& answered, std::size_t context_tokens,
                    strategy_report& report) {
  for (const auto& answer : answered.outcomes) {
    const auto skipped =
        answer.request == 0 ? 0 : std::min(context_tokens - 1, answer.losses.size());
    report.losses.insert(report.losses.end(),
                         answer.losses.begin() + static_cast<std::ptrdiff_t>(skipped),
                         answer.losses.end());
    report.scored_lengths.push_back(answer.losses.size() - skipped);
  }
  double nats = 0;
  for (const auto loss : report.losses) nats += loss;
  report.perplexity = std::exp(nats / static_cast<double>(report.losses.size()));
  std::size_t tokens = 0;
  for (const auto& spec : asked.requests) tokens += spec.prompt.size();
  account_budget(asked, answered, tokens, report);
}

request_spec greedy(const std::string& prompt, const model::tokenizer& tokens,
                    std::uint32_t most_tokens) {
  request_spec spec;
  spec.prompt = tokens.encode(prompt);
  spec.max_new_tokens = most_tokens;
  return spec;
}

model::squad_score score_of(const std::string& text, const model::question& asked,
                            question_rules rules) {
  if (rules == question_rules::squad) return model::score_squad(text, asked.answers);
  const double right = model::gsm8k_answer(text) == asked.answers.front() ? 1 : 0;
  return {right, right};
}

}  // namespace

workload answering(std::vector<request_spec> requests, double rate) {
  workload made;
  made.phase = "answering";
  made.requests = std::move(requests);
  made.rate = rate;
  made.account = account_answers;
  return made;
}

workload scoring(const setup::token_documents& documents, std::size_t context_tokens,
                 std::size_t prompt_tokens) {
  workload made;
  made.phase = "scoring texts";
  made.requests = setup::scoring_requests(documents, prompt_tokens);
  made.arrivals = setup::seed_stream::scored_texts;
  made.account = [context_tokens](const run_setup& asked, run_result& answered,
                                  strategy_report& report) {
    account_losses(asked, answered, context_tokens, report);
  };
  return made;
}

workload solving(std::vector<model::problem> problems, const model::tokenizer& tokens,
                 std::uint32_t answer_tokens) {
  workload made;
  made.phase = "solving problems";
  for (const auto& problem : problems)
    made.requests.push_back(greedy(problem.prompt, tokens, answer_tokens));
  made.arrivals = setup::seed_stream::problems;
  made.account = [problems = std::move(problems)](const run_setup&, run_result& answered,
                                                  strategy_report& report) {
    std::size_t right = 0;
    for (std::size_t i = 0; i < problems.size(); ++i)
      right +=
          model::answer_line(answered.outcomes[i].text) == model::answer_line(problems[i].answer);
    report.n_problems = problems.size();
    report.exact_match = static_cast<double>(right) / static_cast<double>(problems.size());
  };
  return made;
}

std::uint32_t answer_tokens(question_rules rules) {
  return rules == question_rules::squad ? 32 : 256;
}

workload asking(std::vector<model::question> questions, question_rules rules,
                const model::tokenizer& tokens) {
  workload made;
  made.phase = "asking questions";
  for (const auto& question : questions) {
    made.requests.push_back(greedy(question.prompt, tokens, answer_tokens(rules)));
    made.requests.back().stop_strings = {rules == question_rules::squad ? "\n" : "\nQuestion:"};
  }
  made.arrivals = setup::seed_stream::questions;
  made.account = [questions = std::move(questions), rules](const run_setup&, run_result& answered,
                                                           strategy_report& report) {
    model::squad_score sum;
    for (std::size_t i = 0; i < questions.size(); ++i) {
      const auto score = score_of(answered.outcomes[i].text, questions[i], rules);
      sum.exact_match += score.exact_match;
      sum.f1 += score.f1;
    }
    const auto n = static_cast<double>(questions.size());
    report.n_questions = questions.size();
    report.questions = model::squad_score{sum.exact_match / n, sum.f1 / n};
  };
  return made;
}

}  // namespace ordermoe::experiments
