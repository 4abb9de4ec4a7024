#include "planning/serving/token_visits.hpp"

#include <algorithm>
#include <utility>

namespace ordermoe::serving {

std::optional<std::vector<arrived_output>> token_visits::arrive(std::uint32_t first,
                                                                std::uint32_t step) {
  auto& next = next_step(first);
  if (next > step) return std::nullopt;
  next = step + 1;
  std::vector<arrived_output> parked;
  if (const auto kept = parked_.find(first); kept != parked_.end()) {
    parked = std::move(kept->second);
    parked_.erase(kept);
  }
  for (const auto& output : parked) parked_rows_[output.from] -= output.content.rows.size();
  std::erase_if(parked,
                [&](const auto& output) { return step_of(output.content.layer, true) != step; });
  return parked;
}

void token_visits::leave(std::uint32_t first, std::uint32_t step) {
  auto& next = next_step(first);
  next = std::max(next, step + 1);
}

bool token_visits::park(arrived_output output) {
  const auto& content = output.content;
  if (step_of(content.layer, true) < next_step(content.token.first)) return false;
  const auto same = [&](const arrived_output& parked) {
    return parked.from == output.from && parked.content.layer == content.layer &&
           parked.content.rows == content.rows;
  };
  const auto kept = parked_.find(content.token.first);
  if (kept != parked_.end() && std::ranges::any_of(kept->second, same)) return false;
  auto& rows = parked_rows_[output.from];
  if (rows + content.rows.size() > most_parked_rows_) return false;
  rows += content.rows.size();
  parked_[content.token.first].push_back(std::move(output));
  return true;
}

std::size_t token_visits::parked_rows() const {
  std::size_t sum = 0;
  for (const auto& [from, rows] : parked_rows_) sum += rows;
  return sum;
}

}  // namespace ordermoe::serving
