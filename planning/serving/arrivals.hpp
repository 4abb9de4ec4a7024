#pragma once

#include <cstdint>

#include "config/error.hpp"
#include "net/wire/messages.hpp"
#include "planning/plan.hpp"

/// Whether what a decoded message says can be true where it arrives. No index, count, id or size of a
/// frame is used before it went through here: what passes can be looked up, counted with and
/// allocated for.
namespace ordermoe::serving {

/// What a server knows without the message.
struct arrival_limits {
  std::uint32_t self = 0;  ///< This server.
  std::uint32_t n_servers = 0;
  std::uint32_t n_layers = 0;
  std::uint32_t n_experts = 0;
  std::uint32_t top_k = 0;
  std::uint32_t vocabulary = 0;
  std::uint32_t decoded_layer = 0;   ///< Where decoded positions begin.
  std::uint32_t most_positions = 0;  ///< Of a sequence, prompt and answer together.
  std::uint32_t most_rows = 0;       ///< Of one token: of a chunk of given positions.
  std::int64_t kv_bytes = 0;         ///< That this server keeps for KV rows.
  std::uint32_t hidden_size = 0;
};

/// All errors: out_of_range, naming the field, what was found and what is allowed. `sender` is the
/// server that the frame came from, `placed` and `index` the plan in force. A server that has no part
/// in a request has no say in it.
result<void> check(const wire::token_state& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed);
result<void> check(const wire::expert_call& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed,
                   const planning::placement_index& index);
result<void> check(const wire::expert_output& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::placement_index& index);
result<void> check(const wire::kv_rows& message, const arrival_limits& limits);
result<void> check(const wire::progress_report& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed);
result<void> check(const wire::reservation& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed);
result<void> check(const wire::load_report& message, std::uint32_t sender,
                   const arrival_limits& limits);
result<void> check(const wire::link_report& message, std::uint32_t sender,
                   const arrival_limits& limits);
result<void> check(const wire::failure_report& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed);

/// Whether attention of an access server's requests may run at this server, at any layer.
bool serves(const planning::plan& placed, std::uint32_t access, std::uint32_t server);

}  // namespace ordermoe::serving
