#pragma once

#include <cstdint>
#include <limits>

/// The quality budget's unit. Losses of decisions, allowances, pools and budgets are exact integers
/// of it, so that sums of them are exact and no request spends more than it was given.
namespace ordermoe {

/// 1e-9 of a loss: of a nat where a policy calibrates its losses, else of the paper's loss, eq. (18).
using loss_units = std::int64_t;

inline constexpr double units_per_loss = 1e9;

/// A budget without limit. A few of them can be added without overflow.
inline constexpr loss_units unbounded_budget = std::numeric_limits<loss_units>::max() / 8;

}  // namespace ordermoe
