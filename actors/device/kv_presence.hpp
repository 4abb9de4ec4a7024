#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/protocol/messages.hpp"

namespace ordermoe::actors {

/// Which KV rows of one sequence at one layer are on a server, and which work waits for the rest:
/// rows come from other members of R_l in any order, and attention at a position needs every row
/// before it.
struct kv_presence {
  std::uint32_t contiguous = 0;      ///< Rows 0 .. contiguous - 1 are here.
  std::set<std::uint32_t> later;     ///< Rows beyond the gap.
  std::vector<attend_work> waiting;  ///< In the order in which it came.

  bool ready_for(std::uint32_t first) const { return first <= contiguous; }

  /// Rows first .. first + n - 1 are here, or are written by work that runs before any that is
  /// taken from now on.
  void add(std::uint32_t first, std::uint32_t n) {
    if (first <= contiguous)
      contiguous = std::max(contiguous, first + n);
    else
      for (std::uint32_t i = first; i < first + n; ++i) later.insert(i);
    later.erase(later.begin(), later.lower_bound(contiguous));
    while (!later.empty() && *later.begin() == contiguous) {
      later.erase(later.begin());
      ++contiguous;
    }
  }

  /// The first waiting work whose earlier rows are all here, if there is one.
  std::optional<attend_work> take_ready() {
    const auto found = std::find_if(waiting.begin(), waiting.end(),
                                    [this](const auto& work) { return ready_for(work.first); });
    if (found == waiting.end()) return std::nullopt;
    auto work = std::move(*found);
    waiting.erase(found);
    return work;
  }
};

}  // namespace ordermoe::actors
