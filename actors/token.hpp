#pragma once

#include <memory>
#include <vector>

#include "actors/context.hpp"

namespace ordermoe::actors {

/// A token in flight on one server: one decoding position, or one chunk of given positions.
///
///            +------------------------ next layer, same server -----------------------+
///            v                                                                        |
///   start -> attending -> executing -> residence here? -- yes --> collecting -> add outputs
///     ^                       | no                                                    |
///     |                       v                                                       | last layer
///     |            rows that ran here alone: collect and                              v
///     |            add their outputs; then the state goes to                      sampling
///     |            the residence, this actor ends, and a new                          |
///     |            one starts there in `collecting`                                   v
///     |            (or in `attending`, with nothing left to await)               report to the owner
///     |                                                                               |
///     +---- the next position starts here: this actor goes on as its token -----------+
///                                                                                     v
///                                   it starts elsewhere, or its owner starts it: this actor ends
///
/// attending: waits at the compute until every earlier KV row of the sequence and layer is there; from
/// there the rows go to the selector, with what else it needs to know, and it answers the token. Or, on the wall clock, it
/// passes the row on with the token's state, and the token hears of a later layer, or of the logits (passage.hpp).
/// executing: one call to each server that runs slots; outputs go to the residence. A row all of whose
/// slots run where the token is has its outputs added before it travels, so that it travels once.
/// collecting: waits for the outputs of all calls, each row of which counts once. Where no row runs an
/// expert (an encoder-decoder's prompt in the decoder's layers, rows that find their expert full) the
/// layer ends with the selection. An encoder-decoder's prompt is one chunk, and instead of sampling it
/// starts the position that reads the decoder's start token.
///
/// What comes in another phase than the one that waits for it is left alone. Work that fails ends the
/// token and is told to the owner; a lost frame is covered by the request's deadline.
///
/// Begins where `parent` runs, without waking another thread.
token_actor spawn_token(caf::local_actor& parent, std::shared_ptr<const server_view> view,
                        wire::token_state state, std::vector<arrived_output> early_outputs);

}  // namespace ordermoe::actors
