#include "setup/tried_prices.hpp"

#include <algorithm>
#include <functional>

namespace ordermoe::setup {

std::optional<tried_price> lowest_kept(std::vector<tried_price> tried, double nats,
                                       double times_as_many) {
  std::ranges::stable_sort(tried, std::greater(), &tried_price::price);
  std::optional<tried_price> kept;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    auto found = tried[i].found;
    if (i + 1 < tried.size())
      found.increase = std::max(found.increase, (found.increase + tried[i + 1].found.increase) / 2);
    if (found.bound(times_as_many) > nats) break;
    kept = tried[i];
  }
  return kept;
}

}  // namespace ordermoe::setup
