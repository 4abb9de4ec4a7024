#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "actors/observation.hpp"
#include "actors/request.hpp"

/// The lines of trace.jsonl that the actors write; docs/TRACE.md states every field.
namespace ordermoe::actors {

/// One line for each slot of each row; the row's router logits are in the line of its slot 0.
std::string decision_line(const select_query& query, std::uint32_t server, std::uint64_t snapshot,
                          std::int64_t time_ns, const chunk_decision& choice);
std::string snapshot_line(std::uint32_t server, std::uint64_t snapshot, std::int64_t time_ns,
                          std::span<const std::int64_t> wait_ns);
/// A selector takes in other tables; its waits stay.
std::string install_line(std::uint32_t server, std::uint64_t snapshot, const deployment& placed,
                         std::int64_t time_ns);
/// The planner puts another plan in force.
std::string plan_line(const deployment& placed, std::string_view reason, const weight_move& move,
                      std::int64_t time_ns);
/// The planner puts other weights in force, those of eq. (45) after a window of requests.
std::string weights_line(const deployment& placed, const change_weights& change,
                         std::int64_t time_ns);
std::string token_line(const progress_report& report, std::uint32_t server, std::int64_t time_ns);
std::string request_line(const request_spec& spec, std::uint32_t access, loss_units budget,
                         std::int64_t time_ns);
std::string done_line(const request_outcome& outcome);
std::string ledger_line(const link_ledger& ledger);
std::string ledger_line(const server_ledger& ledger);

}  // namespace ordermoe::actors
