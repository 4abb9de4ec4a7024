#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>

#include "planning/infinity.hpp"
#include "planning/selection/selector.hpp"

/// How several slots share servers and experts when both are many.
///
/// A token that goes from s to n in at most T has, at each server m, room for as many experts as
///
///   back(m, n, q) = ready(m) + q * c(m) + d(m, n) <= T
///
/// allows. As T rises, room comes server by server, and the sweep keeps the slots where they lose
/// least: (time, least loss at that time) are the choices that can be best, whatever a unit of loss
/// costs. A slot's ways at one server are its cheapest experts there and no others.
///
/// Where slots may be left out, each begins so, with what it loses by that, and one has to run at least.
///
/// Each new place is filled by the slot that gains most, by the slots that gain most together by
/// one expert where they may share it, or by a slot that makes way for another; what they leave is
/// filled likewise. The least loss may be missed where three or more slots would have to change
/// places at once, or where two that may not share would have to exchange experts.
namespace ordermoe::planning::selection {

struct slot_way {
  loss_units loss;
  std::uint32_t expert;
};

struct slot_assignment {
  static constexpr std::uint8_t nowhere = 255;

  std::size_t n_slots = 0;
  std::array<std::uint8_t, max_slots> servers{};  ///< Or nowhere, where the slot is left out.
  std::array<std::uint32_t, max_slots> experts{};
  std::array<loss_units, max_slots> losses{};
  loss_units loss = 0;
};

/// A place for one more expert at a server.
struct server_place {
  double ns;  ///< back(m, n, q)
  std::size_t server;
};

/// Ways of slots that may share an expert: what each slot loses by it at a server, [slot], `forbidden` where it may not run there or
/// there is no such slot.
template <class Ways>
concept tells_losses = requires(Ways& ways) {
  { ways.losses(0, 0) } -> std::convertible_to<std::array<loss_units, max_slots>>;
};

/// Ways that know for all slots together what each loses at a server at least, by an expert there that nobody else
/// runs: [slot], `forbidden` where it cannot run there or there is no such slot. running [slot]: experts.
template <class Ways>
concept knows_least = requires(Ways& ways, const std::array<std::uint32_t, max_slots>& running) {
  { ways.least(0, running) } -> std::convertible_to<const std::array<loss_units, max_slots>&>;
};

/// Ways: `ways(slot, server)`, a list of slot_way with size() and [], ascending by loss, as many as there are
/// slots where the server has them; tells_losses, unless they are always `apart`.
template <class Ways>
class slot_sweep {
 public:
  /// useful: servers where a slot may run. hosts [expert]. apart: no two slots run the same expert.
  /// first_ns [server]: d(s, m) + wait(m) + d(m, n); run_ns [server]: one expert. places: as many
  /// at every server as there are slots, soonest first, where they are known; otherwise found one
  /// by one. without: what each slot loses where it is left out, where that may be.
  slot_sweep(Ways& ways, std::size_t n_slots, server_mask useful, const server_mask* hosts,
             bool apart, const double* first_ns, const double* run_ns,
             std::span<const server_place> places = {}, std::span<const loss_units> without = {})
      : ways_(ways),
        useful_(useful),
        n_servers_(static_cast<std::size_t>(std::bit_width(useful))),
        hosts_(hosts),
        apart_(apart),
        first_ns_(first_ns),
        run_ns_(run_ns),
        places_(places),
        may_miss_(without.empty() ? 0 : n_slots - 1) {
    now_.n_slots = n_slots;
    now_.servers.fill(nowhere);
    now_.losses.fill(missing);
    now_.experts.fill(no_expert);
    n_missing_ = n_slots;
    for (std::size_t j = 0; j < without.size(); ++j) now_.loss += now_.losses[j] = without[j];
    for (std::size_t m = 0; m < n_servers_; ++m) {
      opened_[m] = room_[m] = 0;
      next_ns_[m] = ((useful >> m) & 1u) != 0 ? first_ns_[m] + run_ns_[m] : infinity;
    }
  }

  /// When the next place opens; infinity where every slot could be at every server. To be called
  /// once before each open().
  double next() {
    if (!places_.empty()) {
      while (at_ < places_.size() && ((useful_ >> places_[at_].server) & 1u) == 0) ++at_;
      if (at_ == places_.size()) return infinity;
      next_server_ = places_[at_].server;
      return places_[at_++].ns;
    }
    double soonest = infinity;
    for (std::size_t m = 0; m < n_servers_; ++m) {
      const bool is_sooner = next_ns_[m] < soonest;
      next_server_ = is_sooner ? m : next_server_;
      soonest = is_sooner ? next_ns_[m] : soonest;
    }
    return soonest;
  }

