#include "planning/serving/uplinks.hpp"

#include <algorithm>

namespace ordermoe::serving {

shared_uplinks::shared_uplinks(const cluster& servers)
    : n_servers_(servers.size()), n_sites_(servers.sites.size()) {
  for (const auto& each : servers.servers) {
    ways_.insert(ways_.end(), 2, way{each.uplink_bytes_per_s, {}});
    site_of_.push_back(servers.site_of(each));
  }
  for (const auto& each : servers.sites)
    ways_.insert(ways_.end(), 2, way{each.uplink_bytes_per_s, {}});
  any_ = std::ranges::any_of(ways_, [](const way& each) { return each.bytes_per_s > 0; });
}

template <class Body>
void shared_uplinks::each_way(server_id from, server_id to, const Body& body) const {
  const auto ask = [&](std::size_t place) {
    if (ways_[place].bytes_per_s > 0) body(place);
  };
  ask(2 * from.index());
  ask(2 * to.index() + 1);
  const auto leaves = site_of_[from.index()], enters = site_of_[to.index()];
  if (leaves == enters) return;
  if (leaves < n_sites_) ask(2 * (n_servers_ + leaves));
  if (enters < n_sites_) ask(2 * (n_servers_ + enters) + 1);
}

std::int64_t shared_uplinks::start_ns(server_id from, server_id to, std::int64_t bytes,
                                      std::int64_t earliest_ns) const {
  auto start = earliest_ns;
  for (auto before = start - 1; before != start;) {
    before = start;
    each_way(from, to, [&](std::size_t place) {
      start = ways_[place].earliest(start, ways_[place].busy_ns(bytes));
    });
  }
  return start;
}

std::int64_t shared_uplinks::take(server_id from, server_id to, std::int64_t bytes,
                                  std::int64_t earliest_ns, std::int64_t now_ns) {
  each_way(from, to, [&](std::size_t place) {
    auto& taken = ways_[place].taken;
    while (!taken.empty() && taken.front().end_ns <= now_ns) taken.pop_front();
  });
  const auto start = start_ns(from, to, bytes, earliest_ns);
  each_way(from, to,
           [&](std::size_t place) { ways_[place].take(start, ways_[place].busy_ns(bytes)); });
  return start;
}

std::int64_t shared_uplinks::way::busy_ns(std::int64_t bytes) const {
  return transfer_ns({bytes_per_s, 0}, bytes);
}

std::int64_t shared_uplinks::way::earliest(std::int64_t from_ns, std::int64_t busy_ns) const {
  for (const auto& each : taken) {
    if (each.end_ns <= from_ns) continue;
    if (each.begin_ns - from_ns >= busy_ns) break;
    from_ns = each.end_ns;
  }
  return from_ns;
}

void shared_uplinks::way::take(std::int64_t begin_ns, std::int64_t busy_ns) {
  if (busy_ns == 0) return;
  const auto end_ns = begin_ns + busy_ns;
  auto after = std::ranges::upper_bound(taken, begin_ns, {}, &interval::begin_ns);
  const bool joins_after = after != taken.end() && after->begin_ns == end_ns;
  if (after != taken.begin() && std::prev(after)->end_ns == begin_ns) {
    std::prev(after)->end_ns = joins_after ? after->end_ns : end_ns;
    if (joins_after) taken.erase(after);
  } else if (joins_after) {
    after->begin_ns = begin_ns;
  } else {
    taken.insert(after, {begin_ns, end_ns});
  }
}

}  // namespace ordermoe::serving
