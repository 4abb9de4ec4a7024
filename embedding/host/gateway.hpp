#pragma once

#include <cstdint>
#include <memory>

#include "actors/scheduling/actor_census.hpp"
#include "embedding/node_content.hpp"
#include "ordermoe/actors.hpp"

namespace ordermoe::api {

/// From the thread that tells an answer's end: this one needs no cancelling any more.
struct forget_prompt {
  std::uint64_t request = 0;
};

using inner_gateway_actor = gateway_actor::extend<caf::reacts_to<forget_prompt>>;

/// Speaks for a node. Tokens go from whoever tells them straight to their receiver; the gateway keeps what may have to be
/// cancelled, and hears of receivers that end.
///
/// It and the actor that waits for the status are counted.
inner_gateway_actor spawn_gateway(caf::actor_system& host, std::shared_ptr<node_content> node,
                                  std::shared_ptr<actors::actor_census> census);

}  // namespace ordermoe::api

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::forget_prompt)
