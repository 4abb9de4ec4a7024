#include "bench/experiments/testbed/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/random.hpp"

namespace ordermoe::experiments::testbed {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

std::optional<interval> over_clusters(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  constexpr std::size_t n_samples = 2000;
  constexpr std::uint64_t seed = 20'250'117;
  random_stream random(seed);
  std::vector<double> medians, sample(values.size());
  for (std::size_t i = 0; i < n_samples; ++i) {
    for (auto& one : sample) one = values[random.below(values.size())];
    medians.push_back(median(sample));
  }
  std::sort(medians.begin(), medians.end());
  const auto at = [&](double share) {
    return medians[static_cast<std::size_t>(std::lround(share * (n_samples - 1)))];
  };
  return interval{median(values), at(0.025), at(0.975), values.size()};
}

std::optional<interval> cell::operator[](metric which) const {
  std::vector<double> values;
  for (const auto& each : rows)
    if (each[which]) values.push_back(*each[which]);
  return over_clusters(values);
}

std::size_t cell::n_infeasible() const {
  return static_cast<std::size_t>(std::ranges::count(rows, true, &row::is_infeasible));
}

std::vector<cell> cells_of(const experiment& of, const std::vector<row>& rows) {
  std::vector<cell> cells;
  for (const auto& each : rows) {
    const auto series = series_of(of, each.what);
    const auto place = place_name(of.swept, each.what);
    auto found = std::ranges::find_if(
        cells, [&](const cell& one) { return one.series == series && one.place == place; });
    if (found == cells.end())
      found = cells.insert(cells.end(), {series, place, place_on(of.swept, each.what), {}});
    found->rows.push_back(each);
  }
  return cells;
}

std::string shown(const std::optional<interval>& value) {
  if (!value) return "-";
  const auto number = [](double v) {
    return std::abs(v) >= 100 ? fmt::format("{:.0f}", v) : fmt::format("{:.3g}", v);
  };
  if (value->n < 2) return number(value->median);
  return fmt::format("{} [{}, {}]", number(value->median), number(value->low), number(value->high));
}

}  // namespace ordermoe::experiments::testbed
