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
