#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

namespace ordermoe {

/// What the emulation charges for each piece of a model, so that small tensors really computed are
/// timed as a large model's would be. Charged per executed layer: a six-layer model with the
/// mixtral-8x7b profile pays for six Mixtral layers. Bytes are 16-bit weights and activations; a
/// FLOP is one multiply or one add.
struct cost_profile {
  std::string name;
  std::int64_t hidden_bytes = 0;  ///< One row of hidden state on a link.
  std::int64_t kv_row_bytes = 0;  ///< Key and value of one token at one layer.
  std::int64_t expert_bytes = 0;  ///< Weights of one expert.
  std::int64_t expert_flops = 0;  ///< One row through one expert.
  /// Weights of one layer besides its experts (attention, norms, router).
  std::int64_t attention_bytes = 0;
  std::int64_t attention_flops = 0;  ///< One row through those weights.
  /// More for each earlier token that the row attends to.
  std::int64_t attention_flops_per_context = 0;
  std::int64_t embedding_bytes = 0;  ///< The embedding table, resident on every server.
  std::int64_t head_bytes = 0;       ///< The output projection, resident on every server.
  std::int64_t head_flops = 0;       ///< One row through the output projection.
  /// Time of a server for each batch, besides its arithmetic: starting it, and what actors do around it.
  std::int64_t batch_ns = 0;
  /// Time of its sender for each message to another server, besides its bytes: packing it and handing it on.
  std::int64_t message_ns = 0;

  /// Bytes that every server holds whatever the plan: embedding, head, and every layer besides its
  /// experts.
  std::int64_t resident_bytes(std::size_t n_layers) const {
    return embedding_bytes + head_bytes + attention_bytes * static_cast<std::int64_t>(n_layers);
  }
};

/// A profile's name, and behind colons what it charges otherwise than by itself: `mixtral-8x7b:batch-us=40:message-us=15`.
struct cost_profile_choice {
  std::string base;
  std::int64_t batch_ns = 0, message_ns = 0;
};
/// Error: usage, naming the part that is none. The base may be any word.
result<cost_profile_choice> parse_cost_profile_choice(std::string_view text);

/// The profiles that ship (cost_profile_names), each also with overheads behind its name as above. Its own name is the whole
/// text. Error: usage, naming the known ones.
result<cost_profile> named_cost_profile(std::string_view name);
std::vector<std::string> cost_profile_names();

/// A model's name where each server's charges are the model's own: `measured`, also with overheads.
bool is_measured_cost_profile(std::string_view name);

/// Whether a name is that of a profile that ships or `measured`. Error: usage, naming the known ones or the wrong part.
result<void> check_cost_profile(std::string_view name);

/// The `measured` profile: the charges of a model of this shape itself, in 16-bit numbers.
cost_profile measured_cost_profile(std::size_t hidden_size, std::size_t intermediate_size,
                                   std::size_t n_heads, std::size_t n_kv_heads,
                                   std::size_t head_dim, std::size_t n_experts,
                                   std::size_t vocab_size);

}  // namespace ordermoe
