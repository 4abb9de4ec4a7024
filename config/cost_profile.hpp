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

  /// Bytes that every server holds whatever the plan: embedding, head, and every layer besides its
  /// experts.
  std::int64_t resident_bytes(std::size_t n_layers) const {
    return embedding_bytes + head_bytes + attention_bytes * static_cast<std::int64_t>(n_layers);
  }
};

/// The profiles that ship: mixtral-8x7b, qwen1.5-moe-a2.7b, switch-base-8. Error: usage, naming the
/// known ones.
result<cost_profile> named_cost_profile(std::string_view name);
std::vector<std::string> cost_profile_names();

/// The `measured` profile: the charges of a model of this shape itself, in 16-bit numbers.
cost_profile measured_cost_profile(std::size_t hidden_size, std::size_t intermediate_size,
                                   std::size_t n_heads, std::size_t n_kv_heads,
                                   std::size_t head_dim, std::size_t n_experts,
                                   std::size_t vocab_size);

}  // namespace ordermoe
