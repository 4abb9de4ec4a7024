#pragma once

#include <cstdint>

namespace ordermoe {

/// When another plan is proposed because routers choose other experts than the plan in force was made for: the table
/// `[drift]` of a node's file.
struct drift_watch {
  /// Of the plan's expected cost: by so much it must be off, and another plan's lower. 0: nobody looks.
  double margin_percent = 10;
  double period_s = 60;
  std::int64_t least_rows = 10'000;  ///< Of each layer, at all nodes together.

  /// As a share.
  double margin() const { return margin_percent / 100; }
  friend bool operator==(const drift_watch&, const drift_watch&) = default;
};

}  // namespace ordermoe
