#include <algorithm>
#include <numeric>

#include "planning/search/searcher.hpp"

/// Where experts are many, moves of single ones get nowhere by themselves: what pays is to move
/// whole layers, and many experts at a time.
namespace ordermoe::planning::searching {

/// Pipelines one change away: a boundary between two servers shifted, servers exchanged, one
/// replaced, left out or brought in.
std::vector<searcher::homes> searcher::neighbours(const homes& home) const {
  struct segment {
    std::size_t server, length;
  };
  std::vector<segment> segments;
  server_mask members = 0;
  for (const auto h : home) {
    if (segments.empty() || segments.back().server != h) segments.push_back({h, 0});
    ++segments.back().length;
    members |= server_bit(h);
  }
  std::vector<homes> out;
  const auto add = [&](const std::vector<segment>& changed) {
    homes made;
    for (const auto& [server, length] : changed) made.insert(made.end(), length, server);
    if (made != home && made.size() == home.size() &&
        std::find(out.begin(), out.end(), made) == out.end())
      out.push_back(std::move(made));
  };
  const auto n = segments.size();
  for (std::size_t i = 0; i < n; ++i) {
    if (n > 1) {
      auto without = segments;
      const auto length = segments[i].length;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      for (std::size_t j = 0; j < n - 1; ++j) {
        auto changed = without;
        changed[j].length += length;
        add(changed);
      }
      // Every other segment takes its part.
      auto changed = without;
      std::size_t left = length;
      for (std::size_t j = 0; j < n - 1; ++j) {
        const auto part = left / (n - 1 - j);
        changed[j].length += part;
        left -= part;
      }
      add(changed);
    }
    for (std::size_t m = 0; m < n_servers(); ++m) {
      if (members & server_bit(m)) continue;
      auto changed = segments;
      changed[i].server = m;
      add(changed);
      if (segments[i].length < 2) continue;
      for (const std::size_t part : {segments[i].length / 2, segments[i].length / 4}) {
        if (part == 0) continue;
        changed = segments;
        changed[i].length -= part;
        changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(i + 1), {m, part});
        add(changed);
      }
    }
    for (std::size_t j = i + 1; j < n; ++j) {
      auto changed = segments;
      std::swap(changed[i], changed[j]);
      add(changed);
      for (const std::size_t by : {8u, 4u, 2u, 1u})
        for (const bool up : {true, false}) {
          changed = segments;
          auto &gives = changed[up ? j : i], &takes = changed[up ? i : j];
          if (gives.length <= by) continue;
          gives.length -= by;
          takes.length += by;
          add(changed);
        }
    }
  }
  return out;
}

searcher::rated_layout searcher::with_one_residency(rated_layout start) {
  if (start.first.chains.size() < 2) return start;
  auto content = merge_chains(start.first);
  auto rated = evaluate(content);
  return {std::move(content), std::move(rated)};
}

searcher::rated_layout searcher::improve_homes(rated_layout start, std::size_t n_most) {
  auto& [content, rated] = start;
  if (content.chains.size() != 1) return start;
  homes home;
  for (const auto members : content.chains[0]) {
    if (std::popcount(members) != 1) return start;
    home.push_back(static_cast<std::size_t>(std::countr_zero(members)));
  }
  tried_homes_.insert(home);
  std::size_t n_tried = 0, at = 0;
  auto tries = neighbours(home);
  // Round and round through the neighbours; every improvement is taken at once.
  for (std::size_t n_failed = 0; n_failed < tries.size() && n_tried < n_most; ++n_tried) {
    if (n_tried % 16 == 0 && options_.should_stop && options_.should_stop()) break;
    const auto& next = tries[at++ % tries.size()];
    ++n_failed;
    if (!tried_homes_.insert(next).second) continue;
    auto other = pipeline({next});
    if (other.hosts.empty()) continue;
    auto again = evaluate(other, rated.prices);
    if (again.cost >= rated.cost * (1 - 1e-9)) continue;
    content = std::move(other);
    rated = std::move(again);
    home = next;
    tries = neighbours(home);
    n_failed = 0;
  }
  return start;
}

