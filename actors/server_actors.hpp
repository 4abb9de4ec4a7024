#pragma once

#include <cstdint>
#include <memory>

#include "actors/run_context.hpp"

/// The actors of one server, besides compute (compute.hpp) and the tokens that visit it
/// (token.hpp).
namespace ordermoe::actors {

/// One direction between two servers: a FIFO that charges bytes / bandwidth, then the latency
/// (virtual time), or hands frames on at once (wall clock in one process). Keeps its own ledger.
link_actor spawn_link(caf::actor_system& system, std::shared_ptr<const run_context> run,
                      std::uint32_t from, std::uint32_t to);

/// The experts of one layer on one server. Refuses what the plan does not host here and hands the
/// rest to compute.
shard_actor spawn_shard(caf::actor_system& system, std::shared_ptr<const server_view> view,
                        std::uint32_t layer);

/// Answers which residence, server and expert for each slot, from an immutable snapshot of plan,
/// policy and load.
selector_actor spawn_selector(caf::actor_system& system, std::uint32_t id);

/// Admission and KV bookkeeping of one server, the door for what arrives over links, and the
/// registry of the tokens and requests that are here.
///
/// KV: a sequence's rows at a layer are known to be here from the moment their attention is queued
/// here or their frame arrived; a token whose earlier rows are not all here waits, and goes on as
/// soon as they are. Reservations: an attempt is refused where memory or an earlier waiter stands
/// against it; a waiting reservation is granted in FIFO order.
edge_server_actor spawn_edge_server(caf::actor_system& system, std::uint32_t id);

}  // namespace ordermoe::actors
