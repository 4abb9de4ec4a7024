#include "config/cost_profile.hpp"

#include <fmt/format.h>

#include <array>

namespace ordermoe {

namespace {

constexpr std::int64_t weight_bytes = 2;      ///< 16-bit weights and activations.
constexpr std::int64_t flops_per_weight = 2;  ///< One multiply and one add per row.

/// The public shape of a model, one layer of it in numbers of weights.
struct shape {
  std::int64_t hidden = 0;
  std::int64_t n_heads = 0;
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t expert_weights = 0;
  std::int64_t dense_weights = 0;  ///< Of one layer, besides attention, norms and router.
  std::int64_t n_experts = 0;
  std::int64_t vocab = 0;
  bool tied_embedding = false;  ///< The output projection is the embedding table: it is held once.
};

cost_profile charge(std::string name, const shape& s) {
  const auto attention_matrices = 2 * s.hidden * s.n_heads * s.head_dim +    // query and output
                                  2 * s.hidden * s.n_kv_heads * s.head_dim;  // key and value
  const auto layer_matrices = attention_matrices + s.hidden * s.n_experts + s.dense_weights;
  const auto norms = 2 * s.hidden;
  cost_profile costs;
  costs.name = std::move(name);
  costs.hidden_bytes = s.hidden * weight_bytes;
  costs.kv_row_bytes = 2 * s.n_kv_heads * s.head_dim * weight_bytes;
  costs.expert_bytes = s.expert_weights * weight_bytes;
  costs.expert_flops = s.expert_weights * flops_per_weight;
  costs.attention_bytes = (layer_matrices + norms) * weight_bytes;
  costs.attention_flops = layer_matrices * flops_per_weight;
  // One product with the key and one with the value of each earlier token, for every query head.
  costs.attention_flops_per_context = 2 * s.n_heads * s.head_dim * flops_per_weight;
  costs.head_bytes = s.vocab * s.hidden * weight_bytes;
  costs.head_flops = s.vocab * s.hidden * flops_per_weight;
  costs.embedding_bytes = s.tied_embedding ? 0 : costs.head_bytes;
  return costs;
}

cost_profile mixtral_8x7b() {
  return charge("mixtral-8x7b", {.hidden = 4096,
                                 .n_heads = 32,
                                 .n_kv_heads = 8,
                                 .head_dim = 128,
                                 .expert_weights = 3 * 4096 * 14336,
                                 .n_experts = 8,
                                 .vocab = 32000});
}

/// Its shared expert (four times an expert's width, with a gate) runs for every row wherever the
/// row is, so it counts with attention and not as an expert.
cost_profile qwen_moe_a2_7b() {
  return charge("qwen1.5-moe-a2.7b", {.hidden = 2048,
                                      .n_heads = 16,
                                      .n_kv_heads = 16,
                                      .head_dim = 128,
                                      .expert_weights = 3 * 2048 * 1408,
                                      .dense_weights = 3 * 2048 * 4 * 1408 + 2048,
                                      .n_experts = 60,
                                      .vocab = 151936});
}

/// An encoder-decoder; charged as the decoder's sparse layers without cross-attention. Experts have
/// two matrices.
cost_profile switch_base_8() {
  return charge("switch-base-8", {.hidden = 768,
                                  .n_heads = 12,
                                  .n_kv_heads = 12,
                                  .head_dim = 64,
                                  .expert_weights = 2 * 768 * 3072,
                                  .n_experts = 8,
                                  .vocab = 32128,
                                  .tied_embedding = true});
}

constexpr std::array makers{mixtral_8x7b, qwen_moe_a2_7b, switch_base_8};

}  // namespace

result<cost_profile> named_cost_profile(std::string_view name) {
  for (const auto make : makers)
    if (auto costs = make(); costs.name == name) return costs;
  return error{errc::usage,
               fmt::format("found the cost profile '{}', expected one of {}; choose one of these",
                           name, fmt::join(cost_profile_names(), ", "))};
}

std::vector<std::string> cost_profile_names() {
  std::vector<std::string> names;
  for (const auto make : makers) names.push_back(make().name);
  return names;
}

cost_profile measured_cost_profile(std::size_t hidden_size, std::size_t intermediate_size,
                                   std::size_t n_heads, std::size_t n_kv_heads,
                                   std::size_t head_dim, std::size_t n_experts,
                                   std::size_t vocab_size) {
  const auto hidden = static_cast<std::int64_t>(hidden_size);
  return charge("measured",
                {.hidden = hidden,
                 .n_heads = static_cast<std::int64_t>(n_heads),
                 .n_kv_heads = static_cast<std::int64_t>(n_kv_heads),
                 .head_dim = static_cast<std::int64_t>(head_dim),
                 .expert_weights = 3 * hidden * static_cast<std::int64_t>(intermediate_size),
                 .n_experts = static_cast<std::int64_t>(n_experts),
                 .vocab = static_cast<std::int64_t>(vocab_size)});
}

}  // namespace ordermoe
