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
  servers_.clear();
  problem_.reset();
  for (const auto& slot : slots) {
    gates_.push_back(slot.gate);
    servers_.push_back(slot.server);
  }
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

const float** awaited_outputs::place_of(const wire::output_row& row, std::uint32_t from) {
  if (row.row >= rows_.size()) return nullptr;
  const auto& awaited = rows_[row.row];
  const bool whole = row.slot == wire::whole_row;
  if (whole != awaited.whole || awaited.n_slots == 0) return nullptr;
  if (!whole && row.slot >= awaited.n_slots) return nullptr;
  const auto slot = awaited.first_slot + (whole ? 0 : row.slot);
  return servers_[slot] == from ? &parts_[slot] : nullptr;
}

bool awaited_outputs::awaits(std::uint32_t server) const {
  return std::ranges::any_of(rows_, [&](const row& awaited) {
    const auto last =
        awaited.first_slot + (awaited.whole ? std::min(awaited.n_slots, 1u) : awaited.n_slots);
    for (auto slot = awaited.first_slot; slot < last; ++slot)
      if (servers_[slot] == server && parts_[slot] == nullptr) return true;
    return false;
  });
}

bool awaited_outputs::take(arrived_output output) {
  if (output.content.layer != layer_) return complete();
  bool any = false;
  const bool failed = !output.content.problem.empty();
  kept_.push_back(std::move(output.content));
  const auto& content = kept_.back();
  for (std::size_t i = 0; i < content.rows.size(); ++i) {
    auto* part = place_of(content.rows[i], output.from);
    if (part == nullptr || *part != nullptr) continue;
    if (failed) {
      problem_ = error{static_cast<errc>(content.code), content.problem};
      break;
    }
    *part = content.y.data() + i * hidden_size_;
    --missing_;
    any = true;
  }
  if (!any) kept_.pop_back();
  return complete();
}

}  // namespace ordermoe::serving
