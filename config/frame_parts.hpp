#pragma once

#include <cstdint>

#include "config/rehearsal.hpp"

/// Which frames go in parts, so that what is short need not wait behind them: the same for sessions and where they are emulated.
namespace ordermoe {

struct part_rule {
  /// A frame of more than a part that holds the link longer; 0: none.
  std::int64_t longest_ns = 10'000'000;
  std::uint32_t part_bytes = 16 * 1024;
  double share = 0.8;  ///< Of the link's rate, for parts.
  /// What a frame may weigh in parts, the receiver holding them until it has the last.
  std::uint64_t most_bytes = 2u << 20;

  /// bytes_per_s: what the link carries; 0: not known.
  bool applies(std::uint64_t bytes, double bytes_per_s) const {
    return longest_ns > 0 && bytes_per_s > 0 && bytes > part_bytes && bytes <= most_bytes &&
           1e9 * static_cast<double>(bytes) / bytes_per_s > static_cast<double>(longest_ns);
  }
  /// Until the next part may be written.
  std::int64_t pace_ns(std::uint64_t bytes, double bytes_per_s) const {
    return bytes_per_s > 0
               ? static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / (share * bytes_per_s))
               : 0;
  }
};

/// On links that are slower by the dilation and wider by the stretch: what goes in parts is the same.
inline part_rule rehearsed(part_rule rule, const rehearsal& how) {
  rule.longest_ns = static_cast<std::int64_t>(static_cast<double>(rule.longest_ns) * how.dilation);
  rule.part_bytes *= how.stretch;
  rule.most_bytes *= how.stretch;
  return rule;
}

}  // namespace ordermoe
