#include "model/architecture/tensor_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace ordermoe::model {

std::size_t tensor_plan::size() const {
  std::size_t n = 1;
  for (const std::size_t side : shape) n *= side;
  return n;
}

namespace {

/// How often something is added to the residual stream of a stack of so many blocks.
double residual_of(std::size_t n_blocks) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(n_blocks));
}

/// Gathers the plan of a checkpoint.
struct tensor_list {
  std::vector<tensor_plan> all;

  void matrix(std::string name, std::size_t n_out, std::size_t n_in, double scale) {
    all.push_back({std::move(name), {n_out, n_in}, 0.0, scale / std::sqrt(n_in)});
  }
  void norm(std::string name, std::size_t n) { all.push_back({std::move(name), {n}, 1.0, 0.1}); }
  void bias(std::string name, std::size_t n) { all.push_back({std::move(name), {n}, 0.0, 0.2}); }
  void table(std::string name, std::size_t rows, std::size_t columns, double deviation) {
    all.push_back({std::move(name), {rows, columns}, 0.0, deviation});
  }
};

/// Twice the scale of other matrices: a router that prefers some experts clearly.
constexpr double router_scale = 2.0;

std::vector<tensor_plan> decoder_tensors(const model_config& config) {
  const std::size_t hidden = config.hidden_size;
  const std::size_t width = config.n_heads * config.head_dim;
  const std::size_t kv_width = config.kv_width();
  const bool mixtral = config.kind == family::mixtral;
  const double residual = residual_of(config.blocks_of(layer_id{config.n_layers - 1}).end);
  tensor_list list;
  const auto gated = [&](const std::string& place, std::size_t inner) {
    list.matrix(place + (mixtral ? "w1.weight" : "gate_proj.weight"), inner, hidden, 1.0);
    list.matrix(place + (mixtral ? "w3.weight" : "up_proj.weight"), inner, hidden, 1.0);
    // silu(a) * b of unit normal a and b has a root mean square of 0.6.
    list.matrix(place + (mixtral ? "w2.weight" : "down_proj.weight"), hidden, inner,
                residual / 0.6);
  };
  list.table("model.embed_tokens.weight", config.vocab_size, hidden, 1.0);
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    const auto range = config.blocks_of(layer_id{l});
    for (std::size_t b = range.first; b < range.end; ++b) {
      const std::string prefix = fmt::format("model.layers.{}.", b);
      const std::string attention = prefix + "self_attn.";
      list.norm(prefix + "input_layernorm.weight", hidden);
      list.matrix(attention + "q_proj.weight", width, hidden, 1.0);
      list.matrix(attention + "k_proj.weight", kv_width, hidden, 1.0);
      list.matrix(attention + "v_proj.weight", kv_width, hidden, 1.0);
      if (config.query_key_value_bias) {
        list.bias(attention + "q_proj.bias", width);
        list.bias(attention + "k_proj.bias", kv_width);
        list.bias(attention + "v_proj.bias", kv_width);
      }
      if (config.qk_norm != query_key_norm::none) {
        const bool per_head = config.qk_norm == query_key_norm::per_head;
        list.norm(attention + "q_norm.weight", per_head ? config.head_dim : width);
        list.norm(attention + "k_norm.weight", per_head ? config.head_dim : kv_width);
      }
      list.matrix(attention + "o_proj.weight", hidden, width, residual);
      list.norm(prefix + "post_attention_layernorm.weight", hidden);
      const std::string feed_forward = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
      if (b + 1 < range.end) {
        gated(feed_forward, config.dense_intermediate_size);
        continue;
      }
      list.matrix(feed_forward + "gate.weight", config.n_experts, hidden, router_scale);
      for (std::size_t e = 0; e < config.n_experts; ++e)
        gated(fmt::format("{}experts.{}.", feed_forward, e), config.intermediate_size);
      if (config.shared_intermediate_size > 0) {
        gated(feed_forward + "shared_expert.", config.shared_intermediate_size);
        list.matrix(feed_forward + "shared_expert_gate.weight", 1, hidden, 1.0);
      }
    }
  }
  list.norm("model.norm.weight", hidden);
  if (!config.tied_embeddings) list.matrix("lm_head.weight", config.vocab_size, hidden, 2.0);
  return std::move(list.all);
}

