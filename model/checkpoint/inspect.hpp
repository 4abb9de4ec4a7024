#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "model/architecture/model_config.hpp"
#include "model/kernels/kernels.hpp"

/// What a model weighs in each kind of storage, and what of it each server of a cluster could hold.
namespace ordermoe::model {

/// How experts can be kept. What is not an expert (embedding, attention, router, shared expert,
/// output) is counted in bf16 beside int8 and int4.
inline constexpr weight_storage all_storages[] = {weight_storage::fp32, weight_storage::bf16,
                                                  weight_storage::int8, weight_storage::int4};
/// The opposite of to_string. Error: usage, naming what there is.
result<weight_storage> parse_storage(std::string_view name);

/// Bytes of one kind of storage.
struct storage_sizes {
  weight_storage kept = weight_storage::bf16;
  std::int64_t expert_bytes = 0;  ///< One routed expert: gate, up and down, as the kernels keep it.
  std::int64_t non_expert_bytes = 0;  ///< Everything else.
  std::int64_t total_bytes = 0;       ///< The whole model once.
};

struct model_sizes {
  std::size_t n_tensors = 0;  ///< In a checkpoint of this shape.
  std::size_t n_experts = 0;  ///< Routed experts of all layers.
  std::uint64_t expert_weights = 0, non_expert_weights = 0, total_weights = 0;
  std::vector<storage_sizes> storages;  ///< In the order of all_storages.
};

model_sizes sizes_of(const model_config& config);

/// What one server could hold: non-expert parts, KV rows as the cluster file reserves them, and so
/// many experts.
struct server_room {
  std::int64_t left_bytes = 0;  ///< For experts; negative where even the other parts do not fit.
  std::size_t n_experts = 0;    ///< At most as many as the model has.
};

struct cluster_room {
  weight_storage kept = weight_storage::bf16;
  std::vector<server_room> servers;
  std::size_t n_experts = 0;       ///< That all servers can hold together.
  bool holds_a_copy = false;       ///< Whether these are at least the model's.
  std::int64_t missing_bytes = 0;  ///< Of the experts that have no place.
};

/// In the model's own bytes (not those of a cost profile that stands for a larger model), for each
/// kind of storage in the order of all_storages. Every server holds all non-expert parts.
std::vector<cluster_room> room_in(const cluster& servers, const model_sizes& sizes);

}  // namespace ordermoe::model
