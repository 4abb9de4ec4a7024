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

std::string embedding_name(const model_config& config) {
  return config.encoder_decoder ? "shared.weight" : "model.embed_tokens.weight";
}

namespace {

/// How often something is added to the residual stream of a stack of so many blocks.
double residual_of(std::size_t n_blocks) {
  return 1.0 / std::sqrt(2.0 * static_cast<double>(n_blocks));
}

/// Twice the scale of other matrices: a router that prefers some experts clearly.
constexpr double router_scale = 2.0;
constexpr double head_scale = 2.0;

/// What decoders and encoder-decoders are made of: each tensor goes to its use, and in the order of
/// the calls to the list.
class tensor_maker {
 public:
  explicit tensor_maker(const model_config& config)
      : config_(config),
        hidden_(config.hidden_size),
        width_(config.n_heads * config.head_dim),
        kv_width_(config.kv_width()) {}

  std::vector<tensor_plan> take_list() { return std::move(list_); }

 protected:
  tensor_spec add(tensor_plan plan) {
    list_.push_back(plan);
    return {std::move(plan.name), std::move(plan.shape)};
  }
  tensor_spec matrix(std::string name, std::size_t n_out, std::size_t n_in, double scale) {
    return add({std::move(name), {n_out, n_in}, 0.0, scale / std::sqrt(n_in)});
  }
  tensor_spec table(std::string name, std::size_t rows, std::size_t columns, double deviation) {
    return add({std::move(name), {rows, columns}, 0.0, deviation});
  }
  tensor_spec norm(std::string name, std::size_t n) {
    return add({std::move(name), {n}, 1.0, 0.1});
  }
  tensor_spec bias(std::string name, std::size_t n) {
    return add({std::move(name), {n}, 0.0, 0.2});
  }

  std::optional<tensor_spec> head() {
    if (config_.tied_embeddings) return std::nullopt;
    return matrix("lm_head.weight", config_.vocab_size, hidden_, head_scale);
  }

  const model_config& config_;
  std::size_t hidden_, width_, kv_width_;

 private:
  std::vector<tensor_plan> list_;
};

class decoder_maker : public tensor_maker {
 public:
  explicit decoder_maker(const model_config& config)
      : tensor_maker(config),
        mixtral_(config.kind == family::mixtral),
        residual_(residual_of(config.blocks_of(layer_id{config.n_layers - 1}).end)) {}

  model_tensors make() {
    model_tensors made;
    made.embedding = table(embedding_name(config_), config_.vocab_size, hidden_, 1.0);
    for (std::size_t l = 0; l < config_.n_layers; ++l) {
      const auto range = config_.blocks_of(layer_id{l});
      for (std::size_t b = range.first; b < range.end; ++b)
        made.decoder.blocks.push_back(block(b, b + 1 == range.end));
    }
    made.decoder.final_norm = norm("model.norm.weight", hidden_);
    made.head = head();
    return made;
  }

 private:
  block_tensors block(std::size_t number, bool sparse) {
    const std::string prefix = fmt::format("model.layers.{}.", number);
    block_tensors made;
    made.attention = attention(prefix);
    made.feed_forward_norm = norm(prefix + "post_attention_layernorm.weight", hidden_);
    const std::string place = prefix + (mixtral_ ? "block_sparse_moe" : "mlp");
    if (sparse)
      made.sparse = experts(place);
    else
      made.dense = gated(place, config_.dense_intermediate_size);
    return made;
  }

  attention_tensors attention(const std::string& prefix) {
    const std::string place = prefix + "self_attn.";
    attention_tensors made;
    made.norm = norm(prefix + "input_layernorm.weight", hidden_);
    made.query = matrix(place + "q_proj.weight", width_, hidden_, 1.0);
    made.key = matrix(place + "k_proj.weight", kv_width_, hidden_, 1.0);
    made.value = matrix(place + "v_proj.weight", kv_width_, hidden_, 1.0);
    if (config_.query_key_value_bias)
      made.bias = {bias(place + "q_proj.bias", width_), bias(place + "k_proj.bias", kv_width_),
                   bias(place + "v_proj.bias", kv_width_)};
    if (config_.qk_norm != query_key_norm::none) {
      const bool per_head = config_.qk_norm == query_key_norm::per_head;
      made.query_norm = norm(place + "q_norm.weight", per_head ? config_.head_dim : width_);
      made.key_norm = norm(place + "k_norm.weight", per_head ? config_.head_dim : kv_width_);
    }
    made.output = matrix(place + "o_proj.weight", hidden_, width_, residual_);
    return made;
  }

  feed_forward_tensors gated(const std::string& place, std::size_t inner) {
    feed_forward_tensors made;
    made.place = place;
    const auto name = [&](const char* in_mixtral, const char* elsewhere) {
      return fmt::format("{}.{}.weight", place, mixtral_ ? in_mixtral : elsewhere);
    };
    made.gate = matrix(name("w1", "gate_proj"), inner, hidden_, 1.0);
    made.up = matrix(name("w3", "up_proj"), inner, hidden_, 1.0);
    // silu(a) * b of unit normal a and b has a root mean square of 0.6.
    made.down = matrix(name("w2", "down_proj"), hidden_, inner, residual_ / 0.6);
    return made;
  }