/// What every copy at a home is worth and what every copy that a home lacks would be, each change
/// alone: the dearest that lack against the cheapest that are there.
std::vector<searcher::exchange> searcher::find_exchanges(const layout& content,
                                                         trajectory& problem) const {
  const auto& chain = content.chains[0];
  const double scale = problem.solve().token_ns;
  problem.hold_policy();
  auto hosts = content.hosts;
  server_mask members = 0;
  for (const auto layer : chain) members |= layer;
  struct worth {
    double ns;
    std::uint32_t item;
  };
  std::vector<exchange> out;
  for (std::size_t m = 0; m < n_servers(); ++m) {
    // Where a last copy would go.
    auto refuge = n_servers();
    for (std::size_t i = 0; i < n_servers(); ++i)
      if (!(members & server_bit(i)) &&
          (refuge == n_servers() || model_.costs.hidden(m, i) < model_.costs.hidden(m, refuge)))
        refuge = i;
    std::vector<worth> missing, held;
    double sum = 0, met = 0;
    for (std::size_t l = 0; l < n_layers(); ++l) {
      if (((chain[l] | chain[(l + 1) % n_layers()]) & server_bit(m)) == 0) continue;
      const double now = problem.held_cost(l);
      for (std::size_t e = 0; e < n_experts(); ++e) {
        const auto item = static_cast<std::uint32_t>(l * n_experts() + e);
        const auto on = hosts[item];
        hosts[item] ^= server_bit(m);
        if (hosts[item] == 0 && refuge < n_servers()) hosts[item] = server_bit(refuge);
        if (hosts[item] != 0) {
          problem.rebuild_layer(l, hosts, chain);
          const double change = problem.held_cost(l) - now;
          problem.roll_back();
          sum += std::abs(change);
          met += wanted_[item];
          if (on & server_bit(m))
            held.push_back({change, item});
          else
            missing.push_back({-change, item});
        }
        hosts[item] = on;
      }
    }
    if (missing.empty()) continue;
    // The kept sets are few for so many experts: what they say of one counts for half, how often
    // calibration met it for the other.
    const double mean = met > 0 ? sum / met : 0;
    for (auto* some : {&missing, &held})
      for (auto& [ns, item] : *some)
        ns = 0.5 * (ns + mean * profile_.layers[item / n_experts()].activation[item % n_experts()] *
                             static_cast<double>(model_.n_slots));
    // What is not near the residence is worth nothing here.
    for (const auto item : content.items[m]) {
      const auto l = item / n_experts();
      if (((chain[l] | chain[(l + 1) % n_layers()]) & server_bit(m)) == 0)
        held.push_back({0, item});
    }
    std::sort(missing.begin(), missing.end(), [](const auto& a, const auto& b) {
      return a.ns > b.ns || (a.ns == b.ns && a.item < b.item);
    });
    std::sort(held.begin(), held.end(), [](const auto& a, const auto& b) {
      return a.ns < b.ns || (a.ns == b.ns && a.item < b.item);
    });
    for (std::size_t i = 0; i < std::min(missing.size(), held.size()); ++i) {
      const double gain = missing[i].ns - held[i].ns;
      if (gain <= 1e-9 * scale) break;
      out.push_back({gain, missing[i].item, held[i].item, m});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.gain > b.gain; });
  return out;
}

/// The layout after some exchanges. Last copies that leave go to the servers that hold nothing for
/// the residence (idle), in the place of a replica.
layout searcher::exchanged(const layout& content, const std::vector<exchange>& some,
                           const std::vector<std::uint8_t>& idle) const {
  layout out = content;
  std::vector<std::size_t> at(n_servers(), 0);
  const auto find_refuge = [&](std::uint32_t item, std::size_t from) {
    for (std::size_t m = 0; m < n_servers(); ++m) {
      if (idle[m] == 0 || (out.hosts[item] & server_bit(m))) continue;
      if (!is_exact_at(out.hosts[item] & ~server_bit(from)) && !is_exact_at(server_bit(m)))
        continue;
      if (out.items[m].size() < capacity_[m]) {
        put(out, m, item);
        return true;
      }
      for (; at[m] < out.items[m].size(); ++at[m]) {
        if (!may_leave(out, m, out.items[m][at[m]])) continue;
        replace(out, m, at[m]++, item);
        return true;
      }
    }
    return false;
  };
  for (const auto& swap : some) {
    if ((out.hosts[swap.comes] & server_bit(swap.server)) ||
        !(out.hosts[swap.leaves] & server_bit(swap.server)))
      continue;
    if (!may_leave(out, swap.server, swap.leaves) && !find_refuge(swap.leaves, swap.server))
      continue;
    const auto& items = out.items[swap.server];
    const auto place = std::find(items.begin(), items.end(), swap.leaves) - items.begin();
    replace(out, swap.server, static_cast<std::size_t>(place), swap.comes);
  }
  return out;
}

/// The layout where tokens may pass from one server to the next at any of `by` layers on either
/// side of each boundary: both servers' experts are at hand where a token passes.
layout searcher::widened(const layout& content, std::size_t by) const {
  auto out = content;
  const auto& chain = content.chains[0];
  for (std::size_t l = 1; l < n_layers(); ++l) {
    if (chain[l] == chain[l - 1]) continue;
    // Positions start at one server.
    for (std::size_t i = std::max<std::size_t>(1, l - std::min(l, by));
         i < std::min(n_layers(), l + by); ++i)
      out.chains[0][i] |= chain[l] | chain[l - 1];
  }
  return out;
}

searcher::rated_layout searcher::widen_boundaries(rated_layout start, std::size_t by,
                                                  std::size_t n_rounds) {
  if (start.first.chains.size() != 1) return start;
  auto content = widened(start.first, by);
  auto rated = evaluate(content, start.second.prices);
  auto other = exchange_experts({std::move(content), std::move(rated)}, n_rounds);
  return other.second.cost < start.second.cost ? std::move(other) : std::move(start);
}

searcher::rated_layout searcher::exchange_experts(rated_layout start, std::size_t n_rounds) {
  if (start.first.chains.size() != 1 || is_loaded()) return start;
  trajectory problem(model_);
  problem.forbid_losses(is_exact());
  for (std::size_t round = 0; round < n_rounds; ++round) {
    if (options_.should_stop && options_.should_stop()) break;
    auto& [content, rated] = start;
    problem.set_price(rated.prices[0]);
    problem.rebuild(content.hosts, content.chains[0]);
    auto some = find_exchanges(content, problem);
    server_mask members = 0;
    for (const auto layer : content.chains[0]) members |= layer;
    std::vector<std::uint8_t> idle(n_servers());
    for (std::size_t m = 0; m < n_servers(); ++m) idle[m] = (members & server_bit(m)) == 0;
    bool better = false;
    // Changes that were weighed alone may not add up: fewer of them then.
    for (; !some.empty() && !better; some.resize(some.size() / 2)) {
      auto other = exchanged(content, some, idle);
      auto again = evaluate(other, rated.prices);
      if (again.cost >= rated.cost * (1 - 1e-6)) continue;
      better = true;
      content = std::move(other);
      rated = std::move(again);
      break;
    }
    if (!better) break;
  }
  return start;
}

}  // namespace ordermoe::planning::searching
