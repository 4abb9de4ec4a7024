#include "embedding/status_json.hpp"

#include <nlohmann/json.hpp>

#include "actors/service/status_json.hpp"

namespace ordermoe::embedding {

using nlohmann::ordered_json;

std::string status_json(const actors::service_status& status) {
  ordered_json j{{"time_ns", status.time_ns}, {"planner", actors::to_string(status.planner.phase)}};
  j["servers"] = ordered_json::array();
  for (const auto& server : status.servers) j["servers"].push_back(actors::server_json(server));
  return j.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace ordermoe::embedding
