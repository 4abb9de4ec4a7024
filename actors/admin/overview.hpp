#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "actors/context.hpp"
#include "actors/token_meter.hpp"

/// What an operator sees of how a cluster does, as JSON: values in, a text's content out.
namespace ordermoe::actors {

/// What one node says of itself when another, or its own console, asks: its line of `status`. `tokens`: of its users; `away`:
/// who is not connected.
nlohmann::ordered_json node_report(const service_context& context, const server_status& status,
                                   const token_meter& tokens, const std::set<std::uint32_t>& away);
/// What the way to each other node is like. `figures`: as cluster_seat::figures has them.
nlohmann::ordered_json ways_report(const service_context& context,
                                   const nlohmann::ordered_json& figures);

/// By server, what each said; who was away, or did not answer in time, has none.
using told_reports = std::map<std::uint32_t, nlohmann::ordered_json>;

/// A line for each node. What other nodes say is passed on as it is. `absent`: who is no member.
nlohmann::ordered_json cluster_report(const service_context& context, const told_reports& told,
                                      const std::set<std::uint32_t>& away,
                                      const std::set<std::uint32_t>& absent);
/// Servers as the cluster file has them, and links as it has them and as nodes found them.
nlohmann::ordered_json topology_report(const service_context& context, const told_reports& told);
/// Of one node: the sessions with the others.
nlohmann::ordered_json peers_report(const service_context& context,
                                    const nlohmann::ordered_json& figures,
                                    const std::set<std::uint32_t>& away);
/// Which servers host which experts, of the layer or server that is named.
nlohmann::ordered_json experts_report(const service_context& context, const in_force& now,
                                      std::optional<std::uint32_t> layer,
                                      std::optional<std::uint32_t> server);
/// One request, and the memory that it has on this server; null where this server's users did not ask it. `now_ns`: since
/// the start of the service.
nlohmann::ordered_json request_report(const service_context& context, const server_status& status,
                                      std::uint64_t request, std::int64_t now_ns);

}  // namespace ordermoe::actors
