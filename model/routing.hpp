#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/ids.hpp"

namespace ordermoe::model {

/// One slot of a token at a layer: the expert that the router wants, and its gate.
struct route_slot {
  expert_id expert;
  float gate = 0;
};

/// The router's choice for one row: the top_k largest logits in decreasing order (ties: the lower
/// expert first), gates are the softmax over the chosen logits.
std::vector<route_slot> choose_experts(std::span<const float> logits, std::size_t top_k);

/// Gates of any list of experts for one row: the softmax over their logits, in the order given.
/// With the router's own choice in rank order the bits are those of choose_experts.
std::vector<float> gates_of(std::span<const float> logits, std::span<const expert_id> experts);

}  // namespace ordermoe::model
