#include "planning/serving/request_progress.hpp"

#include <utility>

namespace ordermoe::serving {

void request_progress::begin(std::uint32_t attempt, std::uint32_t next,
                             std::span<const std::uint32_t> chunks) {
  attempt_ = attempt;
  next_ = next;
  chunks_ = {chunks.begin(), chunks.end()};
  chunks_spent_ = 0;
  early_.clear();
}

bool request_progress::take(wire::progress_report report, std::uint32_t most_positions) {
  if (report.attempt != attempt_ || report.position > most_positions) return false;
  if (report.id < 0) {
    if (chunks_.erase(report.position) == 0) return false;
    chunks_spent_ += report.spent;
    return true;
  }
  if (report.position < next_) return false;
  const auto position = report.position;
  return early_.try_emplace(position, std::move(report)).second;
}

std::optional<wire::progress_report> request_progress::next() {
  const auto found = early_.find(next_);
  if (found == early_.end()) return std::nullopt;
  auto report = std::move(found->second);
  early_.erase(found);
  ++next_;
  return report;
}

}  // namespace ordermoe::serving
