#pragma once

#include <cstdint>

namespace ordermoe {

/// When another plan is proposed because routers choose other experts than the plan in force was made for: the table
/// `[drift]` of a node's file.
struct drift_watch {
  /// Of the plan's expected cost: by so much it must be off, and another plan's lower. 0: nobody looks.
  double margin_percent = 10;
  double period_s = 60;
  /// Of each layer, at all nodes together, as old ones count: shares of rows whose weights, 1 at most, come to so many are known at least
  /// as well as those of so many rows that all count fully, and where rows came evenly for some half-lives, as well as those of twice as
  /// many (their variance is that of (sum of weights)^2 / (sum of squared weights) rows).
  std::int64_t least_rows = 10'000;
  /// After which a row that a router chose for counts half, wherever it was seen.
  double half_life_s = 1800;

  /// As a share.
  double margin() const { return margin_percent / 100; }
  friend bool operator==(const drift_watch&, const drift_watch&) = default;
};

}  // namespace ordermoe
