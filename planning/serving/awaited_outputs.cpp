#include "planning/serving/awaited_outputs.hpp"

#include <algorithm>
#include <utility>

namespace ordermoe::serving {

void awaited_outputs::expect(std::uint32_t layer, std::span<const std::uint32_t> slots_of_row,
                             std::span<const wire::executed_slot> slots, std::size_t hidden_size) {
  layer_ = layer;
  hidden_size_ = hidden_size;
  missing_ = 0;
  kept_.clear();
  rows_.clear();
  gates_.clear();
  for (const auto& slot : slots) gates_.push_back(slot.gate);
  parts_.assign(slots.size(), nullptr);
  std::uint32_t first = 0;
  for (const auto n : slots_of_row) {
    const auto own = slots.subspan(first, n);
    const bool whole = std::ranges::all_of(
        own, [&](const wire::executed_slot& slot) { return slot.server == own[0].server; });
    rows_.push_back({first, n, whole});
    missing_ += n == 0 ? 0 : whole ? 1 : n;
    first += n;
  }
}

bool awaited_outputs::take(wire::expert_output output) {
  if (output.layer != layer_) return complete();
  bool any = false;
  kept_.push_back(std::move(output));
  const auto& content = kept_.back();
  for (std::size_t i = 0; i < content.rows.size(); ++i) {
    const auto [row, slot] = content.rows[i];
    if (row >= rows_.size()) continue;
    const auto& awaited = rows_[row];
    const bool whole = slot == wire::whole_row;
    if (whole != awaited.whole || (!whole && slot >= awaited.n_slots) || awaited.n_slots == 0)
      continue;
    auto& part = parts_[awaited.first_slot + (whole ? 0 : slot)];
    if (part != nullptr) continue;
    part = content.y.data() + i * hidden_size_;
    --missing_;
    any = true;
  }
  if (!any) kept_.pop_back();
  return complete();
}

}  // namespace ordermoe::serving
