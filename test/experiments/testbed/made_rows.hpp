#pragma once

#include <initializer_list>
#include <utility>

#include "bench/experiments/testbed/experiment_table.hpp"

/// Rows that nothing measured.
namespace ordermoe::experiments::testbed {

using metric_values = std::initializer_list<std::pair<metric, double>>;

inline row made_row(point what, metric_values values) {
  row made;
  made.what = std::move(what);
  for (const auto& [which, value] : values) made[which] = value;
  return made;
}

inline point at_main_budget(const char* strategy, std::uint64_t seed,
                            double percent = main_budget) {
  point what;
  what.strategy = strategy;
  what.percent = percent;
  what.seed = seed;
  return what;
}

}  // namespace ordermoe::experiments::testbed
