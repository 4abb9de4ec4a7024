#include "model/checkpoint/inspect.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/architecture/tensor_plan.hpp"

namespace ordermoe::model {

result<weight_storage> parse_storage(std::string_view name) {
  for (const auto value : all_storages)
    if (name == to_string(value)) return value;
  return error{errc::usage, fmt::format("'{}': expected fp32, bf16, int8 or int4", name)};
}

model_sizes sizes_of(const model_config& config) {
  model_sizes sizes;
  for (const auto& tensor : tensors_of(config)) {
    ++sizes.n_tensors;
    sizes.total_weights += tensor.size();
  }
  sizes.n_experts = config.n_layers * config.n_experts;
  const std::size_t hidden = config.hidden_size, inner = config.intermediate_size;
  // Without a gate in encoder-decoders.
  const std::size_t wide_matrices = config.encoder_decoder ? 1 : 2;
  sizes.expert_weights = std::uint64_t{wide_matrices + 1} * hidden * inner;
  sizes.non_expert_weights = sizes.total_weights - sizes.n_experts * sizes.expert_weights;
  for (const auto kept : all_storages) {
    storage_sizes each;
    each.kept = kept;
    each.expert_bytes =
        static_cast<std::int64_t>(wide_matrices * packed_layout{inner, hidden}.bytes(kept) +
                                  packed_layout{hidden, inner}.bytes(kept));
    each.non_expert_bytes = static_cast<std::int64_t>(sizes.non_expert_weights) *
                            (kept == weight_storage::fp32 ? 4 : 2);
    each.total_bytes =
        each.non_expert_bytes + each.expert_bytes * static_cast<std::int64_t>(sizes.n_experts);
    sizes.storages.push_back(each);
  }
  return sizes;
}

std::vector<cluster_room> room_in(const cluster& servers, const model_sizes& sizes) {
  std::vector<cluster_room> rooms;
  for (const auto& each : sizes.storages) {
    cluster_room room;
    room.kept = each.kept;
    for (const auto& server : servers.servers) {
      server_room one;
      one.left_bytes = server.memory_bytes - server.kv_bytes - each.non_expert_bytes;
      if (one.left_bytes > 0)
        one.n_experts =
            std::min(sizes.n_experts, static_cast<std::size_t>(one.left_bytes / each.expert_bytes));
      room.n_experts += one.n_experts;
      room.servers.push_back(one);
    }
    room.holds_a_copy = room.n_experts >= sizes.n_experts;
    if (!room.holds_a_copy)
      room.missing_bytes =
          static_cast<std::int64_t>(sizes.n_experts - room.n_experts) * each.expert_bytes;
    rooms.push_back(std::move(room));
  }
  return rooms;
}

}  // namespace ordermoe::model
