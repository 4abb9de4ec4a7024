#pragma once

#include <nlohmann/json_fwd.hpp>

#include "actors/protocol/status.hpp"

/// Statuses as JSON: members are named as those of status.hpp. No CAF type in this header.
namespace ordermoe::actors {

/// What a server says of itself and of the requests of its users; whoever prints it adds what it knows besides.
nlohmann::ordered_json server_json(const server_status& server);
/// What one server sent another.
nlohmann::ordered_json link_json(const link_ledger& ledger);

}  // namespace ordermoe::actors
