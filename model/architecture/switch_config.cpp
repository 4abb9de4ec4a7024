#include "model/architecture/switch_config.hpp"

#include <algorithm>
#include <span>
#include <vector>

namespace ordermoe::model {

namespace {

constexpr std::size_t most_blocks = 1024;
constexpr std::size_t usual_positions = 512;

/// The fields of one stack.
struct stack_fields {
  const char* blocks;
  const char* sparse;
  const char* step;
};
constexpr stack_fields encoder_fields{"num_layers", "num_sparse_encoder_layers",
                                      "encoder_sparse_step"};
constexpr stack_fields decoder_fields{"num_decoder_layers", "num_sparse_decoder_layers",
                                      "decoder_sparse_step"};

struct stack {
  std::size_t n_blocks = 0;
  std::vector<std::size_t> sparse;
};

/// Places of the sparse blocks; none where there are more sparse blocks than blocks.
std::vector<std::size_t> sparse_places(std::size_t n_blocks, std::size_t n_sparse) {
  std::vector<std::size_t> places;
  const std::size_t step = n_blocks / n_sparse;
  for (std::size_t block = 0; step > 0 && block < n_blocks; ++block)
    if (step == 1 || block % step == 1) places.push_back(block);
  return places;
}

stack read_stack(field_reader& fields, const stack_fields& names,
                 std::optional<std::size_t> usual_blocks) {
  stack read;
  std::size_t n_sparse = 0;
  fields.natural(names.blocks, 1, most_blocks, read.n_blocks, usual_blocks);
  fields.natural(names.sparse, 1, most_blocks, n_sparse);
  if (!fields.ok()) return read;
  if (n_sparse > read.n_blocks) {
    fields.fail(errc::unsupported, names.sparse,
                fmt::format("found {}, which makes none of {} {} sparse, supported is at most {}",
                            n_sparse, names.blocks, read.n_blocks, read.n_blocks));
    return read;
  }
  fields.neutral(names.step, read.n_blocks / n_sparse);
  read.sparse = sparse_places(read.n_blocks, n_sparse);
  return read;
}

}  // namespace

void read_switch_config(field_reader& fields, model_config& config) {
  encoder_decoder_shape shape;
  fields.neutral("is_encoder_decoder", true);
  fields.natural("d_model", 1, 1 << 16, config.hidden_size);
  fields.natural("d_kv", 1, 4096, config.head_dim);
  fields.natural("d_ff", 1, 1 << 18, config.intermediate_size);
  fields.natural("num_heads", 1, 1024, config.n_heads);
  config.n_kv_heads = config.n_heads;
  const stack encoder = read_stack(fields, encoder_fields, std::nullopt);
  const stack decoder = read_stack(fields, decoder_fields, encoder.n_blocks);
  fields.natural("num_experts", 1, 4096, config.n_experts);
  config.top_k = 1;
  config.gates = gate_rule::probabilities;
  fields.natural("expert_capacity", 1, std::size_t{1} << 32, shape.expert_capacity);
  fields.natural("vocab_size", 1, 1 << 24, config.vocab_size);
  fields.natural("relative_attention_num_buckets", 4, 1 << 16, shape.relative_buckets);
  fields.natural("relative_attention_max_distance", 1, 1 << 20, shape.relative_max_distance);
  fields.positive("layer_norm_epsilon", 1.0, config.rms_norm_eps, 1e-6);
  std::size_t positions = usual_positions;
  fields.natural("n_positions", 1, 1 << 14, positions, usual_positions);
  config.max_context = 2 * positions;
  config.tied_embeddings = true;
  fields.flag("tie_word_embeddings", config.tied_embeddings);
  if (!fields.ok()) return;

  // The decoder starts with what fills a batch up, unless the file says otherwise.
  config.bos_id = -1;
  config.eos_id = 1;
  fields.token_id("bos_token_id", config.vocab_size, config.bos_id);
  fields.token_id("eos_token_id", config.vocab_size, config.eos_id);
  fields.token_id("pad_token_id", config.vocab_size, shape.decoder_start_id);
  fields.token_id("decoder_start_token_id", config.vocab_size, shape.decoder_start_id);
  if (config.eos_id >= static_cast<std::int64_t>(config.vocab_size))
    fields.fail(errc::out_of_range, "vocab_size",
                fmt::format("{} does not hold eos_token_id {}", config.vocab_size, config.eos_id));

  if (shape.relative_buckets % 4 != 0)
    fields.fail(errc::unsupported, "relative_attention_num_buckets",
                fmt::format("found {}, supported are multiples of 4: two directions, half of each "
                            "for single distances",
                            shape.relative_buckets));
  // Distances beyond those with a bucket each are told apart up to this one.
  if (shape.relative_max_distance <= shape.relative_buckets / 2)
    fields.fail(errc::out_of_range, "relative_attention_max_distance",
                fmt::format("found {}, allowed is more than half of "
                            "relative_attention_num_buckets, {}",
                            shape.relative_max_distance, shape.relative_buckets / 2));

  fields.neutral("feed_forward_proj", "relu");
  fields.neutral("dense_act_fn", "relu");
  fields.neutral("hidden_act", "relu");
  fields.neutral("router_dtype", "float32");
  fields.neutral("router_type", "tokens_masked");
  fields.neutral("num_selected_experts", 1);
  for (const char* field : {"is_gated_act", "router_bias", "router_ignore_padding_tokens",
                            "add_router_probs", "attention_bias", "batch_prioritized_routing"})
    fields.neutral(field, false);
  for (const char* field :
       {"quantization_config", "num_shared_experts", "scale_embedding", "scale_decoder_outputs"})
    if (const json* found = fields.find(field))
      fields.fail(errc::unsupported, field,
                  fmt::format("{} would change the computation, supported is null (or leaving it "
                              "out)",
                              field_reader::shown(*found)));
  if (!fields.ok()) return;
  const std::size_t last = decoder.n_blocks - 1;
  if (decoder.sparse.empty() || decoder.sparse.back() != last)
    return fields.fail(errc::unsupported, decoder_fields.sparse,
                       fmt::format("found {} of {} {}, which makes the last one, {}, dense, "
                                   "supported are models whose last decoder layer has experts",
                                   fields.find(decoder_fields.sparse)->dump(),
                                   decoder_fields.blocks, decoder.n_blocks, last));

  shape.encoder_layers = encoder.sparse.size();
  shape.encoder_blocks = encoder.n_blocks;
  config.sparse_blocks = encoder.sparse;
  config.sparse_blocks.insert(config.sparse_blocks.end(), decoder.sparse.begin(),
                              decoder.sparse.end());
  config.n_layers = config.sparse_blocks.size();
  fields.check_experts("num_experts", config.n_experts,
                       "num_sparse_encoder_layers and num_sparse_decoder_layers", config.n_layers);
  if (config.n_layers < encoder.n_blocks + decoder.n_blocks)
    config.dense_intermediate_size = config.intermediate_size;
  config.encoder_decoder = shape;
}

std::string switch_config_json(const model_config& config) {
  const encoder_decoder_shape& shape = *config.encoder_decoder;
  const std::size_t decoder_blocks = config.blocks_of(layer_id{config.n_layers - 1}).end;
  const auto sparse = std::span(config.sparse_blocks);
  const auto n_sparse = [](std::size_t n_blocks, std::span<const std::size_t> places) {
    for (std::size_t n = 1; n <= n_blocks; ++n)
      if (std::ranges::equal(sparse_places(n_blocks, n), places)) return n;
    ORDERMOE_CHECK(false, "sparse blocks that no number of them makes");
    return n_blocks;
  };
  const auto id_or_null = [](std::int32_t id) {
    return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(id);
  };
  const nlohmann::ordered_json content = {
      {"architectures", {architecture_of(config.kind)}},
      {"model_type", to_string(config.kind)},
      {"is_encoder_decoder", true},
      {"d_model", config.hidden_size},
      {"d_kv", config.head_dim},
      {"d_ff", config.intermediate_size},
      {"num_heads", config.n_heads},
      {"num_layers", shape.encoder_blocks},
      {"num_sparse_encoder_layers",
       n_sparse(shape.encoder_blocks, sparse.first(shape.encoder_layers))},
      {"num_decoder_layers", decoder_blocks},
      {"num_sparse_decoder_layers", n_sparse(decoder_blocks, sparse.subspan(shape.encoder_layers))},
      {"num_experts", config.n_experts},
      {"num_selected_experts", config.top_k},
      {"expert_capacity", shape.expert_capacity},
      {"router_bias", false},
      {"router_dtype", "float32"},
      {"router_ignore_padding_tokens", false},
      {"router_type", "tokens_masked"},
      {"feed_forward_proj", "relu"},
      {"dense_act_fn", "relu"},
      {"is_gated_act", false},
      {"relative_attention_num_buckets", shape.relative_buckets},
      {"relative_attention_max_distance", shape.relative_max_distance},
      {"n_positions", config.max_context / 2},
      {"layer_norm_epsilon", config.rms_norm_eps},
      {"vocab_size", config.vocab_size},
      {"tie_word_embeddings", config.tied_embeddings},
      {"bos_token_id", id_or_null(config.bos_id)},
      {"eos_token_id", id_or_null(config.eos_id)},
      {"pad_token_id", shape.decoder_start_id},
      {"decoder_start_token_id", shape.decoder_start_id},
      {"torch_dtype", "bfloat16"},
  };
  return content.dump(2) + "\n";
}

}  // namespace ordermoe::model
