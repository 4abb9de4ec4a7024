#pragma once

#include <cstdint>
#include <limits>

/// The quality budget's unit. Losses of decisions, allowances, pools and budgets are exact integers
/// of it, so that sums of them are exact and no request spends more than it was given.
namespace ordermoe {

/// 1e-9 of a loss: of a nat where a policy calibrates its losses, else of the paper's loss, eq. (18).
using loss_units = std::int64_t;

inline constexpr double units_per_loss = 1e9;

/// Predicted losses end here, so that the sum over all slots stays far from overflow.
inline constexpr loss_units largest_loss = 1'000'000'000'000'000;

/// A loss in units, rounded up so that no budget is overspent; what is not above 0 is 0.
inline loss_units to_loss_units(double loss) {
  const double units = loss * units_per_loss;
  if (!(units > 0)) return 0;
  if (units >= static_cast<double>(largest_loss)) return largest_loss;
  const auto whole = static_cast<loss_units>(units);
  return whole + (static_cast<double>(whole) < units ? 1 : 0);
}

/// Likewise of what is not the target itself: a unit at least, so that nothing else runs where nothing may be lost.
inline loss_units to_substitute_units(double loss) {
  const auto units = to_loss_units(loss);
  return units > 0 ? units : 1;
}

/// A budget without limit. A few of them can be added without overflow.
inline constexpr loss_units unbounded_budget = std::numeric_limits<loss_units>::max() / 8;

}  // namespace ordermoe
