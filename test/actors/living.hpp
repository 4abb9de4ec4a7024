#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/service/service.hpp"
#include "model/reference.hpp"
#include "test/actors/fixture.hpp"

/// Requests to a living service, and what must be true of it whatever happens to them.
namespace ordermoe::test {

/// The ids that the single-process reference answers a request of this number with.
inline std::vector<std::int32_t> reference_ids(const model::transformer& model,
                                               const actors::request_spec& spec,
                                               std::uint64_t number) {
  model::generation_options options;
  options.max_new_tokens = spec.max_new_tokens;
  options.sampling = {spec.temperature, spec.sampling_seed};
  options.sampling.bias = spec.choice.bias;
  options.sampling.frequency_penalty = spec.choice.frequency_penalty;
  options.sampling.presence_penalty = spec.choice.presence_penalty;
  options.sampling.top_k = spec.choice.top_k;
  options.sampling.top_p = spec.choice.top_p;
  options.request = spec.sampling_stream.value_or(number);
  auto answer = model::generate(model, nullptr, spec.prompt, options);
  ORDERMOE_CHECK(answer.has_value(), answer ? "" : answer.error().message);
  return std::move(answer->token_ids);
}

/// One client's view of one request: every position once and in order, then one end.
struct followed_request {
  actors::request_spec spec;
  std::vector<std::int32_t> streamed;
  std::optional<actors::request_outcome> ended;
  std::string mistake;  ///< The first thing that a client must not see.

  actors::answer_sink sink() {
    return {[this](const actors::answer_token& token) { take(token); },
            [this](const actors::request_outcome& outcome) { end(outcome); }};
  }

 private:
  void take(const actors::answer_token& token) {
    if (ended) note("a token after the end");
    if (token.index != streamed.size()) note("a position twice or out of order");
    streamed.push_back(token.id);
  }
  void end(const actors::request_outcome& outcome) {
    if (ended) note("a second end");
    if (outcome.token_ids != streamed) note("an outcome with other ids than were streamed");
    ended = outcome;
  }
  void note(const char* what) {
    if (mistake.empty()) mistake = what;
  }
};

/// Everything that a server still has of anybody; empty where it is at rest.
inline std::string left_behind(const actors::service_status& status) {
  std::string left;
  for (const auto& server : status.servers) {
    const auto note = [&](const char* what, auto count) {
      if (count != 0)
        left += fmt::format("server {}: {} {}; ", server.server, static_cast<std::int64_t>(count),
                            what);
    };
    note("requests", server.requests.size());
    note("sequences", server.sequences.size());
    note("bytes reserved", server.reserved_bytes);
    note("sequences at the device", server.kv_sequences);
    note("batches", server.waiting_batches);
  }
  return left;
}

/// What must hold of a status at any moment; empty where it does.
inline std::string contradiction(const actors::service_status& status) {
  for (const auto& server : status.servers) {
    std::int64_t sum = 0;
    for (const auto& sequence : server.sequences) sum += sequence.granted ? sequence.bytes : 0;
    if (sum != server.reserved_bytes)
      return fmt::format("server {}: {} bytes reserved, sequences have {}", server.server,
                         server.reserved_bytes, sum);
    if (server.reserved_bytes > server.kv_bytes)
      return fmt::format("server {}: {} bytes reserved of {}", server.server, server.reserved_bytes,
                         server.kv_bytes);
    if (server.refused_frames != 0)
      return fmt::format("server {}: {} frames made no sense", server.server,
                         server.refused_frames);
  }
  return {};
}

/// As little KV memory as one request of the world needs.
inline void leave_memory_for_one_request(world& world) {
  std::size_t positions = 0;
  for (const auto& spec : world.setup.requests)
    positions = std::max<std::size_t>(positions, spec.prompt.size() + spec.max_new_tokens);
  const auto need = static_cast<std::int64_t>(positions * world.setup.profile.n_layers) *
                    world.setup.costs.kv_row_bytes;
  for (auto& server : world.setup.servers.servers) {
    const auto spare = server.kv_bytes - need;
    server.kv_bytes -= spare;
    server.memory_bytes -= spare;
  }
}

}  // namespace ordermoe::test
