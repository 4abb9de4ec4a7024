#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/books_types.hpp"
#include "actors/strategies.hpp"
#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "model/tokenizer.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"

/// The public face of the actor system: no CAF type in this header.
namespace ordermoe::actors {

enum class run_mode {
  emulated,  ///< Virtual time under CAF's testing scheduler: deterministic, links and servers
             ///< charged.
  local,     ///< Wall clock under CAF's normal scheduler, all servers in this process.
};
const char* to_string(run_mode mode);

/// One user's request as it enters the system.
struct request_spec {
  std::uint64_t number = 0;     ///< Unique in the run; stream of the sampler.
  std::uint32_t access = 0;     ///< Server that the user is connected to.
  std::int64_t arrival_ns = 0;  ///< After the start of the run.
  std::vector<std::int32_t> prompt;
  std::uint32_t max_new_tokens = 64;
  double temperature = 0;
  std::uint64_t sampling_seed = 0;
  std::vector<std::string> stop_strings;
  bool ignore_end_of_text = false;
  /// Teacher-forced: decodes `prompt` from its first token on, one position after the other, with
  /// the next id given instead of sampled, and reports each one's loss.
  bool score = false;
};

/// What is measured while a run goes on, and what follows from it. Off, no monitor runs and a trace
/// is what it would be without one.
struct monitor_options {
  bool on = false;
  /// Step size of eq. (45); 0: weights stay. Moves them where requests have a finite budget above 0
  /// and the policy weighs by omega and not by a price.
  double kappa = 0;
  std::size_t window_requests = 8;  ///< Observation window of eq. (45).
  /// A new plan is proposed where the expected cost of the one in force under the measured
  /// activation is off by more than this share of its cost under the profile, and taken where it
  /// saves as much; 0: never.
  double drift_margin = 0;
  double half_life_rows = 4096;     ///< How fast counts of activation fade, in rows of a layer.
  std::uint64_t least_rows = 1024;  ///< Of each layer before drift is judged, and from one
                                    ///< judgement to the next.
};

/// How the planner plans by itself.
struct planner_options {
  bool makes_first_plan = false;  ///< From `chosen.name`; the rest of `chosen` is not read.
  strategy_options planning;      ///< Of the first plan and of plans that the monitor proposes.
};

/// An operator's order to plan anew: experts and residency as this strategy would choose them. The
/// selection policy and the budget stay those of the run.
struct replan_order {
  std::int64_t at_ns = 0;  ///< After the start of the run.
  std::string strategy;
  strategy_options planning;
};

struct run_setup {
  std::shared_ptr<const model::transformer> model;
  /// The same model with its experts kept coarser, for servers that keep them so.
  std::map<precision, std::shared_ptr<const model::transformer>> coarser;
  /// [n_servers] what each server has in memory, experts of `chosen.plan` and what it shares with
  /// the others; empty: `model` or one of `coarser`, which all servers share. Servers that have
  /// their own cannot change plans.
  std::vector<std::shared_ptr<const model::transformer>> server_models;
  std::shared_ptr<const model::tokenizer> tokens;  ///< May be null: answers have no text.
  cluster servers;  ///< How they keep experts is overruled by what `chosen.plan` says.
  cost_profile costs;
  planning::profile experts;
  strategy chosen;
  run_mode mode = run_mode::emulated;
  std::size_t threads_per_server = 1;  ///< That compute, in local mode; no result depends on it.
  std::vector<request_spec> requests;
  std::filesystem::path trace;  ///< Empty: none.
  std::uint64_t seed = 0;       ///< Written into the trace.
  double quality_percent = 0;   ///< Written into the trace.
  std::size_t chunk_rows = 64;  ///< Prompt rows that take one residence decision together.
  bool stream_kv = true;        ///< Off only to prove that KV streaming is needed.
  bool keep_final_hidden = false;
  std::int64_t load_period_ns = 0;  ///< How often servers tell their queue waits; 0: never.
  std::int64_t request_timeout_ns = 120'000'000'000;  ///< Wall clock only.
  monitor_options monitor;
  planner_options planner;
  std::vector<replan_order> replans;
  std::function<bool()> should_stop;
  std::function<void(std::size_t done, std::size_t total)> on_progress;
};

struct run_result {
  std::vector<request_outcome> outcomes;     ///< By request number.
  std::array<std::int64_t, 4> executions{};  ///< Slots by execution_kind.
  std::vector<link_ledger> links;
  std::vector<server_ledger> servers;
  strategy chosen;                            ///< What the run began with, the plan included.
  std::vector<plan_change> plan_changes;      ///< Each order and proposal, in order.
  std::vector<weight_change> weight_changes;  ///< In order.
  std::optional<observations> observed;       ///< Where a monitor ran.
  double host_seconds = 0;                    ///< Wall clock of this process, start to end.
  double tensor_seconds = 0;                  ///< Of it inside tensor kernels (sum over servers).
};

/// Spreads requests over access servers by arrival share and over time as a Poisson process of
/// `rate` per second (0: all at once), from the seed alone.
void draw_arrivals(std::vector<request_spec>& requests, const cluster& servers, double rate,
                   std::uint64_t seed);

/// Whether every prompt fits the model's context and vocabulary. Error: out_of_range.
result<void> check_prompts(const run_setup& setup);

/// Runs the requests to the end. Errors: out_of_range for a prompt that does not fit the context or
/// vocabulary; infeasible where a request's KV never fits a server; timed_out where nothing moves
/// any more; interrupted.
result<run_result> run_requests(const run_setup& setup);

}  // namespace ordermoe::actors
