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

/// What each slot loses at a server, [slot]; `forbidden` where there is no such slot.
using least_losses = std::array<loss_units, max_slots>;

/// One way for each slot, the same at all of its hosts: what local_only and router_restricted
/// leave of a decision once it is known who leaves.
struct fixed_ways {
  std::array<slot_way, max_slots> way;
  std::array<server_mask, max_slots> hosts{};
  server_mask useful = 0;
  loss_units total = 0;

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    return {&way[slot], (hosts[slot] >> server) & 1u};
  }
  least_losses losses(std::size_t server, std::uint32_t expert) const {
    least_losses all;
    for (std::size_t j = 0; j < max_slots; ++j) {
      const bool may = ((hosts[j] >> server) & 1u) != 0 && way[j].expert == expert;
      all[j] = may ? way[j].loss : forbidden;
    }
    return all;
  }
  void set(std::size_t slot, slot_way to, server_mask at) {
    way[slot] = to;
    hosts[slot] = at;
    useful |= at;
    total += to.loss;
  }
};

/// What each slot loses by an expert at a server, where `lost(slot, server, expert)` says it of one.
template <class Loss>
least_losses losses_by(const Loss& lost, std::size_t n_slots, std::size_t server,
                       std::uint32_t expert) {
  least_losses all;
  all.fill(forbidden);
  for (std::size_t j = 0; j < n_slots; ++j) all[j] = lost(j, server, expert);
  return all;
}

/// Lists of one set: lists [slot, server], heads [server]: the losses of their first ways. Loss: loss_units(slot, server, expert).
template <class Loss>
struct listed_ways {
  const way_list* lists;
  const least_losses* heads;
  Loss lost;
  std::size_t n_slots, n_servers;

  const least_losses& least(std::size_t server, const std::array<std::uint32_t, max_slots>&) const {
    return heads[server];
  }

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    const auto& list = lists[slot * n_servers + server];
    return {list.ways.data(), list.size};
  }
  least_losses losses(std::size_t server, std::uint32_t expert) const {
    return losses_by(lost, n_slots, server, expert);
  }
};
template <class Loss>
listed_ways(const way_list*, const least_losses*, Loss, std::size_t, std::size_t)
    -> listed_ways<Loss>;

/// Lists of all slots and servers, found server by server when they are first asked for. Find: void(way_list&, slot,
/// server). Loss: loss_units(slot, server, expert).
template <class Find, class Loss>
struct found_ways {
  Find find;
  Loss lost;
  std::size_t n_slots;
  std::array<std::uint8_t, 64> known{};
  std::array<least_losses, 64> heads;
  std::array<std::array<way_list, max_slots>, 64> lists;

  found_ways(Find how, Loss what, std::size_t count) : find(how), lost(what), n_slots(count) {}

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) {
    look(server);
    const auto& list = lists[server][slot];
    return {list.ways.data(), list.size};
  }
  const least_losses& least(std::size_t server, const std::array<std::uint32_t, max_slots>&) {
    look(server);
    return heads[server];
  }
  least_losses losses(std::size_t server, std::uint32_t expert) const {
    return losses_by(lost, n_slots, server, expert);
  }

 private:
  void look(std::size_t server) {
    if (known[server] != 0) return;
    known[server] = 1;
    heads[server].fill(forbidden);
    for (std::size_t j = 0; j < n_slots; ++j) {
      auto& list = lists[server][j];
      list.size = 0;
      find(list, j, server);
      if (list.size > 0) heads[server][j] = list.ways[0].loss;
    }
  }
};

/// Lists of all slots and servers where but few experts may run in place of a target: found from these, and what every slot
/// loses by one of them is kept beside each other.
class candidate_ways {
 public:
  /// Of all servers; no expert is a way yet.
  candidate_ways(std::size_t n_servers, std::size_t n_experts, std::size_t n_slots)
      : n_slots_(n_slots) {
    for (std::size_t m = 0; m < n_servers; ++m) {
      heads_[m].fill(forbidden);
      for (std::size_t j = 0; j < n_slots; ++j) lists_[m][j].size = 0;
    }
    std::fill_n(known_.begin(), n_experts, std::uint8_t{0});
  }

  /// What the slot loses by the expert wherever it runs.
  void know(std::size_t slot, std::uint32_t expert, loss_units loss) {
    if (known_[expert] == 0) losses_[expert].fill(forbidden);
    known_[expert] = 1;
    losses_[expert][slot] = loss;
  }
  /// Equal losses: who comes first.
  void add(std::size_t slot, std::size_t server, slot_way way) {
    auto& list = lists_[server][slot];
    list.add(way, n_slots_);
    heads_[server][slot] = list.ways[0].loss;
  }

  std::span<const slot_way> operator()(std::size_t slot, std::size_t server) const {
    const auto& list = lists_[server][slot];
    return {list.ways.data(), list.size};
  }
  const least_losses& least(std::size_t server, const std::array<std::uint32_t, max_slots>&) const {
    return heads_[server];
  }
  /// Of an expert that is some slot's way.
  const least_losses& losses(std::size_t, std::uint32_t expert) const { return losses_[expert]; }

 private:
  std::size_t n_slots_;
  std::array<least_losses, 64> heads_;
  std::array<std::array<way_list, max_slots>, 64> lists_;
  std::array<std::uint8_t, max_options> known_;
  std::array<least_losses, max_options> losses_;
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
