#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "actors/request.hpp"

/// The lines of trace.jsonl that the actors write; docs/TRACE.md states every field.
namespace ordermoe::actors {

/// One line for each slot of each row; the row's router logits are in the line of its slot 0.
std::string decision_line(const select_query& query, std::uint32_t server, std::uint64_t snapshot,
                          std::int64_t time_ns, const chunk_decision& choice);
std::string snapshot_line(std::uint32_t server, std::uint64_t snapshot, std::int64_t time_ns,
                          std::span<const std::int64_t> wait_ns);
std::string token_line(const progress_report& report, std::uint32_t server, std::int64_t time_ns);
std::string request_line(const request_spec& spec, std::uint32_t access, loss_units budget,
                         std::int64_t time_ns);
std::string done_line(const request_outcome& outcome);
std::string ledger_line(const link_ledger& ledger);
std::string ledger_line(const server_ledger& ledger);

}  // namespace ordermoe::actors
