#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "config/error.hpp"

namespace ordermoe::model {

/// The shape of a decoder of Mixtral's architecture, as a Hugging Face config.json states it.
struct model_config {
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

  std::size_t kv_width() const { return n_kv_heads * head_dim; }
  /// fp32 numbers in one KV row of one layer: the key, then the value.
  std::size_t kv_row_size() const { return 2 * kv_width(); }
};

/// Reads and checks DIR/config.json field by field. Every message names the file and the field,
/// what was found and what is allowed. Fields that would change the computation and are not
/// supported are refused by name.
result<model_config> read_model_config(const std::filesystem::path& folder);

/// The config.json text for this shape, keys in a stable order.
std::string model_config_json(const model_config& config);

}  // namespace ordermoe::model
