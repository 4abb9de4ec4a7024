#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "planning/selector.hpp"

namespace ordermoe::actors {

/// Charged bytes by what they are, and bytes as serialised.
struct traffic {
  std::int64_t messages = 0;
  std::int64_t hidden_bytes = 0;      ///< Charged for hidden states.
  std::int64_t kv_bytes = 0;          ///< Charged for KV rows.
  std::int64_t other_bytes = 0;       ///< Everything else, as serialised.
  std::int64_t serialised_bytes = 0;  ///< All bytes of the frames.
  std::int64_t busy_ns = 0;
  std::int64_t charged() const { return hidden_bytes + kv_bytes + other_bytes; }
  traffic& operator+=(const traffic& more);
};

struct link_ledger {
  std::uint32_t from = 0, to = 0;
  traffic total;
};

struct server_ledger {
  std::uint32_t server = 0;
  std::int64_t batches = 0;
  std::int64_t rows = 0;
  std::int64_t flops = 0;
  std::int64_t bytes_read = 0;
  std::int64_t busy_ns = 0;
  std::int64_t tensor_ns = 0;      ///< Host time inside tensor kernels; not in the trace.
  std::int64_t kv_peak_bytes = 0;  ///< Most KV memory reserved at one time.
};

enum class execution_kind : std::uint8_t {
  local_exact,
  local_substitute,
  remote_exact,
  remote_substitute
};
const char* to_string(execution_kind kind);
/// Local: the expert runs where the token was.
execution_kind classify(std::uint32_t server, std::uint32_t target,
                        const planning::slot_choice& slot);

/// A change of plans, or the reason why there was none.
struct plan_change {
  std::uint64_t epoch = 0;  ///< Of the plan in force afterwards.
  std::string reason;       ///< order, drift
  std::string refused;      ///< Empty where the plan changed.
  std::int64_t asked_ns = 0;
  std::int64_t drained_ns = 0;  ///< When no request was in flight any more.
  std::int64_t done_ns = 0;     ///< When the first requests could begin under the new plan.
  std::int64_t moved_bytes = 0;
  double cost_before_ns = 0;  ///< planning::estimate_plan of the plan in force and of the new one,
  double cost_after_ns = 0;   ///< both under the profile that the new one was made for.
};

/// One step of eq. (45).
struct weight_change {
  std::uint64_t epoch = 0, weights = 0;
  planning::selection_weights value;
  std::vector<std::uint64_t> requests;  ///< The window.
  std::int64_t time_ns = 0;
};

/// What the monitor measured, at the end of the run; recent values count more.
struct observations {
  std::vector<std::vector<double>> activation;  ///< [n_layers, n_experts]; empty: no rows seen
  std::vector<double> wait_ns;                  ///< [n_servers] of work that arrives
  std::vector<double> link_use;      ///< [from, to] share of the time that the link is busy
  std::vector<double> link_wait_ns;  ///< [from, to]
  double budget_use = 0;             ///< Mean over requests with a budget.
  double normalised_delay = 0;
  std::size_t requests = 0;  ///< How many of those there were.
  std::size_t proposals = 0;
};

struct request_outcome {
  std::uint64_t request = 0;
  std::uint32_t access = 0;
  std::vector<std::int32_t> token_ids;
  std::string text;
  std::string finish;  ///< length, end_of_text, stop_string, context, scored
  std::int64_t arrival_ns = 0;
  std::int64_t first_token_ns = 0;  ///< When the first new token was at the access server.
  std::int64_t done_ns = 0;
  std::int64_t budget = 0;  ///< Units, whole request.
  std::int64_t spent = 0;
  std::vector<double> losses;  ///< Teacher-forced, nats.
  std::vector<float>
      final_hidden;  ///< After the last layer at the last computed position, where kept.
};

}  // namespace ordermoe::actors
