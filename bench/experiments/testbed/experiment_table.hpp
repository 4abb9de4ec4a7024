#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/experiments/testbed/row.hpp"

/// The experiments: what each asks, and the points that answer it.
namespace ordermoe::experiments::testbed {

/// What an experiment sweeps.
enum class axis {
  nothing,
  horizon,
  threshold,
  memory_ratio,
  rate,
  servers,
  site_ms,
  uplink_mbit,
  overhead_us,
  prompt_tokens,
  setting  ///< Precision, memory, network and load at once.
};
/// "look-ahead horizon, layers"
const char* title_of(axis which);
/// Where a point is on an axis; nothing where it has no such place, as a strategy whose threshold differs by layer.
std::optional<double> place_on(axis which, const point& what);
/// As tables have it: "3", "all"; of a setting all its parts, commas between.
std::string place_name(axis which, const point& what);

/// "int4 1.25", "2 sites 40 ms", "8/s".
struct setting_parts {
  std::string memory, network, load;
};
setting_parts setting_of(const point& what);

enum class figure_kind {
  bars,     ///< A panel a column, a bar a variant.
  stacked,  ///< The execution kinds as parts of one bar a variant.
  lines,    ///< A panel a column over the axis, a line a variant.
  scatter,  ///< Latency over increase of perplexity, every point named.
  map       ///< What substitution saves in every setting (substitution_map.hpp).
};

enum class scale { whole, quick };

struct experiment {
  std::string_view name, question;
  std::string_view figure;  ///< Of the paper; empty: it has none of this.
  std::string_view note;    ///< What it leaves to others, or reads otherwise; may be empty.
  axis swept;
  figure_kind kind;
  std::vector<metric> columns;
  /// On one cluster, in the order of its rows; of the cluster's seed.
  std::vector<point> (*points)(scale how_much, std::uint64_t seed);
};

/// In the order in which they run.
std::span<const experiment> experiments();
/// Null where there is none.
const experiment* find_experiment(std::string_view name);

/// The budget in per cent that every strategy with one has where budgets are not what is compared.
inline constexpr double main_budget = 7;

/// The series that a point belongs to: its variant, without what is swept.
std::string series_of(const experiment& of, const point& what);

}  // namespace ordermoe::experiments::testbed
