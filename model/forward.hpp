#pragma once

#include <span>
#include <vector>

#include "model/reference.hpp"
#include "model/transformer.hpp"

/// The layers one after the other in one process: what the reference, calibration and evaluation
/// share.
namespace ordermoe::model {

/// What every row's slots execute, [n_rows] lists in rank order.
using slot_table = std::vector<std::vector<executed_slot>>;

/// Runs the slots of a layer: every expert once over all rows that want it; then hidden += the
/// gated outputs of each row in rank order. normed and hidden are [n, hidden_size].
void execute_slots(const transformer& model, layer_id layer, std::span<const float> normed,
                   const slot_table& slots, std::span<float> hidden);

/// The router's own choice as slots.
std::vector<executed_slot> routed_slots(std::span<const float> logits, const model_config& config);

/// One sequence's caches, one per layer.
std::vector<kv_cache> make_caches(const model_config& config, std::size_t capacity_rows);

/// One whole layer over consecutive positions first, first + 1, ... of one sequence.
void run_layer(const transformer& model, layer_id layer, kv_cache& cache, std::size_t first,
               std::span<float> hidden, const slot_override& override_slots = {});

}  // namespace ordermoe::model
