#include "planning/serving/ledgers.hpp"

namespace ordermoe::serving {

traffic charged_traffic(const wire::frame& content, const cost_profile& costs) {
  const auto serialised = static_cast<std::int64_t>(content.bytes.size());
  return {1,
          content.hidden_rows * costs.hidden_bytes,
          content.kv_rows * costs.kv_row_bytes,
          serialised - content.value_bytes - content.uncharged_bytes,
          serialised,
          0};
}

traffic& traffic::operator+=(const traffic& more) {
  messages += more.messages;
  hidden_bytes += more.hidden_bytes;
  kv_bytes += more.kv_bytes;
  other_bytes += more.other_bytes;
  serialised_bytes += more.serialised_bytes;
  busy_ns += more.busy_ns;
  return *this;
}

const char* to_string(execution_kind kind) {
  switch (kind) {
    case execution_kind::local_exact:
      return "local_exact";
    case execution_kind::local_substitute:
      return "local_substitute";
    case execution_kind::remote_exact:
      return "remote_exact";
    case execution_kind::remote_substitute:
      return "remote_substitute";
    case execution_kind::left_out:
      return "left_out";
  }
  return "unknown";
}

execution_kind classify(std::uint32_t server, std::uint32_t target,
                        const planning::slot_choice& slot) {
  if (slot.expert == planning::left_out) return execution_kind::left_out;
  const bool local = slot.server == server;
  if (slot.expert == target && slot.loss == 0)
    return local ? execution_kind::local_exact : execution_kind::remote_exact;
  return local ? execution_kind::local_substitute : execution_kind::remote_substitute;
}

}  // namespace ordermoe::serving
