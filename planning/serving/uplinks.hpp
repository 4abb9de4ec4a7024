#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "config/cluster.hpp"

/// What the links of a host, and those of a site, share in virtual time: a frame takes the ways out of its sender's host and
/// site and those into its receiver's, all at once, each for as long as that way alone would need for it, so that no way ever carries
/// more than its rate. A frame that stays at a site takes no way of the site's.
namespace ordermoe::serving {

class shared_uplinks {
 public:
  explicit shared_uplinks(const cluster& servers);

  /// Whether anything is shared.
  bool any() const { return any_; }
  /// When a frame begins that its link could send from `earliest_ns` on: at the first moment at which every way has room for it
  /// whole. Frames that begin later leave gaps, which others fill.
  std::int64_t start_ns(server_id from, server_id to, std::int64_t bytes,
                        std::int64_t earliest_ns) const;
  /// The same, and takes the ways. Nothing is asked of times before `now_ns` any more.
  std::int64_t take(server_id from, server_id to, std::int64_t bytes, std::int64_t earliest_ns,
                    std::int64_t now_ns);

 private:
  struct interval {
    std::int64_t begin_ns = 0, end_ns = 0;
  };
  struct way {
    double bytes_per_s = 0;
    std::deque<interval> taken;  ///< One after the other, apart from each other.

    std::int64_t busy_ns(std::int64_t bytes) const;
    std::int64_t earliest(std::int64_t from_ns, std::int64_t busy_ns) const;
    void take(std::int64_t begin_ns, std::int64_t busy_ns);
  };

  /// Calls a body with each way between two servers that has a rate.
  template <class Body>
  void each_way(server_id from, server_id to, const Body& body) const;

  std::vector<way> ways_;  ///< Out and in of each server, then of each site.
  std::vector<std::size_t> site_of_;
  std::size_t n_servers_ = 0, n_sites_ = 0;
  bool any_ = false;
};

}  // namespace ordermoe::serving
