#pragma once

#include <memory>

#include "actors/run_context.hpp"

namespace ordermoe::actors {

/// A token in flight on one server: one decoding position, or one chunk of a prompt.
///
///            +--------------------------- next layer, same server ---------------------------+
///            v                                                                               |
///   start -> attend -> select -> execute -> residence here?  -- yes --> collect -> combine --+
///                                              | no                                   |
///                                              v                                      +-- last
///                                              layer --> head -> sample
///                                   state sent to the residence, | this actor ends; there a new
///                                   one                                          v starts in
///                                   `collect`                                     report; the
///                                   successor starts
///
/// Where no row runs an expert (an encoder-decoder's prompt in the decoder's layers, rows that find
/// their expert full) the layer ends with the selection. An encoder-decoder's prompt is one chunk,
/// and instead of sampling it starts the position that reads the decoder's start token.
///
/// attend: waits at the compute until every earlier KV row of the sequence and layer is there; from
/// there the rows go to the selector, with what else it needs to know, and it answers the token.
/// execute: one call to each server that runs slots; outputs go to the residence.
/// collect: waits for the outputs of all calls. Nothing is lost inside a process; a lost frame is
/// covered by the request's deadline. Begins where `parent` runs, without waking another thread.
token_actor spawn_token(caf::local_actor& parent, std::shared_ptr<const server_view> view,
                        token_state state, std::vector<expert_output> early_outputs);

/// Tokens that share the pool of the rows [first, first + rows) before layer `layer` of `n_layers`:
/// those rows, less the layers that they have behind them, and the positions that may follow them.
double tokens_left(const request_terms& terms, std::uint32_t first, std::uint32_t rows,
                   std::size_t layer, std::size_t n_layers);

/// The decoding position that computes a sampled id: its state before the embedding. It shares the
/// pool with the positions that may still follow it.
/// `start_rows` and `layer` as run_context's start_rows() and decoded_layer() have them.
token_state successor(const request_terms& terms, std::int32_t id, std::uint32_t position,
                      loss_units pool, loss_units spent, double allowance_factor,
                      std::uint32_t start_rows = 0, std::uint32_t layer = 0);

}  // namespace ordermoe::actors