std::vector<tensor_plan> encoder_decoder_tensors(const model_config& config) {
  const encoder_decoder_shape& shape = *config.encoder_decoder;
  const std::size_t hidden = config.hidden_size;
  const std::size_t width = config.n_heads * config.head_dim;
  // A gate below one weighs what a sparse block adds; this keeps it about as large as the others.
  constexpr double against_gate = 2.0;
  tensor_list list;
  // A head that is the embedding finds what came in again; small beside what the blocks add, it
  // does not find that alone. The norm before the head makes up for it.
  const double root = std::sqrt(static_cast<double>(hidden));
  list.table("shared.weight", config.vocab_size, hidden, config.tied_embeddings ? 2.0 / root : 1.0);
  const auto add_stack = [&](const std::string& stack, std::span<const std::size_t> sparse,
                             std::size_t n_blocks) {
    const double residual = residual_of(n_blocks);
    for (std::size_t b = 0; b < n_blocks; ++b) {
      const std::string prefix = fmt::format("{}.block.{}.layer.", stack, b);
      std::size_t part = 0;
      const auto attention = [&](const char* name) {
        const std::string place = fmt::format("{}{}.{}.", prefix, part, name);
        // Scores are not divided by sqrt(head_dim): the queries are so much smaller.
        list.matrix(place + "q.weight", width, hidden,
                    1.0 / std::sqrt(static_cast<double>(config.head_dim)));
        list.matrix(place + "k.weight", width, hidden, 1.0);
        list.matrix(place + "v.weight", width, hidden, 1.0);
        list.matrix(place + "o.weight", hidden, width, residual);
        if (b == 0 && part == 0)
          list.table(place + "relative_attention_bias.weight", shape.relative_buckets,
                     config.n_heads, 1.0);
        list.norm(fmt::format("{}{}.layer_norm.weight", prefix, part++), hidden);
      };
      attention("SelfAttention");
      if (stack == "decoder") attention("EncDecAttention");
      const auto plain = [&](const std::string& place, std::size_t inner, double scale) {
        list.matrix(place + "wi.weight", inner, hidden, 1.0);
        // The positive part of a unit normal has a root mean square of 0.7.
        list.matrix(place + "wo.weight", hidden, inner, residual * scale / 0.7);
      };
      const std::string feed_forward = fmt::format("{}{}.mlp.", prefix, part);
      if (std::ranges::find(sparse, b) == sparse.end()) {
        plain(feed_forward, config.dense_intermediate_size, 1.0);
      } else {
        list.matrix(feed_forward + "router.classifier.weight", config.n_experts, hidden,
                    router_scale);
        for (std::size_t e = 0; e < config.n_experts; ++e)
          plain(fmt::format("{}experts.expert_{}.", feed_forward, e), config.intermediate_size,
                against_gate);
      }
      list.norm(fmt::format("{}{}.layer_norm.weight", prefix, part), hidden);
    }
    const double size = stack == "decoder" && config.tied_embeddings ? root : 1.0;
    list.all.push_back({stack + ".final_layer_norm.weight", {hidden}, size, 0.1 * size});
  };
  const auto sparse = std::span(config.sparse_blocks);
  add_stack("encoder", sparse.first(shape.encoder_layers), shape.encoder_blocks);
  add_stack("decoder", sparse.subspan(shape.encoder_layers), sparse.back() + 1);
  if (!config.tied_embeddings) list.matrix("lm_head.weight", config.vocab_size, hidden, 2.0);
  return std::move(list.all);
}

}  // namespace

std::vector<tensor_plan> tensors_of(const model_config& config) {
  return config.encoder_decoder ? encoder_decoder_tensors(config) : decoder_tensors(config);
}

}  // namespace ordermoe::model
