#pragma once

#include <cstdint>
#include <memory>

#include "actors/context.hpp"
#include "actors/protocol/requests.hpp"

namespace ordermoe::actors {

/// The owner of one request, at its user's server: reserves KV memory at all members of its residency,
/// starts the prompt's chunks, puts reports in order, hands the answer to the client token by token,
/// ends on length, end of text, stop string or context, gives memory back and tells the outcome.
///
///   held --resume--> reserving --all granted--------------------------------> running
///                        | one refused: give all back                            ^  |
///                        v                                                       |  |
///                    queueing: wait server by server, ascending --all granted----+  |
///                                                                                ^  |
///                    fencing: no member works for the attempt before --all fenced+  |
///                        ^                                                          |
///                        +----------------------- restart -------------------------+
///   running --answer complete--> settling --every chunk reported--> ended
///   any --cancel, deadline, failure--> ended
///
/// Waiting in ascending server order cannot deadlock: whoever holds the highest server needs
/// nothing more.
///
/// An attempt begins anew on what is known: the prompt and the answer so far go in chunks through the
/// exact experts, and charge nothing, since what they cost is in the answer already. Reports, grants and
/// fences of other attempts and asks are left alone.
///
/// Every request ends by its deadline, and then every member is told to release what it has.
request_actor spawn_request(caf::actor_system& system, std::shared_ptr<const server_view> view,
                            const submit_request& submitted);

/// What a request computes as its prompt, and how many ids may follow: a scored text starts from
/// its first token.
std::uint32_t prompt_tokens(const request_spec& spec);
std::uint32_t max_new_tokens(const request_spec& spec);

/// Whether the prompt fits the model's context, vocabulary and what a service allows. Error:
/// out_of_range, naming what is wrong.
result<void> check_prompt(const request_spec& spec, const service_context& context);

}  // namespace ordermoe::actors
