#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "planning/selection/selector_tables.hpp"
#include "planning/selection/slot_sweep.hpp"

/// The ways of the slots of one set or decision, as slot_sweep wants them. Nothing outside
/// planning/selection/ includes this.
namespace ordermoe::planning::selection {

/// A slot's cheapest experts at one server, ascending by loss, equal losses by expert.
struct way_list {
  std::array<slot_way, max_slots> ways;
  std::size_t size;

  void add(slot_way way, std::size_t most) {
    if (size == most) {
      if (size == 0 || way.loss >= ways[size - 1].loss) return;
      --size;
    }
    std::size_t at = size++;
    for (; at > 0 && ways[at - 1].loss > way.loss; --at) ways[at] = ways[at - 1];
    ways[at] = way;
  }
};

/// One way for each slot, the same at all of its hosts: what local_only and router_restricted
/// leave of a decision once it is known who leaves.
struct fixed_ways {
  std::array<slot_way, max_slots> way;
  std::array<server_mask, max_slots> hosts;
  server_mask useful = 0;
  loss_units total = 0;

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    return {&way[slot], (hosts[slot] >> server) & 1u};
  }
  loss_units loss(std::size_t slot, std::size_t, std::uint32_t expert) const {
    return way[slot].expert == expert ? way[slot].loss : forbidden;
  }
  void set(std::size_t slot, slot_way to, server_mask at) {
    way[slot] = to;
    hosts[slot] = at;
    useful |= at;
    total += to.loss;
  }
};

/// Lists of one set: lists [slot, server]. Loss: loss_units(slot, server, expert).
template <class Loss>
struct listed_ways {
  const way_list* lists;
  Loss lost;
  std::size_t n_servers;

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    const auto& list = lists[slot * n_servers + server];
    return {list.ways.data(), list.size};
  }
  loss_units loss(std::size_t slot, std::size_t server, std::uint32_t expert) const {
    return lost(slot, server, expert);
  }
};
template <class Loss>
listed_ways(const way_list*, Loss, std::size_t) -> listed_ways<Loss>;

/// Lists of all slots and servers, found when they are first asked for. Find: void(way_list&, slot,
/// server). Loss: loss_units(slot, server, expert).
template <class Find, class Loss>
struct found_ways {
  Find find;
  Loss loss;
  std::size_t n_servers;
  std::array<std::uint8_t, max_slots * 64> known{};
  std::array<way_list, max_slots * 64> lists;

  found_ways(Find how, Loss lost, std::size_t n) : find(how), loss(lost), n_servers(n) {}
  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) {
    const auto at = slot * n_servers + server;
    auto& list = lists[at];
    if (known[at] == 0) {
      known[at] = 1;
      list.size = 0;
      find(list, slot, server);
    }
    return {list.ways.data(), list.size};
  }
};

/// local_only where `n_leaving` slots must leave the server: they are those that would lose most
/// by staying. Loss: loss_units(slot, expert). False where that is not how many do.
template <class Loss>
bool keep_local(const layer_facts& facts, const std::uint32_t* targets, std::size_t n_slots,
                std::size_t server, std::size_t n_leaving, bool apart, const Loss& loss,
                fixed_ways& made) {
  const auto here = server_bit(server);
  made = {};
  std::array<slot_way, max_slots> stays;
  std::array<std::size_t, max_slots> order;
  for (std::size_t j = 0; j < n_slots; ++j) {
    order[j] = j;
    stays[j] = {(facts.hosts[targets[j]] & here) != 0 ? 0 : forbidden, targets[j]};
  }
  for (std::size_t j = 0; j < n_slots; ++j) {
    if (stays[j].loss == 0) continue;
    for (const auto e : facts.experts_at[server]) {
      bool taken = false;
      for (std::size_t i = 0; apart && i < n_slots; ++i)
        taken = taken || (i != j && (targets[i] == e ||
                                     (i < j && stays[i].loss < forbidden && stays[i].expert == e)));
      const auto lost = loss(j, e);
      if (!taken && lost < stays[j].loss) stays[j] = {lost, e};
    }
  }
  std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n_slots),
                   [&](auto a, auto b) { return stays[a].loss > stays[b].loss; });
  for (std::size_t i = 0; i < n_slots; ++i) {
    const auto j = order[i];
    const bool is_here = (facts.hosts[targets[j]] & here) != 0;
    if (i < n_leaving) {
      if (is_here) return false;
      made.set(j, {0, targets[j]}, facts.hosts[targets[j]]);
    } else {
      if (stays[j].loss >= forbidden) return false;
      made.set(j, stays[j], here);
    }
  }
  return true;
}

}  // namespace ordermoe::planning::selection
