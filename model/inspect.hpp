#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "model/model_config.hpp"

/// What a model weighs at each precision, and what of it each server of a cluster could hold.
namespace ordermoe::model {

/// How experts are stored. What is not an expert (embedding, attention, router, shared expert,
/// output) stays in bf16 beside int8 and int4.
enum class precision {
  fp32,
  bf16,
  int8,  ///< A byte a weight and a 4-byte scale for each output.
  int4,  ///< Half a byte a weight and a 2-byte scale for each 32 of them: 4.5 bits a weight.
};
inline constexpr precision all_precisions[] = {precision::fp32, precision::bf16, precision::int8,
                                               precision::int4};
const char* to_string(precision value);
/// Error: usage, naming the precisions there are.
result<precision> parse_precision(std::string_view name);

/// Bytes of a matrix [n_out, n_in] of an expert.
std::int64_t matrix_bytes(precision kept, std::size_t n_out, std::size_t n_in);

/// Bytes of one kind of storage.
struct precision_sizes {
  precision kept = precision::bf16;
  std::int64_t expert_bytes = 0;      ///< One routed expert: gate, up and down.
  std::int64_t non_expert_bytes = 0;  ///< Everything else.
  std::int64_t total_bytes = 0;       ///< The whole model once.
};

struct model_sizes {
  std::size_t n_tensors = 0;  ///< In a checkpoint of this shape.
  std::size_t n_experts = 0;  ///< Routed experts of all layers.
  std::uint64_t expert_weights = 0, non_expert_weights = 0, total_weights = 0;
  std::vector<precision_sizes> precisions;  ///< In the order of all_precisions.
};

model_sizes sizes_of(const model_config& config);

/// What one server could hold: non-expert parts, KV rows as the cluster file reserves them, and so
/// many experts.
struct server_room {
  std::int64_t left_bytes = 0;  ///< For experts; negative where even the other parts do not fit.
  std::size_t n_experts = 0;    ///< At most as many as the model has.
};

struct cluster_room {
  precision kept = precision::bf16;
  std::vector<server_room> servers;
  std::size_t n_experts = 0;       ///< That all servers can hold together.
  bool holds_a_copy = false;       ///< Whether these are at least the model's.
  std::int64_t missing_bytes = 0;  ///< Of the experts that have no place.
};

/// In the model's own bytes (not those of a cost profile that stands for a larger model), for each
/// precision in the order of all_precisions. Every server holds all non-expert parts.
std::vector<cluster_room> room_in(const cluster& servers, const model_sizes& sizes);

}  // namespace ordermoe::model
