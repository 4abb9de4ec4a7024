#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

/// What benchmarks report of several measurements.
namespace ordermoe::bench {

struct spread {
  double low = 0, middle = 0, high = 0;
};

/// The median between the quartiles; zeros of no values.
inline spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

/// The median between the least and the most; zeros of no values.
inline spread range_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

/// Of quartiles.
inline nlohmann::ordered_json json_of(const spread& s) {
  return {{"median", s.middle}, {"lower_quartile", s.low}, {"upper_quartile", s.high}};
}

}  // namespace ordermoe::bench
