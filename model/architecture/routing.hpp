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

/// What the gates of a row are made of.
enum class gate_rule {
  renormalised,   ///< The softmax over the logits of the row's slots alone; gates sum to 1.
  probabilities,  ///< The softmax over the logits of all experts, as it stands; gates sum to less.
};

/// p[i] = exp(logits[i]) over their sum: the softmax, in double precision, the sum in the order given.
/// Precondition: as many numbers in p.
void softmax(std::span<const float> logits, std::span<double> p);

/// Whether a row with these router scores runs experts at all. A row that does not adds nothing
/// to its hidden state at this layer; its scores are all minus infinity, and the functions below
/// are not for it.
bool has_slots(std::span<const float> logits);
void leave_without_slots(std::span<float> logits);

/// The router's choice for one row: the top_k largest logits in decreasing order (ties: the lower
/// expert first), with gates by the rule.
std::vector<route_slot> choose_experts(std::span<const float> logits, std::size_t top_k,
                                       gate_rule rule);
/// The same for slots.size() slots, without allocating.
void choose_experts(std::span<const float> logits, gate_rule rule, std::span<route_slot> slots);

/// Gates of any list of distinct experts for one row, in the order given. renormalised: the softmax
/// over their logits. probabilities: each one's probability among all experts, whatever else is in
/// the list, so that a substitute weighs what the router gives to it, and a target's gate is the
/// same whether or not the other slots are substituted. With the router's own choice in rank order
/// the bits are those of choose_experts.
std::vector<float> gates_of(std::span<const float> logits, std::span<const expert_id> experts,
                            gate_rule rule);
/// The same into slots that name the experts, without allocating.
void weigh_experts(std::span<const float> logits, gate_rule rule, std::span<route_slot> slots);

}  // namespace ordermoe::model
