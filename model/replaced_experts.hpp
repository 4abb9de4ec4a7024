#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "config/loss_metric.hpp"
#include "model/architecture/routing.hpp"
#include "model/reference.hpp"

/// What rows run where experts are taken away from them, and what is predicted of it: what calibration measures the damage of.
namespace ordermoe::model {

/// Which experts a draw leaves: half of them, rounded up, by a seeded shuffle. [n_experts] 1 for those.
std::vector<char> draw_available(std::size_t n_experts, std::uint64_t seed, std::size_t layer,
                                 std::size_t draw);

/// Replaces slots whose expert is away; returns the predicted loss of the row, before damage. similarity [n_experts, n_experts] of cosines();
/// logits [n_experts].
double substitute(loss_metric kind, gate_rule rule, const std::vector<double>& similarity,
                  const std::vector<char>& available, std::span<const float> logits,
                  std::vector<executed_slot>& slots);

/// How many slots of a row are left out, in as many passes or fewer: from one of them to all but one.
std::vector<std::size_t> counts_to_leave_out(std::size_t top_k, std::size_t most_passes);

/// Leaves out the slots with the lowest gates, the later one of equal ones first; returns the predicted loss of the row, before damage.
double leave_out(std::size_t n_out, gate_rule rule, std::span<const float> logits,
                 std::vector<executed_slot>& slots);

}  // namespace ordermoe::model