  /// Opens the place that next() told; returns whether slots moved.
  bool open() {
    const auto m = next_server_;
    ++opened_[m];
    open_ |= server_bit(m);
    const bool had_room = room_[m]++ > 0;
    next_ns_[m] = opened_[m] < now_.n_slots
                      ? first_ns_[m] + static_cast<double>(opened_[m] + 1) * run_ns_[m]
                      : infinity;
    // Nobody wanted the place that was free already.
    server_mask touched = 0;
    if (had_room || !step(m, touched)) return false;
    // Slots that run apart had settled here before; without room only what was left here can move them.
    if (!apart_ || room_[m] > 0) touched |= server_bit(m);
    settle(touched);
    return true;
  }

  /// Whatever has to run does.
  bool is_complete() const { return n_missing_ <= may_miss_; }
  /// Losses sum up once it is complete.
  const slot_assignment& now() const { return now_; }

  /// When the last slot is back: at most the time of the last place opened.
  double time(double stays) const {
    double latest = stays;
    for (std::size_t j = 0; j < now_.n_slots; ++j) {
      const auto m = now_.servers[j];
      if (m == nowhere) continue;
      latest =
          std::max(latest, first_ns_[m] + static_cast<double>(opened_[m] - room_[m]) * run_ns_[m]);
    }
    return latest;
  }

 private:
  static constexpr std::uint8_t nowhere = slot_assignment::nowhere;
  static constexpr std::uint32_t no_expert = ~std::uint32_t{0};
  static constexpr loss_units missing = 100 * largest_loss;

  /// The cheapest expert for a slot at a server that loses less than `limit` and that no other slot
  /// runs; `leaver` is about to go.
  std::optional<slot_way> way(std::size_t slot, std::size_t server, loss_units limit,
                              std::size_t leaver) const {
    const auto& list = ways_(slot, server);
    for (std::size_t at = 0; at < list.size(); ++at) {
      const slot_way found = list[at];
      if (found.loss >= limit) return std::nullopt;
      if (!apart_) return found;
      unsigned runners = 0;
      for (std::size_t i = 0; i < max_slots; ++i)
        runners |= static_cast<unsigned>(now_.experts[i] == found.expert) << i;
      if ((runners & ~(1u << slot) & ~(1u << leaver)) == 0) return found;
    }
    return std::nullopt;
  }

  bool runs_alone(std::size_t slot) const {
    for (std::size_t i = 0; i < now_.n_slots; ++i)
      if (i != slot && now_.servers[i] == now_.servers[slot] &&
          now_.experts[i] == now_.experts[slot])
        return false;
    return true;
  }
  bool is_running(std::size_t server, std::uint32_t expert, std::size_t except) const {
    for (std::size_t i = 0; i < now_.n_slots; ++i)
      if (i != except && now_.servers[i] == server && now_.experts[i] == expert) return true;
    return false;
  }

  /// Servers where something may have become better.
  server_mask move(std::size_t slot, std::size_t server, slot_way to) {
    server_mask touched = 0;
    const auto from = now_.servers[slot];
    if (from == nowhere) {
      --n_missing_;
      if (may_miss_ == 0) now_.losses[slot] = 0;
    } else {
      if (apart_ || runs_alone(slot)) ++room_[from];
      touched |= server_bit(from);
      if (apart_) touched |= hosts_[now_.experts[slot]];  // Another slot may run it now.
    }
    now_.loss += to.loss - now_.losses[slot];
    now_.servers[slot] = nowhere;
    if (apart_ || !is_running(server, to.expert, slot)) --room_[server];
    now_.servers[slot] = static_cast<std::uint8_t>(server);
    now_.experts[slot] = to.expert;
    now_.losses[slot] = to.loss;
    return touched;
  }

  /// Until nothing gets better at these servers.
  void settle(server_mask dirty) {
    while (dirty &= open_, dirty != 0) {
      const auto m = static_cast<std::size_t>(std::countr_zero(dirty));
      dirty &= dirty - 1;
      server_mask touched = 0;
      if (step(m, touched)) dirty |= touched | server_bit(m);
    }
  }

