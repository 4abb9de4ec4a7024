#include "setup/tried_plans.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

namespace ordermoe::setup {

namespace {

/// The first of an order that is none of those chosen; nothing where all are.
std::optional<std::size_t> next_of(const std::vector<std::size_t>& order,
                                   const std::vector<std::size_t>& chosen) {
  for (const auto i : order)
    if (std::ranges::find(chosen, i) == chosen.end()) return i;
  return std::nullopt;
}

template <class Value>
std::vector<std::size_t> in_order(std::span<const tried_plan> tried, Value value) {
  std::vector<std::size_t> order(tried.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return value(tried[i]); });
  return order;
}

}  // namespace

std::vector<std::size_t> worth_tuning(std::span<const tried_plan> tried) {
  const auto by_time = in_order(tried, [](const tried_plan& one) { return one.ms; });
  const auto by_cost = in_order(tried, [](const tried_plan& one) { return one.ms + one.lost_ms; });
  std::vector<std::size_t> chosen;
  for (std::size_t of = 0; of < n_plan_kinds; ++of)
    for (const auto* order : {&by_time, &by_cost}) {
      auto of_kind = *order;
      std::erase_if(of_kind,
                    [&](std::size_t i) { return static_cast<std::size_t>(tried[i].of) != of; });
      if (const auto next = next_of(of_kind, chosen)) chosen.push_back(*next);
    }
  while (chosen.size() < std::min(most_tuned, tried.size()))
    chosen.push_back(*next_of(by_time, chosen));
  std::ranges::sort(chosen);
  return chosen;
}

std::vector<std::size_t> worth_judging(std::span<const tried_plan> sought) {
  const auto by_time = in_order(sought, [](const tried_plan& one) { return one.ms; });
  if (by_time.size() < 2) return by_time;
  const auto fastest = by_time.front();
  const auto other = std::ranges::find_if(
      by_time, [&](std::size_t i) { return sought[i].of != sought[fastest].of; });
  return {fastest, other == by_time.end() ? by_time[1] : *other};
}

}  // namespace ordermoe::setup
