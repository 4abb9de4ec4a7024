#pragma once

#include <algorithm>
#include <cstdint>

#include "planning/selection/selector.hpp"

namespace ordermoe::planning {

/// The quality budget of a request in exact integers: eq. (39) for a number of tokens that is not
/// known in advance.
///
/// Tokens that follow each other share a pool, which the one in flight carries. Each is allowed a
/// share of what is left for those that may still come; what it spends leaves the pool, and what it
/// does not spend stays there for the others. Units are in one pool or spent, so the sum over the
/// tokens never exceeds what the pools began with, Q_i^max, eq. (21). Chunks of a prompt are under way together, each with a pool of its
/// own; what one before the last does not spend is nobody's any more.

/// What one of `tokens` that share `pool` may spend: `factor` even shares, never more than the
/// pool. An unbounded pool stays unbounded.
inline loss_units fair_allowance(loss_units pool, std::uint32_t tokens, double factor) {
  if (pool >= unbounded_budget) return unbounded_budget;
  if (tokens == 0) return 0;
  const auto share = static_cast<double>(pool) / tokens * factor;
  return share < static_cast<double>(pool) ? static_cast<loss_units>(share) : pool;
}

/// How much dearer a unit of loss is to a request that has `pool` left for `tokens` more tokens
/// than to one that has spent evenly from `token_budget` each: the square of even over actual, from
/// 1/16 to 16. Spares what is left where a request spent early, and spends it where it did not. 1
/// without a budget.
inline double price_scale(loss_units pool, double tokens, loss_units token_budget) {
  constexpr double most = 16;
  if (pool >= unbounded_budget || token_budget <= 0 || token_budget >= unbounded_budget) return 1;
  if (pool <= 0) return most;
  const double ratio = tokens * static_cast<double>(token_budget) / static_cast<double>(pool);
  return std::clamp(ratio * ratio, 1 / most, most);
}

}  // namespace ordermoe::planning
