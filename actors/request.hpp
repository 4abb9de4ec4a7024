#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/run_context.hpp"
#include "actors/runtime.hpp"

namespace ordermoe::actors {

/// At the access server: reserves KV memory, starts the prompt's chunks, puts reports in order,
/// streams text, ends on length, end of text, stop string or context, gives memory back and writes
/// the outcome.
///
///   arriving (held back while plans change) -> reserving (attempt everywhere at once; if refused:
///   give back, wait server by server in ascending order) -> running -> done
///
/// Waiting in ascending server order cannot deadlock: whoever holds the highest server needs
/// nothing more.
request_actor spawn_request(caf::actor_system& system, std::shared_ptr<const server_view> view,
                            request_spec spec, loss_units token_budget, bool continue_in_place);

/// What a request computes as its prompt, and how many ids may follow: a scored text starts from
/// its first token.
std::uint32_t prompt_tokens(const request_spec& spec);
std::uint32_t max_new_tokens(const request_spec& spec);

/// KV bytes that a request needs at each server under a residency; [n_servers].
std::vector<std::int64_t> kv_need(const planning::residency& residence, std::size_t n_servers,
                                  std::size_t positions, std::int64_t kv_row_bytes);

}  // namespace ordermoe::actors
