#include "model/training/shapes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ordermoe::training {
namespace {

struct named_shape {
  const char* name;
  model::family kind;
  model::gate_rule gates;
  std::size_t n_layers, hidden_size, intermediate_size, shared_intermediate_size;
  std::size_t n_heads, n_kv_heads, n_experts, top_k;
  std::size_t sequences_per_step;
  double learning_rate;
};

constexpr auto renormalised = model::gate_rule::renormalised;
constexpr auto probabilities = model::gate_rule::probabilities;

constexpr named_shape shapes[] = {
    {"small", model::family::mixtral, renormalised, 6, 128, 192, 0, 4, 2, 8, 2, 8, 3e-3},
    {"mixtral-twin", model::family::mixtral, renormalised, 32, 64, 96, 0, 4, 2, 8, 2, 64, 4e-3},
    {"qwen-twin", model::family::qwen2_moe, probabilities, 24, 48, 16, 64, 3, 3, 60, 4, 64, 4e-3},
    // Qwen3-MoE is the family that may have top-1, such gates and no shared expert.
    {"switch-twin", model::family::qwen3_moe, probabilities, 12, 64, 32, 0, 4, 2, 8, 1, 64, 4e-3},
};

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const auto& shape : shapes) names.emplace_back(shape.name);
  return names;
}

result<void> use_shape(train_options& options, std::string_view name) {
  for (const auto& shape : shapes)
    if (name == shape.name) {
      options.shape = shape.name;
      options.kind = shape.kind;
      options.gates = shape.gates;
      options.n_layers = shape.n_layers;
      options.hidden_size = shape.hidden_size;
      options.intermediate_size = shape.intermediate_size;
      options.shared_intermediate_size = shape.shared_intermediate_size;
      options.n_heads = shape.n_heads;
      options.n_kv_heads = shape.n_kv_heads;
      options.n_experts = shape.n_experts;
      options.top_k = shape.top_k;
      options.sequences_per_step = shape.sequences_per_step;
      options.learning_rate = shape.learning_rate;
      return {};
    }
  return error{errc::usage, fmt::format("shape \"{}\" is not known; use one of {}", name,
                                        fmt::join(shape_names(), ", "))};
}

}  // namespace ordermoe::training
