#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "config/error.hpp"
#include "planning/selector.hpp"

namespace ordermoe::planning {

/// The quality budget of one request, in exact integers: eq. (39) for a number of tokens that is
/// not known in advance.
///
/// Each token is granted an equal share of what is left over the tokens that may still come; what
/// it does not spend returns when it settles. Tokens in flight together hold their grants apart, so
/// spent + granted never exceeds total and the sum over tokens never exceeds Q_i^max, eq. (21).
struct quality_ledger {
  loss_units total = 0;    ///< Q_i^max; unbounded_budget: no limit, only what is spent is counted.
  loss_units spent = 0;    ///< By tokens that have settled.
  loss_units granted = 0;  ///< To tokens that have not.

  bool is_unbounded() const { return total == unbounded_budget; }
  loss_units remaining() const {
    return is_unbounded() ? unbounded_budget : total - spent - granted;
  }

  /// Per-token allowance: remaining / tokens_left, rounded down. tokens_left counts the token that
  /// asks; 0 reads as 1.
  loss_units allowance(std::size_t tokens_left) const {
    if (is_unbounded()) return unbounded_budget;
    return remaining() / static_cast<loss_units>(std::max<std::size_t>(1, tokens_left));
  }

  /// Sets the allowance aside for one token and returns it.
  loss_units grant(std::size_t tokens_left) {
    const auto share = allowance(tokens_left);
    if (!is_unbounded()) granted += share;
    return share;
  }

  /// Ends a grant: what was spent stays spent, the rest returns.
  void settle(loss_units grant, loss_units loss) {
    ORDERMOE_CHECK(grant >= 0 && loss >= 0 && loss <= grant,
                   "a token spent more than it was granted");
    if (!is_unbounded()) {
      ORDERMOE_CHECK(grant <= granted, "a grant was settled that was not given");
      granted -= grant;
    }
    spent += std::min(loss, unbounded_budget - std::min(spent, unbounded_budget));
  }
};

}  // namespace ordermoe::planning