  /// The best single change that brings a slot to m, or to another expert there; without `apart`
  /// slots that gain by the same expert come together.
  bool step(std::size_t m, server_mask& touched) {
    loss_units dearest = 0;
    for (std::size_t j = 0; j < now_.n_slots; ++j) dearest = std::max(dearest, now_.losses[j]);
    if (dearest == 0) return false;
    if constexpr (tells_losses<Ways>) {
      if (!apart_) {
        if (come_together(m, touched)) return true;
        return room_[m] > 0 && make_way(m, dearest, {}, touched);
      }
    }
    const auto comes = who_gains_most(m);
    // Without a place every slot is worth as much; where slots may do without, who makes way may bring in a better one.
    const bool is_settled = comes.slot != max_slots && may_miss_ == 0;
    if (!is_settled && room_[m] > 0 && make_way(m, dearest, {comes.gain}, touched)) return true;
    if (comes.slot == max_slots) return false;
    touched |= move(comes.slot, m, comes.way);
    return true;
  }

  struct arrival {
    loss_units gain = 0;
    std::size_t slot = max_slots;
    slot_way way{};
  };
  arrival who_gains_most(std::size_t m) const {
    if constexpr (knows_least<Ways>)
      return who_gains_by_least(m);
    else
      return who_gains_by_lists(m);
  }

  arrival who_gains_by_lists(std::size_t m) const {
    arrival most;
    for (std::size_t j = 0; j < now_.n_slots; ++j) {
      if (now_.losses[j] <= most.gain || (room_[m] == 0 && now_.servers[j] != m)) continue;
      const auto found = way(j, m, now_.losses[j] - most.gain, j);
      if (found) most = {now_.losses[j] - found->loss, j, *found};
    }
    return most;
  }

  /// Likewise: who could gain most is looked at first, and where it gains as much, nobody gains more.
  arrival who_gains_by_least(std::size_t m) const {
    const std::array<loss_units, max_slots>& least = ways_.least(m, now_.experts);
    std::array<loss_units, max_slots> gains;
    for (std::size_t j = 0; j < max_slots; ++j) {
      const bool may_come = room_[m] > 0 || now_.servers[j] == m;
      gains[j] = may_come ? now_.losses[j] - least[j] : 0;
    }
    while (true) {
      loss_units most = 0;
      std::size_t who = max_slots;
      for (std::size_t j = 0; j < max_slots; ++j) {
        who = gains[j] > most ? j : who;
        most = gains[j] > most ? gains[j] : most;
      }
      if (who == max_slots) return {};
      const auto found = way(who, m, now_.losses[who], who);
      gains[who] = found ? now_.losses[who] - found->loss : 0;
      if (gains[who] == most) return {most, who, *found};
    }
  }

  /// No expert at m gains more for all slots together than each slot's own best one does.
  loss_units most_together(std::size_t m) const {
    const auto& least = least_anyway(m);
    loss_units gain = 0;
    for (std::size_t j = 0; j < now_.n_slots; ++j)
      // Who has no way of its own here may still join another one's.
      gain += least[j] == forbidden ? now_.losses[j]
                                    : std::max<loss_units>(0, now_.losses[j] - least[j]);
    return gain;
  }

  bool come_together(std::size_t m, server_mask& touched) {
    const auto no_more = most_together(m);
    if (no_more == 0) return false;
    loss_units most = 0;
    std::uint32_t best = no_expert;
    std::array<std::uint64_t, 4> seen{};  // Experts weighed already, of the first 256.
    for (unsigned may_gain = gaining_anyway(m); may_gain != 0; may_gain &= may_gain - 1) {
      const auto j = static_cast<std::size_t>(std::countr_zero(may_gain));
      for (const auto& found : ways_(j, m)) {
        if (found.loss >= now_.losses[j] || most >= no_more) break;
        const auto word = found.expert / 64, bit = found.expert % 64;
        if (word < seen.size() && ((seen[word] >> bit) & 1u) != 0) continue;
        const bool has_place = room_[m] > 0 || is_running(m, found.expert, max_slots) ||
                               (now_.servers[j] == m && runs_alone(j));
        if (!has_place || found.expert == best) continue;
        if (word < seen.size()) seen[word] |= std::uint64_t{1} << bit;
        const auto& losses = ways_.losses(m, found.expert);
        loss_units gain = 0;
        for (std::size_t i = 0; i < max_slots; ++i)
          gain += std::max<loss_units>(0, now_.losses[i] - losses[i]);
        if (gain <= most) continue;
        most = gain;
        best = found.expert;
      }
    }
    if (best == no_expert) return false;
    const auto& losses = ways_.losses(m, best);
    // Who is here alone goes first: its place is the one that the expert takes.
    for (const bool here : {true, false})
      for (std::size_t i = 0; i < now_.n_slots; ++i) {
        const auto loss = losses[i];
        if (now_.losses[i] <= loss || (now_.servers[i] == m && runs_alone(i)) != here) continue;
        touched |= move(i, m, {loss, best});
      }
    return true;
  }

