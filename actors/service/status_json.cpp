#include "actors/service/status_json.hpp"

#include <nlohmann/json.hpp>

namespace ordermoe::actors {

nlohmann::ordered_json server_json(const server_status& server) {
  nlohmann::ordered_json j{{"name", server.name},
                           {"server", server.server},
                           {"device", server.device},
                           {"epoch", server.epoch},
                           {"epochs", server.epochs},
                           {"policy", server.policy},
                           {"admitting", server.admitting},
                           {"drained", server.drained},
                           {"wait_ns", server.wait_ns},
                           {"reserved_bytes", server.reserved_bytes},
                           {"kv_bytes", server.kv_bytes},
                           {"ended_requests", server.ended_requests},
                           {"late_frames", server.late_frames},
                           {"refused_frames", server.refused_frames},
                           {"sequences", server.sequences.size()},
                           {"executions", server.executions},
                           {"layer_executions", server.layer_executions},
                           {"batches", server.ledger.batches},
                           {"rows", server.ledger.rows}};
  j["requests"] = nlohmann::ordered_json::array();
  for (const auto& each : server.requests)
    j["requests"].push_back({{"request", each.request},
                             {"phase", to_string(each.phase)},
                             {"epoch", each.epoch},
                             {"prompt_tokens", each.prompt_tokens},
                             {"new_tokens", each.new_tokens}});
  return j;
}

nlohmann::ordered_json link_json(const link_ledger& ledger) {
  nlohmann::ordered_json charged;
  for (std::size_t i = 0; i < wire::n_frame_kinds; ++i)
    charged[wire::to_string(static_cast<wire::frame_kind>(i))] = ledger.charged_by_kind[i];
  return {{"to", ledger.to},
          {"frames", ledger.total.messages},
          {"serialised_bytes", ledger.total.serialised_bytes},
          {"charged_bytes", std::move(charged)}};
}

}  // namespace ordermoe::actors
