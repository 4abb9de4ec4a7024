#include "planning/plan_alike.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace ordermoe::planning {

bool are_alike(const plan& a, const plan& b) {
  const auto placed = [](const plan& content) {
    std::vector<std::array<std::size_t, 4>> all;
    for (const auto& each : content.experts)
      all.push_back({each.server.index(), each.layer.index(), each.expert.index(),
                     each.reason == placement_reason::offload ? 1u : 0u});
    std::ranges::sort(all);
    return all;
  };
  return std::ranges::equal(a.residence, b.residence, {}, &residency::layers, &residency::layers) &&
         a.expert_precision == b.expert_precision && a.pruned == b.pruned && placed(a) == placed(b);
}

}  // namespace ordermoe::planning