  /// Slots that lose less at a server by the best of their ways there than they do now, a bit each.
  unsigned gaining_anyway(std::size_t m) const {
    const auto& least = least_anyway(m);
    unsigned gaining = 0;
    for (std::size_t j = 0; j < max_slots; ++j)
      gaining |= static_cast<unsigned>(least[j] < now_.losses[j]) << j;
    return gaining & ((1u << now_.n_slots) - 1);
  }

  /// What slots lose at a server at least, whatever the others run.
  const std::array<loss_units, max_slots>& least_anyway(std::size_t server) const {
    static constexpr std::array<std::uint32_t, max_slots> nobody_runs = [] {
      std::array<std::uint32_t, max_slots> experts{};
      experts.fill(no_expert);
      return experts;
    }();
    static constexpr std::array<loss_units, max_slots> nothing{};
    if constexpr (knows_least<Ways>)
      return ways_.least(server, nobody_runs);
    else
      return nothing;
  }

  struct way_made {
    loss_units gain = 0;
    std::size_t leaver = max_slots, comer = max_slots;
    slot_way leaves{}, comes{};
  };
  /// A slot at another server makes way there and comes to m, which has room, if that gains more than `best`.
  bool make_way(std::size_t m, loss_units dearest, way_made best, server_mask& touched) {
    const auto& least = least_anyway(m);
    for (std::size_t j = 0; j < now_.n_slots; ++j) {
      const auto b = now_.servers[j];
      if (b == nowhere || b == m || room_[b] > 0) continue;
      const auto limit = now_.losses[j] + dearest - best.gain;
      if (least[j] >= limit || !(apart_ || runs_alone(j))) continue;
      if (const auto there = way(j, m, limit, j)) take_place(j, *there, best);
    }
    if (best.leaver == max_slots) return false;
    const auto b = now_.servers[best.leaver];
    touched |= move(best.leaver, m, best.leaves);
    touched |= move(best.comer, b, best.comes);
    return true;
  }
  /// Who gains most where `leaver` leaves.
  void take_place(std::size_t leaver, slot_way leaves, way_made& best) const {
    const auto b = now_.servers[leaver];
    const auto dearer = leaves.loss - now_.losses[leaver];
    const auto& least = least_anyway(b);
    unsigned may_gain = 0;
    for (std::size_t i = 0; i < max_slots; ++i)
      may_gain |= static_cast<unsigned>(now_.losses[i] - least[i] > dearer + best.gain &&
                                        now_.servers[i] != b)
                  << i;
    for (; may_gain != 0; may_gain &= may_gain - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(may_gain));
      if (i >= now_.n_slots) break;
      const auto found = way(i, b, now_.losses[i] - dearer - best.gain, leaver);
      if (!found || (apart_ && found->expert == leaves.expert)) continue;
      best = {now_.losses[i] - found->loss - dearer, leaver, i, leaves, *found};
    }
  }

  Ways& ways_;
  server_mask useful_;
  std::size_t n_servers_;  ///< Up to the last useful one.
  server_mask open_ = 0;   ///< Servers with a place, taken or not.
  const server_mask* hosts_;
  bool apart_;
  const double* first_ns_;
  const double* run_ns_;
  std::span<const server_place> places_;
  std::size_t at_ = 0;
  slot_assignment now_;
  std::size_t may_miss_;       ///< Slots that may be left out.
  std::size_t n_missing_ = 0;  ///< Slots that are nowhere.
  std::size_t next_server_ = 64;
  std::array<std::uint8_t, 64> opened_, room_;
  std::array<double, 64> next_ns_;
};

}  // namespace ordermoe::planning::selection
