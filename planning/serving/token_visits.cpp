#include "planning/serving/token_visits.hpp"

#include <algorithm>
#include <utility>

namespace ordermoe::serving {

std::optional<std::vector<wire::expert_output>> token_visits::arrive(std::uint32_t first,
                                                                     std::uint32_t step) {
  auto& here = visits_[first];
  if (here.step >= static_cast<std::int64_t>(step)) return std::nullopt;
  here.step = step;
  auto parked = std::exchange(here.parked, {});
  for (const auto& output : parked) parked_rows_ -= output.rows.size();
  std::erase_if(parked, [&](const auto& output) { return step_of(output.layer, true) != step; });
  return parked;
}

void token_visits::leave(std::uint32_t first, std::uint32_t step) {
  auto& here = visits_[first];
  here.step = std::max(here.step, static_cast<std::int64_t>(step));
}

bool token_visits::park(wire::expert_output output) {
  auto& here = visits_[output.token.first];
  if (static_cast<std::int64_t>(step_of(output.layer, true)) <= here.step) return false;
  const auto same = [&](const wire::expert_output& parked) {
    return parked.layer == output.layer && parked.rows == output.rows;
  };
  if (std::ranges::any_of(here.parked, same)) return false;
  if (parked_rows_ + output.rows.size() > most_parked_rows_) return false;
  parked_rows_ += output.rows.size();
  here.parked.push_back(std::move(output));
  return true;
}

}  // namespace ordermoe::serving
