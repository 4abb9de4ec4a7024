#pragma once

#include <array>
#include <cstdint>

#include "config/cost_profile.hpp"
#include "net/wire/messages.hpp"
#include "planning/selection/selector.hpp"

/// What servers and links count.
namespace ordermoe::serving {

/// Charged bytes by what they are, and bytes as serialised.
struct traffic {
  std::int64_t messages = 0;
  std::int64_t hidden_bytes = 0;      ///< Charged for hidden states.
  std::int64_t kv_bytes = 0;          ///< Charged for KV rows.
  std::int64_t other_bytes = 0;       ///< Everything else that is charged, as serialised.
  std::int64_t serialised_bytes = 0;  ///< All bytes of the frames.
  std::int64_t busy_ns = 0;
  std::int64_t charged() const { return hidden_bytes + kv_bytes + other_bytes; }
  traffic& operator+=(const traffic& more);
};
/// One frame; no time.
traffic charged_traffic(const wire::frame& content, const cost_profile& costs);

struct link_ledger {
  std::uint32_t from = 0, to = 0;
  traffic total;
  std::array<std::int64_t, wire::n_frame_kinds> charged_by_kind{};  ///< Not in the trace.
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
  remote_substitute,
  left_out  ///< Nothing ran.
};
inline constexpr std::size_t n_execution_kinds = 5;
const char* to_string(execution_kind kind);
/// Local: the expert runs where the token was.
execution_kind classify(std::uint32_t server, std::uint32_t target,
                        const planning::slot_choice& slot);
/// Slots by execution_kind.
using execution_counts = std::array<std::int64_t, n_execution_kinds>;

}  // namespace ordermoe::serving
