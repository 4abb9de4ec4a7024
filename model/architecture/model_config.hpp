#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "config/ids.hpp"
#include "model/architecture/routing.hpp"

namespace ordermoe::model {

/// The models that can be run, by the name of their class in Hugging Face transformers.
enum class family {
  mixtral,              ///< MixtralForCausalLM
  qwen2_moe,            ///< Qwen2MoeForCausalLM: Qwen1.5-MoE and Qwen2-MoE
  qwen3_moe,            ///< Qwen3MoeForCausalLM
  olmoe,                ///< OlmoeForCausalLM
  switch_transformers,  ///< SwitchTransformersForConditionalGeneration, an encoder-decoder
};
/// As `model_type` has it: mixtral, qwen2_moe, qwen3_moe, olmoe, switch_transformers.
const char* to_string(family value);
/// What `architectures` names.
const char* architecture_of(family value);

/// RMS norms of queries and keys, before they are rotated.
enum class query_key_norm {
  none,
  per_head,  ///< Over each head's head_dim numbers, one weight [head_dim] for all heads.
  whole,     ///< Over all heads' numbers at once, a weight for every one of them.
};

/// How a row comes into a sequence: given, or computed from the token before it.
enum class row_kind { prompt, decoded };

/// What an encoder-decoder has beside its layers.
///
/// The first layers are the encoder's, the others the decoder's. Rows of the prompt, positions 0 ..
/// n - 1, run through the encoder's layers, all of them in one attend(); in the decoder's layers
/// they have no slots and only leave the keys and values that decoded rows read from the encoder's
/// output. Decoded rows begin at the decoder's first layer with decoder_start_id at position n;
/// they attend to each other from position n on, and to the prompt's rows below.
struct encoder_decoder_shape {
  std::size_t encoder_layers = 0;
  /// Of the encoder; those behind its last sparse one run at the decoder's first layer.
  std::size_t encoder_blocks = 0;
  std::int32_t decoder_start_id = 0;  ///< What the decoder reads first.
  /// Rows of one sequence and layer that an expert takes, counted in the order of positions by the
  /// router's own choice, the encoder's and the decoder's layers each for themselves. Those beyond
  /// have no slots.
  std::size_t expert_capacity = 0;
  // Of the numbers that are added to scores by the distance of query and key.
  std::size_t relative_buckets = 0;
  std::size_t relative_max_distance = 0;
};

/// Blocks of a stack: [first, end).
struct block_range {
  std::size_t first = 0;
  std::size_t end = 0;
  std::size_t size() const { return end - first; }
};

/// The shape of a model and what sets its family apart, as a Hugging Face config.json states it.
///
/// A block is what the files number: attention, then a feed-forward that is sparse (experts) or
/// dense. A layer is a run of blocks that ends in a sparse one: where the router is, slots are and
/// states may move. The dense blocks before belong to the layer's attend().
struct model_config {
  family kind = family::mixtral;
  std::size_t hidden_size = 0;
  std::size_t intermediate_size = 0;  ///< Width inside one expert.
  std::size_t n_layers = 0;           ///< Sparse blocks, of encoder and decoder together.
  /// Place of each layer's sparse block among its stack's blocks, [n_layers]; empty: layer l is
  /// block l. Never empty in an encoder-decoder.
  std::vector<std::size_t> sparse_blocks;
  /// Width inside a dense feed-forward; 0: there is none.
  std::size_t dense_intermediate_size = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t n_experts = 0;
  std::size_t top_k = 0;
  std::size_t vocab_size = 0;
  std::size_t max_context = 0;  ///< Positions of a sequence, prompt and answer together.
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::int32_t bos_id = 1;
  std::int32_t eos_id = 2;
  /// What ends a text as eos_id does: config.json may list several, and generation_config.json
  /// more.
  std::vector<std::int32_t> other_eos_ids;
  bool tied_embeddings = false;
  bool query_key_value_bias = false;
  query_key_norm qk_norm = query_key_norm::none;
  gate_rule gates = gate_rule::renormalised;
  /// Width inside the expert that every row takes beside those it is routed to; 0: there is none.
  std::size_t shared_intermediate_size = 0;
  std::optional<encoder_decoder_shape> encoder_decoder;  ///< Nothing: a decoder alone.

  bool ends_text(std::int32_t id) const {
    return id == eos_id || std::ranges::find(other_eos_ids, id) != other_eos_ids.end();
  }
  std::size_t kv_width() const { return n_kv_heads * head_dim; }
  /// Blocks of a layer, in its stack; the last one is sparse.
  block_range blocks_of(layer_id layer) const;
  bool of_encoder(layer_id layer) const {
    return encoder_decoder && layer.index() < encoder_decoder->encoder_layers;
  }
  /// Where rows of this kind enter.
  layer_id first_layer(row_kind kind) const {
    const bool in_decoder = encoder_decoder && kind == row_kind::decoded;
    return layer_id{in_decoder ? encoder_decoder->encoder_layers : 0};
  }
  /// Whether rows of this kind run experts at this layer (those that an expert's capacity allows).
  bool takes_slots(row_kind kind, layer_id layer) const {
    return !encoder_decoder || of_encoder(layer) == (kind == row_kind::prompt);
  }
  /// fp32 numbers in one KV row of a layer: for each block the key, then the value. Rows of the
  /// encoder's layers are empty: all rows of a prompt are computed together. In the decoder's
  /// layers, keys and values of a prompt's row are what decoded rows read from it, and the last
  /// two numbers of every row say which expert the router chose, for their capacity.
  std::size_t kv_row_size(layer_id layer) const;
  /// Of the layer with the most.
  std::size_t kv_row_size() const;
};

/// Tensors that files may have beside the embedding though they are the same numbers: other names
/// of the one table.
std::vector<std::string> embedding_copies(const model_config& config);

/// What the emulation charges for this model itself, in 16-bit numbers: measured_cost_profile, with
/// the shared expert among the weights that every row takes wherever it is.
cost_profile own_costs(const model_config& config);

/// Reads and checks DIR/config.json field by field, and takes the ids that end a text from
/// DIR/generation_config.json too, where there is one. Every message names the file and the field,
/// what was found and what is allowed. Fields that would change the computation and are not
/// supported are refused by name.
result<model_config> read_model_config(const std::filesystem::path& folder);

/// A config.json in memory; `place` is what messages name.
result<model_config> parse_model_config(std::string_view text, const std::string& place);

/// The config.json text for this shape, keys in a stable order.
std::string model_config_json(const model_config& config);

}  // namespace ordermoe::model
