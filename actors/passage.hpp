#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "actors/context.hpp"
#include "actors/device/device.hpp"

/// Decoded positions that go from layer to layer without their token.
///
///          token            compute             selector             shard            compute
///   lends its state ---> attention -----> all slots run here, ---> the experts -----> experts' outputs are added;
///            ^            of the batch      and it stays here?      of all of them      the next layer, or the head
///            |                                 | no                                        |
///            +---- decided, with its state ----+          +-------- head_done, with it ----+
///            +--------------------------------------------+
///
/// On the wall clock a token that has one row lends its state (passage) to the compute. As long as everything that the row chose runs
/// on this server, and the next layer is here, too, selector, shard and compute pass it on with whatever else was in its batch: a layer
/// costs some messages for all positions at the server together, where a token costs five a layer for itself. Whoever finds that the
/// next step is none of these gives the token its state back and says what it would have said without. In virtual time, where the
/// order of messages is part of what is repeated, tokens lend nothing.
namespace ordermoe::actors {

/// What a token lent. Whoever has the message that it is in has it alone.
struct passage {
  token_actor token;
  std::shared_ptr<const server_view> view;  ///< Of the token, which goes by one plan.
  wire::token_state state;                  ///< One row.
  wire::expert_call call = {};              ///< Of the layer before: its memory is used again.
};

/// Whether a token may lend its state: one position behind which logits are read, on the wall clock.
bool may_ride(const server_view& view, const wire::token_state& state);

/// The attention of the layer that the state is at, whose rows and allowances move into it.
attend_work attention_of(const token_actor& token, const server_view& view,
                         wire::token_state& state);

/// Notes in a state what was decided about its rows: what they spent and may still spend, and what ran of what they chose.
/// Precondition: the state has its allowance back.
void take_decision(const server_view& view, const chunk_decision& choice, wire::token_state& state);

/// Whether all slots of every row run on one server.
bool runs_at(std::span<const wire::executed_slot> slots, std::uint32_t server);

/// The call for a row that rides on: all of it runs here and its position stays. Nothing where it does not.
std::optional<wire::expert_call> call_of_rider(const chunk_decision& choice, passage& rider,
                                               std::vector<float>& normed);

/// Adds what the experts of its call gave, as awaited_outputs::add_to does: then it is behind the layer.
void add_outputs_of_rider(running_call& done, passage& rider);

}  // namespace ordermoe::actors
