#pragma once

#include <caf/actor_system.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/typed_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "ordermoe/node.hpp"

/// OrderMoE for programs that have actors of their own (CAF 0.17): servers whose actors the host's scheduler runs, and an actor
/// that answers the host's.
///
///     caf::actor_system host(config);
///     auto serving = ordermoe::api::start_in(host, ordermoe::api::cluster_options{...});
///     auto gateway = ordermoe::api::open_gateway(host, *serving);
///     host.spawn(my_behavior, *gateway);   // self->send(gateway, submit_prompt{1, {.text = "..."}, me})
///     ...
///     serving->stop();                     // before the host's system ends
///
/// The host's actors run on the host's scheduler alone, never on a thread that OrderMoE started. Messages stay in this process:
/// none can be sent over BASP.
namespace ordermoe::api {

/// To whoever is named in submit_prompt: one token, in order and once each.
struct streamed_token {
  std::uint64_t ref = 0;  ///< As in submit_prompt.
  token content;
};

/// To the same, once for each submit_prompt and after its tokens; also where the prompt is refused, or the node stops. What was sent to a
/// gateway that has ended has none: monitor the gateway.
struct ended_answer {
  std::uint64_t ref = 0;
  answer content;
};

/// Takes answers. Of an actor without a type: caf::actor_cast<answer_receiver>(self).
using answer_receiver =
    caf::typed_actor<caf::reacts_to<streamed_token>, caf::reacts_to<ended_answer>>;

/// To a gateway: answer this prompt. Where the receiver ends before, the answer does too.
struct submit_prompt {
  std::uint64_t ref = 0;  ///< The host's own name for it.
  prompt wanted;
  answer_receiver to;
};

/// To a gateway: what was submitted under this name for this receiver ends at once, with what there is of it; nothing where
/// that has ended.
struct cancel_prompt {
  std::uint64_t ref = 0;
  answer_receiver to;
};

/// To a gateway, which answers with node_status within half a minute.
struct ask_node_status {};
struct node_status {
  std::string json;            ///< As node::status().
  std::optional<problem> why;  ///< Why there is none.
};

using gateway_actor = caf::typed_actor<caf::reacts_to<submit_prompt>, caf::reacts_to<cancel_prompt>,
                                       caf::replies_to<ask_node_status>::with<node_status>>;

/// As node::start, but the host's scheduler runs the actors: there are all threads that node::start names but those of a system
/// of its own (docs/EMBEDDING.md has a table), and what plans is on a detached thread of the host's system, which ends a moment
/// after stop() has returned. The host's system must outlive the node and keeps its own configuration; a
/// scheduler that naps (work-stealing.moderate-poll-attempts) adds its naps to tokens' times. From no thread of the host's
/// scheduler, as it waits for actors there; nor may stop() or the node's end be.
result<node> start_in(caf::actor_system& host, const cluster_options& options);
result<node> start_in(caf::actor_system& host, const member_options& options);

/// An actor of the host's system that speaks for the node, in whatever system that runs, or none. It ends with stop(), which
/// waits for it, or once nobody has a handle of it and all that it submitted has ended: the host's system may end before a node
/// that runs elsewhere. Where it is ended before, what it submitted is cancelled. Asking for the status takes one more detached
/// thread from then on. Problem: usage where the node was stopped.
result<gateway_actor> open_gateway(caf::actor_system& host, node& of);

}  // namespace ordermoe::api

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::streamed_token)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::ended_answer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::submit_prompt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::cancel_prompt)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::ask_node_status)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::api::node_status)
