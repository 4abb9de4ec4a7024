#include "embedding/status_json.hpp"

#include <nlohmann/json.hpp>

namespace ordermoe::embedding {

namespace {

using nlohmann::ordered_json;

ordered_json request_json(const actors::request_status& request) {
  return {{"request", request.request},
          {"phase", actors::to_string(request.phase)},
          {"prompt_tokens", request.prompt_tokens},
          {"new_tokens", request.new_tokens}};
}

/// The members of a node's own status that every server has.
ordered_json server_json(const actors::server_status& server) {
  ordered_json j{{"name", server.name},
                 {"server", server.server},
                 {"epoch", server.epoch},
                 {"policy", server.policy},
                 {"admitting", server.admitting},
                 {"wait_ns", server.wait_ns},
                 {"reserved_bytes", server.reserved_bytes},
                 {"kv_bytes", server.kv_bytes},
                 {"ended_requests", server.ended_requests},
                 {"sequences", server.sequences.size()},
                 {"executions", server.executions}};
  j["requests"] = ordered_json::array();
  for (const auto& each : server.requests) j["requests"].push_back(request_json(each));
  return j;
}

}  // namespace

std::string status_json(const actors::service_status& status) {
  ordered_json j{{"time_ns", status.time_ns}, {"planner", actors::to_string(status.planner.phase)}};
  j["servers"] = ordered_json::array();
  for (const auto& server : status.servers) j["servers"].push_back(server_json(server));
  return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ordermoe::embedding
