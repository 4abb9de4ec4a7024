#pragma once

#include <algorithm>
#include <array>

#include "planning/selection/selector_tables.hpp"

/// Residences side by side. What a way to run a slot costs is told for eight of them at once, in loops that compilers
/// make vector instructions of; each number is made by the same operations in the same order as alone. Nothing outside
/// planning/selection/ includes this.
namespace ordermoe::planning::selection {

inline constexpr std::size_t n_lanes = 8;

struct alignas(64) lanes {
  std::array<double, n_lanes> at;

  void lower_to(const lanes& other) {
    for (std::size_t i = 0; i < n_lanes; ++i) at[i] = std::min(at[i], other.at[i]);
  }
  void raise_to(const lanes& other) {
    for (std::size_t i = 0; i < n_lanes; ++i) at[i] = std::max(at[i], other.at[i]);
  }
  lanes plus(const lanes& other) const {
    lanes sum;
    for (std::size_t i = 0; i < n_lanes; ++i) sum.at[i] = at[i] + other.at[i];
    return sum;
  }
  double least() const {
    std::array<double, n_lanes / 2> half;
    for (std::size_t i = 0; i < n_lanes / 2; ++i) half[i] = std::min(at[i], at[i + n_lanes / 2]);
    return std::min(std::min(half[0], half[1]), std::min(half[2], half[3]));
  }
};

inline lanes filled_lanes(double value) {
  lanes made;
  made.at.fill(value);
  return made;
}

/// Up to eight residences of one decision, and what it costs there to run one expert at each server.
///
/// With f(t) = omega_T / d_ref * (max(d(s, n), t) + later(n)), which does not fall as t rises, the cost of a step is
///
///   f(max_j back_j) + per_unit * loss = max_j f(back_j) + per_unit * loss
///
/// to the last bit, so that f is applied once for each server and residence and not for each way to fill the slots.
/// A residence that may not be chosen costs infinity.
class tables::residence_block {
 public:
  residence_block(const tables& of, const situation& now, server_mask residences, std::size_t first)
      : first_(first), count_(std::min(now.table.next.size() - first, n_lanes)) {
    const double* low = now.table.low.data() + of.bin_of(now.left) * now.table.next.size() + first;
    links_.fill(now.links);
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t n = now.table.next[first + i];
      stays_.at[i] = of.way_to(now, n);
      later_.at[i] = now.table.later[first + i];
      low_.at[i] = low[i];
      links_[i] = now.links + n * of.n_servers_;
      if (((residences >> n) & 1u) != 0) closed_.at[i] = 0;
    }
    const bool with_slot = of.policy_.residence == residence_choice::with_slot;
    for (std::size_t m = 0; m < of.n_servers_; ++m) {
      price(of, now, m);
      for (std::size_t i = 0; with_slot && i < count_; ++i)
        if (now.table.next[first + i] != m) cost_[m].at[i] = infinity;
      least_[m] = cost_[m].plus(low_).least();
    }
  }

  std::size_t first() const { return first_; }
  std::size_t count() const { return count_; }

  /// f where the best of these servers runs the expert.
  lanes cost_at(server_mask servers) const {
    auto made = filled_lanes(infinity);
    for_each_server(servers, [&](std::size_t m) { made.lower_to(cost_[m]); });
    return made;
  }
  /// The least of f and of what follows over the residences: no way at these servers costs less, whatever its loss.
  double least_at(server_mask servers) const {
    double least = infinity;
    for_each_server(servers, [&](std::size_t m) { least = std::min(least, least_[m]); });
    return least;
  }

  /// What a way costs: f, what is lost, and W [next] after it.
  lanes total(const lanes& step, double lost, const double* onward) const {
    auto made = filled_lanes(infinity);
    if (count_ == n_lanes) {
      for (std::size_t i = 0; i < n_lanes; ++i)
        made.at[i] = (step.at[i] + lost) + onward[first_ + i];
    } else {
      for (std::size_t i = 0; i < count_; ++i)
        made.at[i] = (step.at[i] + lost) + onward[first_ + i];
    }
    return made;
  }

 private:
  void price(const tables& of, const situation& now, std::size_t m) {
    const double ready = now.ready[m] + of.costs_.expert_ns[m];
    for (std::size_t i = 0; i < n_lanes; ++i) {
      const double back = ready + links_[i][m];
      cost_[m].at[i] = of.per_ns_ * (std::max(stays_.at[i], back) + later_.at[i]) + closed_.at[i];
    }
  }

  std::size_t first_, count_;
  lanes stays_ = filled_lanes(0), later_ = stays_, low_ = stays_;
  lanes closed_ = filled_lanes(infinity);     ///< 0 where a residence may be chosen.
  std::array<const double*, n_lanes> links_;  ///< [from] to each residence.
  std::array<lanes, 64> cost_;                ///< [server]
  std::array<double, 64> least_;              ///< [server]
};

}  // namespace ordermoe::planning::selection
