#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/service/runtime.hpp"
#include "config/devices.hpp"
#include "config/job.hpp"
#include "model/datasets.hpp"
#include "setup/seeds.hpp"

/// One strategy measured on given requests and texts: what every table and report is made of.
namespace ordermoe::experiments {

using namespace actors;

/// Milliseconds. p99 only where there are at least 500 values.
struct spread {
  double mean = 0, p50 = 0, p95 = 0;
  std::optional<double> p99;
};
spread spread_of(std::vector<double> values);

struct strategy_report {
  std::string name;
  /// Negative: unbounded. Empty where no budget applies.
  std::optional<double> quality_budget_percent;
  precision whole_model = precision::stored;  ///< As strategy::whole_model.
  double whole_model_percent = 0;  ///< Of perplexity: what that took of the budget beforehand.
  std::optional<double> pruned_percent;  ///< Likewise, by strategy::pruned_nats.
  std::size_t n_requests = 0;
  std::int64_t prompt_tokens = 0, new_tokens = 0;
  spread latency_ms, ttft_ms, tpot_ms;
  /// New tokens over the time from first arrival to last answer.
  double throughput_tokens_per_s = 0;
  traffic charged;  ///< Sum over links, of the requests; busy time included.
  double serialised_hidden_bytes = 0, serialised_kv_bytes = 0;  ///< Bytes of our own model's rows.
  /// Shares of slots by execution_kind, of the requests.
  std::array<double, serving::n_execution_kinds> execution{};
  double busiest_server = 0;                ///< Largest share of the time that a server computed.
  std::optional<double> perplexity;         ///< Teacher-forced through the same actors.
  std::vector<double> losses;               ///< Of every scored token in order.
  std::vector<std::size_t> scored_lengths;  ///< [documents] how many of these each has.
  std::optional<double> exact_match;
  std::size_t n_problems = 0;
  std::optional<model::squad_score> questions;  ///< Means over the questions.
  std::size_t n_questions = 0;
  /// Spent over allowed, of the scored texts or else the requests.
  std::optional<double> budget_spent_ratio;
  /// Perplexity increase that the spent budget predicts.
  std::optional<double> predicted_increase_percent;
  double plan_estimate_ms = 0;  ///< The planner's own estimate of one decoded token.
  double host_seconds = 0, tensor_seconds = 0;
  std::vector<request_outcome> outcomes;      ///< Of the requests.
  std::vector<plan_change> plan_changes;      ///< While the requests ran.
  std::vector<policy_change> policy_changes;  ///< Likewise.

  /// Charged bytes per 1,000 tokens processed, prompt and new.
  double per_1k(std::int64_t bytes) const;
};

/// Requests that are run together, and what is made of their answers.
struct workload {
  std::string phase;  ///< "answering"
  std::vector<request_spec> requests;
  double rate = 4;  ///< Requests per second, Poisson; 0: all at once.
  setup::seed_stream arrivals = setup::seed_stream::requests;
  std::filesystem::path trace;  ///< Empty: none.
  std::vector<replan_order> replans;
  answer_sink watcher = {};  ///< Told of every answer as it comes.
  /// Adds what the answers say to the report.
  std::function<void(const run_setup& asked, run_result& answered, strategy_report& report)>
      account;
};

/// Runs each workload on the same strategy, one after the other, and reports all of them together.
/// Each has a service of its own; arrivals are drawn from the service's seed. Errors: those of
/// run_requests.
result<strategy_report> measure(const service_options& service, std::span<const workload> workloads,
                                job& work);
/// The same where something else than run_requests answers.
using answering_machine = std::function<result<run_result>(const run_setup& asked)>;
result<strategy_report> measure(const service_options& service, std::span<const workload> workloads,
                                job& work, const answering_machine& answer);

/// The report as JSON text: docs/REPORT.md states the fields.
struct report_header {
  std::string model, cluster, cost_profile, clock;
  std::uint64_t seed = 0;
  ordermoe::cluster servers =
      {};  ///< Those that answered; what they compute on is told where it is not the kernels alone.
};
std::string report_json(const report_header& header, const std::vector<strategy_report>& strategies,
                        bool with_answers);

}  // namespace ordermoe::experiments
