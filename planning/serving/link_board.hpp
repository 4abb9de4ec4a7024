#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "config/cluster.hpp"
#include "net/wire/messages.hpp"

/// What one server knows of all links: what each server said last of those that leave it, and where it said nothing, what the
/// cluster file says. Reports may come late, twice and in any order.
namespace ordermoe::serving {

/// A link by what was measured of it, where it was.
inline link_spec measured(const link_spec& stated, const wire::link_measure& found) {
  return {found.bytes_per_s > 0 ? found.bytes_per_s : stated.bandwidth_bytes_per_s,
          found.latency_ns >= 0 ? found.latency_ns : stated.latency_ns, stated.message_ns};
}

/// Whether others would decide otherwise if they knew: a message of so many bytes takes a tenth longer or shorter than they
/// believe, and more than clocks and schedulers make of it.
inline bool worth_telling(const link_spec& told, const link_spec& found, std::int64_t bytes) {
  constexpr std::int64_t least_ns = 100'000;
  const auto before = told.latency_ns + transfer_ns(told, bytes);
  const auto now = found.latency_ns + transfer_ns(found, bytes);
  const auto change = now > before ? now - before : before - now;
  const auto latency_change = std::abs(found.latency_ns - told.latency_ns);
  return change > std::max(least_ns, before / 10) ||
         latency_change > std::max(least_ns, told.latency_ns / 10);
}

class link_board {
 public:
  link_board() = default;
  explicit link_board(const cluster& stated)
      : n_servers_(stated.size()),
        stated_(stated.links),
        links_(stated.links),
        numbers_(n_servers_, 0) {}

  /// Whether it says anything new: another report of its server than those before, and other links.
  bool take(const wire::link_report& report) {
    if (report.number <= numbers_[report.server]) return false;
    numbers_[report.server] = report.number;
    bool changed = false;
    for (std::size_t to = 0; to < n_servers_; ++to) {
      const auto place = report.server * n_servers_ + to;
      if (to == report.server) continue;
      const auto next = measured(stated_[place], report.links[to]);
      changed |= next.latency_ns != links_[place].latency_ns ||
                 next.bandwidth_bytes_per_s != links_[place].bandwidth_bytes_per_s;
      links_[place] = next;
    }
    return changed;
  }

  /// Row-major [from][to], as in a cluster.
  const std::vector<link_spec>& links() const { return links_; }

 private:
  std::size_t n_servers_ = 0;
  std::vector<link_spec> stated_, links_;
  std::vector<std::uint64_t> numbers_;  ///< [n_servers] of the latest report; 0: none.
};

}  // namespace ordermoe::serving
