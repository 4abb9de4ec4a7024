#pragma once

#include <cstdint>
#include <memory>

#include "actors/context.hpp"

/// The actors of one server, besides compute (compute.hpp), the requests of its users (request.hpp) and
/// the tokens that visit it (token.hpp).
namespace ordermoe::actors {

/// One direction between two servers: charges bytes / bandwidth, then the latency, FIFO (virtual time),
/// hands frames on at once (wall clock in one process), or to the way out where the other server is in
/// another process. Keeps its own ledger.
link_actor spawn_link(caf::actor_system& system, std::shared_ptr<const service_context> context,
                      std::uint32_t from, std::uint32_t to);

/// The experts of one layer on one server. Hands calls for them to compute, and says to the call's owner
/// where it does not have one.
shard_actor spawn_shard(caf::actor_system& system, std::shared_ptr<const server_view> view,
                        std::uint32_t layer);

/// Answers which residence, server and expert for each slot, from an immutable snapshot of plan,
/// policy and load.
selector_actor spawn_selector(caf::actor_system& system, std::uint32_t id);

/// The door of one server and the registry of what is here: sequences and their KV memory, tokens,
/// requests of its users, admission, load reports.
///
///   holding --resume_admission--> open --hold_admission--> draining --none in flight--> holding
///
/// While it is not open, requests that arrive are held; they begin under the plan that is in force when
/// it opens. A server begins holding, before its first plan.
///
/// While the plan changes two plans are here, each with shards of its own; KV memory is one account. What comes under either is
/// done by that one, and the earlier one goes when nothing is under it (install_plans).
///
/// Where servers are in other processes, no request begins while what was sent to one of them waits. One that is
/// not connected any more ends the requests that need it, each with an error that names it: those whose KV
/// rows are there, and those with a token that waits for its outputs or calls it. What its own users asked for
/// is forgotten here.
///
/// A frame is decoded, checked against what can be true here (planning/serving/arrivals.hpp) and against what has
/// been here (kv_reservations.hpp and token_visits.hpp there); what fails is counted and has no
/// other effect. A sequence begins with the grant of its memory and ends with its release, its lease
/// or this server; nothing of it is left behind then.
edge_server_actor spawn_edge_server(caf::actor_system& system,
                                    std::shared_ptr<const service_context> context,
                                    std::uint32_t id);

/// Keeps what the others tell of problems and changes, for whoever asks. Bounded: old problems go first.
recorder_actor spawn_recorder(caf::actor_system& system);

}  // namespace ordermoe::actors
