#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "model/routing.hpp"

namespace ordermoe::model {

/// The decoders that can be run, by the name of their class in Hugging Face transformers.
enum class family {
  mixtral,    ///< MixtralForCausalLM
  qwen2_moe,  ///< Qwen2MoeForCausalLM: Qwen1.5-MoE and Qwen2-MoE
  qwen3_moe,  ///< Qwen3MoeForCausalLM
  olmoe,      ///< OlmoeForCausalLM
};
/// As `model_type` has it: mixtral, qwen2_moe, qwen3_moe, olmoe.
const char* to_string(family value);
/// What `architectures` names.
const char* architecture_of(family value);

/// RMS norms of queries and keys, before they are rotated.
enum class query_key_norm {
  none,
  per_head,  ///< Over each head's head_dim numbers, one weight [head_dim] for all heads.
  whole,     ///< Over all heads' numbers at once, a weight for every one of them.
};

/// The shape of a decoder and what sets its family apart, as a Hugging Face config.json states it.
struct model_config {
  family kind = family::mixtral;
  std::size_t hidden_size = 0;
  std::size_t intermediate_size = 0;  ///< Width inside one expert.
  std::size_t n_layers = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t n_experts = 0;
  std::size_t top_k = 0;
  std::size_t vocab_size = 0;
  std::size_t max_context = 0;  ///< max_position_embeddings, in tokens.
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::int32_t bos_id = 1;
  std::int32_t eos_id = 2;
  bool tied_embeddings = false;
  bool query_key_value_bias = false;
  query_key_norm qk_norm = query_key_norm::none;
  gate_rule gates = gate_rule::renormalised;
  /// Width inside the expert that every row takes beside those it is routed to; 0: there is none.
  std::size_t shared_intermediate_size = 0;

  std::size_t kv_width() const { return n_kv_heads * head_dim; }
  /// fp32 numbers in one KV row of one layer: the key, then the value.
  std::size_t kv_row_size() const { return 2 * kv_width(); }
};

/// What the emulation charges for this model itself, in 16-bit numbers: measured_cost_profile, with
/// the shared expert among the weights that every row takes wherever it is.
cost_profile own_costs(const model_config& config);

/// Reads and checks DIR/config.json field by field. Every message names the file and the field,
/// what was found and what is allowed. Fields that would change the computation and are not
/// supported are refused by name.
result<model_config> read_model_config(const std::filesystem::path& folder);

/// The same for a text in memory; `place` is what messages name.
result<model_config> parse_model_config(std::string_view text, const std::string& place);

/// The config.json text for this shape, keys in a stable order.
std::string model_config_json(const model_config& config);

}  // namespace ordermoe::model
