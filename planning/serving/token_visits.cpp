#include "planning/serving/token_visits.hpp"

#include <algorithm>
#include <utility>

namespace ordermoe::serving {

std::optional<std::vector<arrived_output>> token_visits::arrive(std::uint32_t first,
                                                                std::uint32_t step) {
  auto& here = visits_[first];
  if (here.step >= static_cast<std::int64_t>(step)) return std::nullopt;
  here.step = step;
  auto parked = std::exchange(here.parked, {});
  for (const auto& output : parked) parked_rows_[output.from] -= output.content.rows.size();
  std::erase_if(parked,
                [&](const auto& output) { return step_of(output.content.layer, true) != step; });
  return parked;
}

void token_visits::leave(std::uint32_t first, std::uint32_t step) {
  auto& here = visits_[first];
  here.step = std::max(here.step, static_cast<std::int64_t>(step));
}

bool token_visits::park(arrived_output output) {
  const auto& content = output.content;
  auto& here = visits_[content.token.first];
  if (static_cast<std::int64_t>(step_of(content.layer, true)) <= here.step) return false;
  const auto same = [&](const arrived_output& parked) {
    return parked.from == output.from && parked.content.layer == content.layer &&
           parked.content.rows == content.rows;
  };
  if (std::ranges::any_of(here.parked, same)) return false;
  auto& rows = parked_rows_[output.from];
  if (rows + content.rows.size() > most_parked_rows_) return false;
  rows += content.rows.size();
  here.parked.push_back(std::move(output));
  return true;
}

std::size_t token_visits::parked_rows() const {
  std::size_t sum = 0;
  for (const auto& [from, rows] : parked_rows_) sum += rows;
  return sum;
}

}  // namespace ordermoe::serving
