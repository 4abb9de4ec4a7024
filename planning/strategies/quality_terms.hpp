#pragma once

#include <optional>

#include "config/error.hpp"
#include "config/loss_units.hpp"

/// How much quality a plan lets requests lose, and what is in force for one that states less.
namespace ordermoe::planning {

/// Nats a token of a perplexity increase; infinite where it is negative, which means unbounded.
double nats_of_percent(double percent);
/// The increase in per cent.
double percent_of_nats(double nats);

/// A request states this many per cent at most.
inline constexpr double most_stated_percent = 100;

/// Of a strategy as it was planned.
struct quality_terms {
  double percent = 0;  ///< Predicted perplexity increase allowed; negative: unbounded.
  /// A token, taken of that beforehand by how the whole model is kept and what is pruned.
  double taken_nats = 0;
  double units_per_nat = 0;  ///< Of what decisions are charged; 0: it never substitutes.
  bool is_kept = true;       ///< False: it substitutes whatever that costs, and no budget is kept.
};

/// What is in force for a request.
struct granted_quality {
  double percent = 0;           ///< As in quality_terms.
  loss_units token_budget = 0;  ///< Average units per position.
};

/// A request may have less than its plan, never more: what it states above that counts as the plan's. With 0 only the targets
/// themselves run. `token_budget`: of the plan. Errors: out_of_range for a number that is not from 0 to most_stated_percent;
/// unsupported where no budget is kept; infeasible where how the whole model is kept, or what is pruned, takes more alone.
result<granted_quality> grant_quality(const quality_terms& terms, loss_units token_budget,
                                      std::optional<double> stated);

}  // namespace ordermoe::planning
