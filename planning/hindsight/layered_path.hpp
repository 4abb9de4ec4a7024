#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "config/error.hpp"
#include "config/loss_units.hpp"

/// The fastest way through layers that loses no more than a budget: a shortest path with one resource.
///
/// The Lagrangian dual, max over price p >= 0 of min over ways (time + p * loss) - p * budget, bounds every way within the budget
/// from below, and the paths that attain it give the first ways found (Handler and Zang, Networks 10, 1980). What is left between is
/// closed by labels (time, loss) from the start on: of those at one node that are no worse in either one is kept, and a label whose
/// time plus the dual's rest of the way is no better than the best way known is dropped (Dumitrescu and Boland, Networks 42,
/// 2003). Where a step has more labels than `max_labels`, those with the lowest bounds stay, and what was dropped bounds what
/// can have been missed.
namespace ordermoe::planning {

/// One way of one step between two nodes, 0 to 63.
struct step_way {
  std::uint8_t from = 0, to = 0;
  double ns = 0;
  loss_units loss = 0;  ///< At least 0.
};

struct layered_problem {
  std::size_t start = 0;                     ///< Node before the first step.
  std::vector<std::vector<step_way>> steps;  ///< Any order within a step; ends at any node.
  loss_units budget = 0;                     ///< unbounded_budget: no limit.
  std::size_t max_labels = 20'000;           ///< Of all nodes of a step; at least 1.
};

struct layered_optimum {
  double ns = 0;        ///< Of the best way found.
  loss_units loss = 0;  ///< Of the same way; at most the budget.
  double bound_ns = 0;  ///< No way within the budget is faster; at most ns.
  bool is_exact =
      false;  ///< ns is the least, up to rounding (1e-12 of it); then bound_ns equals it.
};

/// Errors: infeasible where no way from the start reaches the end within the budget. Complexity: O(W) for each of some ten to twenty
/// prices, W the number of ways of all steps; then at most max_labels times the ways out of a node for each step.
result<layered_optimum> best_layered_path(const layered_problem& problem);

}  // namespace ordermoe::planning
