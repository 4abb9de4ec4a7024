#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/experiments/testbed/experiment_table.hpp"

/// Medians over clusters, and how sure they are.
namespace ordermoe::experiments::testbed {

double median(std::vector<double> values);

/// The median and its 95 % interval, the 2.5th and 97.5th percentile of medians of 2,000 samples of the clusters with
/// replacement, which are the same each time. Of one cluster all three are its value.
struct interval {
  double median = 0, low = 0, high = 0;
  std::size_t n = 0;  ///< Clusters.
};
/// Of fewer clusters the interval is their range, which is less sure.
inline constexpr std::size_t fewest_for_interval = 6;
/// Nothing where there is no value.
std::optional<interval> over_clusters(const std::vector<double>& values);

/// Rows that differ by their cluster alone.
struct cell {
  std::string series, place;       ///< As tables and legends have them.
  std::optional<double> position;  ///< On the experiment's axis.
  std::vector<row> rows;
  std::optional<interval> operator[](metric which) const;
  std::size_t n_infeasible() const;
};
/// In the order of their first rows.
std::vector<cell> cells_of(const experiment& of, const std::vector<row>& rows);

/// "12.3 [11.0, 14.2]", or "12.3" of one cluster, or "-".
std::string shown(const std::optional<interval>& value);

}  // namespace ordermoe::experiments::testbed
