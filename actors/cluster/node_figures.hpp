#pragma once

#include <nlohmann/json.hpp>

#include "actors/service/service.hpp"
#include "net/channel/transport.hpp"

/// What a node says of its sessions and of its work, as JSON.
namespace ordermoe::actors {

/// What of a session goes and came, by its lanes; what it is found to carry.
nlohmann::ordered_json session_json(const net::peer_figures& figures);
nlohmann::ordered_json credits_json(const net::session_limits& limits);
/// Times in charged nanoseconds, which the dilation is taken out of.
nlohmann::ordered_json rehearsal_json(const rehearsal& how, const rehearsal_figures& figures);

}  // namespace ordermoe::actors
