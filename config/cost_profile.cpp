#include "config/cost_profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

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
  /// Where attention has keys and values in a compressed form of its own; 0: as of heads.
  std::int64_t attention_weights = 0, kv_values = 0, context_products = 0;
};

cost_profile charge(std::string name, const shape& s) {
  const auto of_heads = 2 * s.hidden * s.n_heads * s.head_dim +    // query and output
                        2 * s.hidden * s.n_kv_heads * s.head_dim;  // key and value
  const auto attention_matrices = s.attention_weights > 0 ? s.attention_weights : of_heads;
  const auto layer_matrices = attention_matrices + s.hidden * s.n_experts + s.dense_weights;
  const auto norms = 2 * s.hidden;
  cost_profile costs;
  costs.name = std::move(name);
  costs.hidden_bytes = s.hidden * weight_bytes;
  const auto kv_values = s.kv_values > 0 ? s.kv_values : 2 * s.n_kv_heads * s.head_dim;
  costs.kv_row_bytes = kv_values * weight_bytes;
  costs.expert_bytes = s.expert_weights * weight_bytes;
  costs.expert_flops = s.expert_weights * flops_per_weight;
  costs.attention_bytes = (layer_matrices + norms) * weight_bytes;
  costs.attention_flops = layer_matrices * flops_per_weight;
  // One product with the key and one with the value of each earlier token, for every query head.
  const auto products = s.context_products > 0 ? s.context_products : 2 * s.n_heads * s.head_dim;
  costs.attention_flops_per_context = products * flops_per_weight;
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

cost_profile mixtral_8x22b() {
  return charge("mixtral-8x22b", {.hidden = 6144,
                                  .n_heads = 48,
                                  .n_kv_heads = 8,
                                  .head_dim = 128,
                                  .expert_weights = 3 * 6144 * 16384,
                                  .n_experts = 8,
                                  .vocab = 32768});
}

cost_profile qwen3_30b_a3b() {
  return charge("qwen3-30b-a3b", {.hidden = 2048,
                                  .n_heads = 32,
                                  .n_kv_heads = 4,
                                  .head_dim = 128,
                                  .expert_weights = 3 * 2048 * 768,
                                  .n_experts = 128,
                                  .vocab = 151936});
}

cost_profile qwen3_235b_a22b() {
  return charge("qwen3-235b-a22b", {.hidden = 4096,
                                    .n_heads = 64,
                                    .n_kv_heads = 4,
                                    .head_dim = 128,
                                    .expert_weights = 3 * 4096 * 1536,
                                    .n_experts = 128,
                                    .vocab = 151936});
}

/// Every layer as the sparse ones are (the first three of the model are dense), its shared expert with attention. Latent
/// attention as decoding runs it: the up-projections are folded into query and output, so that a context token costs
/// products with its latent row alone.
cost_profile deepseek_v3() {
  constexpr std::int64_t hidden = 7168, heads = 128, query_rank = 1536, latent = 512, rotary = 64,
                         nope = 128, value = 128;
  return charge("deepseek-v3",
                {.hidden = hidden,
                 .expert_weights = 3 * hidden * 2048,
                 .dense_weights = 3 * hidden * 2048,
                 .n_experts = 256,
                 .vocab = 129280,
                 .attention_weights = hidden * query_rank + query_rank * heads * (nope + rotary) +
                                      hidden * (latent + rotary) + latent * heads * (nope + value) +
                                      heads * value * hidden,
                 .kv_values = latent + rotary,
                 .context_products = heads * (latent + rotary + latent)});
}

constexpr std::array makers{mixtral_8x7b,  qwen_moe_a2_7b,  switch_base_8, mixtral_8x22b,
                            qwen3_30b_a3b, qwen3_235b_a22b, deepseek_v3};

/// Microseconds as nanoseconds.
std::optional<std::int64_t> overhead_ns(std::string_view text) {
  constexpr double most_us = 1e6;
  double us = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), us);
  if (problem != std::errc() || end != text.data() + text.size() || !(us >= 0) || us > most_us)
    return std::nullopt;
  return std::llround(us * 1e3);
}

}  // namespace

result<cost_profile_choice> parse_cost_profile_choice(std::string_view text) {
  cost_profile_choice made;
  auto colon = std::min(text.find(':'), text.size());
  made.base = text.substr(0, colon);
  for (auto rest = text.substr(colon); !rest.empty(); rest.remove_prefix(colon)) {
    rest.remove_prefix(1);
    colon = std::min(rest.find(':'), rest.size());
    const auto part = rest.substr(0, colon);
    const auto equals = std::min(part.find('='), part.size());
    const auto key = part.substr(0, equals);
    const auto value = overhead_ns(part.substr(std::min(equals + 1, part.size())));
    if (value && key == "batch-us")
      made.batch_ns = *value;
    else if (value && key == "message-us")
      made.message_ns = *value;
    else
      return error{errc::usage,
                   fmt::format("found '{}' in the cost profile '{}', expected batch-us=N or "
                               "message-us=N, 0 to 1,000,000; write for example "
                               "{}:batch-us=40:message-us=15",
                               part, text, made.base)};
  }
  return made;
}

bool is_measured_cost_profile(std::string_view name) {
  return name.substr(0, name.find(':')) == "measured";
}

namespace {

error unknown_profile(std::string_view name, const std::vector<std::string>& known) {
  return {errc::usage,
          fmt::format("found the cost profile '{}', expected one of {}; choose one of these", name,
                      fmt::join(known, ", "))};
}

}  // namespace

result<cost_profile> named_cost_profile(std::string_view name) {
  const auto choice = parse_cost_profile_choice(name);
  if (!choice) return choice.error();
  for (const auto make : makers)
    if (auto costs = make(); costs.name == choice->base) {
      costs.name = name;
      costs.batch_ns = choice->batch_ns;
      costs.message_ns = choice->message_ns;
      return costs;
    }
  return unknown_profile(name, cost_profile_names());
}

result<void> check_cost_profile(std::string_view name) {
  const auto choice = parse_cost_profile_choice(name);
  if (!choice) return choice.error();
  auto known = cost_profile_names();
  known.emplace_back("measured");
  if (std::ranges::find(known, choice->base) == known.end()) return unknown_profile(name, known);
  return {};
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