  expert_tensors experts(const std::string& place) {
    expert_tensors made;
    made.router = matrix(place + ".gate.weight", config_.n_experts, hidden_, router_scale);
    for (std::size_t e = 0; e < config_.n_experts; ++e)
      made.experts.push_back(
          gated(fmt::format("{}.experts.{}", place, e), config_.intermediate_size));
    if (config_.shared_intermediate_size > 0) {
      made.shared = gated(place + ".shared_expert", config_.shared_intermediate_size);
      made.shared_gate = matrix(place + ".shared_expert_gate.weight", 1, hidden_, 1.0);
    }
    return made;
  }

  bool mixtral_;
  double residual_;
};

class encoder_decoder_maker : public tensor_maker {
 public:
  explicit encoder_decoder_maker(const model_config& config)
      : tensor_maker(config), shape_(*config.encoder_decoder) {}

  model_tensors make() {
    model_tensors made;
    // A head that is the embedding finds what came in again; small beside what the blocks add, it
    // does not find that alone. The norm before the head makes up for it.
    made.embedding = table(embedding_name(config_), config_.vocab_size, hidden_,
                           config_.tied_embeddings ? 2.0 / root() : 1.0);
    const auto sparse = std::span(config_.sparse_blocks);
    made.encoder = stack("encoder", sparse.first(shape_.encoder_layers), shape_.encoder_blocks);
    made.decoder = stack("decoder", sparse.subspan(shape_.encoder_layers), sparse.back() + 1);
    made.head = head();
    return made;
  }

 private:
  double root() const { return std::sqrt(static_cast<double>(hidden_)); }

  stack_tensors stack(const std::string& name, std::span<const std::size_t> sparse,
                      std::size_t n_blocks) {
    residual_ = residual_of(n_blocks);
    stack_tensors made;
    for (std::size_t b = 0; b < n_blocks; ++b) {
      const std::string prefix = fmt::format("{}.block.{}.layer.", name, b);
      std::size_t part = 0;
      auto& block = made.blocks.emplace_back();
      block.attention = attention(fmt::format("{}{}", prefix, part++), "SelfAttention",
                                  b == 0 ? &made.relative_bias : nullptr);
      if (name == "decoder")
        block.to_prompt =
            attention(fmt::format("{}{}", prefix, part++), "EncDecAttention", nullptr);
      const std::string last = fmt::format("{}{}", prefix, part);
      if (std::ranges::find(sparse, b) == sparse.end())
        block.dense = plain(last + ".mlp", config_.dense_intermediate_size, 1.0);
      else
        block.sparse = experts(last + ".mlp");
      block.feed_forward_norm = norm(last + ".layer_norm.weight", hidden_);
    }
    const double size = name == "decoder" && config_.tied_embeddings ? root() : 1.0;
    made.final_norm = add({name + ".final_layer_norm.weight", {hidden_}, size, 0.1 * size});
    return made;
  }

  attention_tensors attention(const std::string& part, const char* kind,
                              std::optional<tensor_spec>* relative_bias) {
    const std::string place = fmt::format("{}.{}.", part, kind);
    attention_tensors made;
    // Scores are not divided by sqrt(head_dim): the queries are so much smaller.
    made.query = matrix(place + "q.weight", width_, hidden_,
                        1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
    made.key = matrix(place + "k.weight", width_, hidden_, 1.0);
    made.value = matrix(place + "v.weight", width_, hidden_, 1.0);
    made.output = matrix(place + "o.weight", hidden_, width_, residual_);
    if (relative_bias != nullptr)
      *relative_bias = table(place + "relative_attention_bias.weight", shape_.relative_buckets,
                             config_.n_heads, 1.0);
    made.norm = norm(part + ".layer_norm.weight", hidden_);
    return made;
  }

  feed_forward_tensors plain(const std::string& place, std::size_t inner, double scale) {
    feed_forward_tensors made;
    made.place = place;
    made.up = matrix(place + ".wi.weight", inner, hidden_, 1.0);
    // The positive part of a unit normal has a root mean square of 0.7.
    made.down = matrix(place + ".wo.weight", hidden_, inner, residual_ * scale / 0.7);
    return made;
  }

  expert_tensors experts(const std::string& place) {
    // A gate below one weighs what a sparse block adds; this keeps it about as large as the others.
    constexpr double against_gate = 2.0;
    expert_tensors made;
    made.router =
        matrix(place + ".router.classifier.weight", config_.n_experts, hidden_, router_scale);
    for (std::size_t e = 0; e < config_.n_experts; ++e)
      made.experts.push_back(plain(fmt::format("{}.experts.expert_{}", place, e),
                                   config_.intermediate_size, against_gate));
    return made;
  }

  const encoder_decoder_shape& shape_;
  double residual_ = 1;
};

}  // namespace

model_tensors tensors_by_use(const model_config& config) {
  return config.encoder_decoder ? encoder_decoder_maker(config).make()
                                : decoder_maker(config).make();
}

const std::vector<feed_forward_tensors>& experts_at(const model_config& config,
                                                    const model_tensors& tensors, layer_id layer) {
  const auto& stack = config.of_encoder(layer) ? *tensors.encoder : tensors.decoder;
  return stack.blocks[config.blocks_of(layer).end - 1].sparse->experts;
}

std::vector<tensor_plan> tensors_of(const model_config& config) {
  const auto list = [](auto maker) {
    static_cast<void>(maker.make());
    return maker.take_list();
  };
  return config.encoder_decoder ? list(encoder_decoder_maker(config)) : list(decoder_maker(config));
}

}  // namespace ordermoe::model
