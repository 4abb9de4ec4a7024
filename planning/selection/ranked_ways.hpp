#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "planning/selection/selector_tables.hpp"
#include "planning/selection/slot_sweep.hpp"

/// Ways of slots that rank the experts of a server alike: by the router's score, which is all that their losses are made
/// of. A server's best experts are found once for all slots, a few at a time, and so is what all slots lose by one of
/// them. Nothing outside planning/selection/ includes this.
namespace ordermoe::planning::selection {

/// A score and whose it is as one positive number: the higher the score the higher, and of equal scores the lower
/// expert's is. Bits of positive numbers are ordered as the numbers are.
inline double rank_key(float score, std::uint32_t expert) {
  constexpr std::uint64_t above_nothing = std::uint64_t{1} << 52;
  return std::bit_cast<double>(
      (std::uint64_t{std::bit_cast<std::uint32_t>(score)} << 32 | (~expert & 0xffffffffu)) +
      above_nothing);
}
inline std::uint32_t expert_of(double key) {
  return ~static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(key));
}

class ranked_ways {
 public:
  /// A slot's ways at one server: its target, or the best experts in turn.
  struct list {
    ranked_ways& of;
    std::size_t slot, server;
    std::size_t size() const { return of.is_here(slot, server) ? 1 : of.targets_.size(); }
    slot_way operator[](std::size_t i) const { return of.way(slot, server, i); }
  };

  /// targets: of the slots. scores [E]: the router's, none negative. hosts [E]. experts_at [server], ascending.
  /// damage: nats for a unit of score. left: what a slot may lose.
  ranked_ways(std::span<const std::uint32_t> targets, std::span<const float> scores,
              const std::vector<server_mask>& hosts,
              const std::vector<std::vector<std::uint32_t>>& experts_at, double damage,
              loss_units left)
      : targets_(targets),
        scores_(scores),
        hosts_(hosts),
        experts_at_(experts_at),
        damage_(damage),
        left_(left) {
    for (std::uint32_t e = 0; e < scores.size(); ++e) keys_[e] = rank_key(scores[e], e);
    // Nobody runs another slot's target.
    for (const auto e : targets) keys_[e] = 0;
    for (std::size_t m = 0; m < experts_at.size(); ++m) ranks_[m].n_found = ranks_[m].n_priced = 0;
  }

  list operator()(std::size_t slot, std::size_t server) { return {*this, slot, server}; }

  /// By the target where the server hosts it, else by its best expert that nobody runs.
  const std::array<loss_units, max_slots>& least(
      std::size_t server, const std::array<std::uint32_t, max_slots>& running) {
    auto& ranks = ranks_[server];
    std::size_t rank = 0;
    for (; rank + 1 < max_slots; ++rank) {
      price(server, rank);
      bool is_free = true;
      for (const auto e : running) is_free &= e != ranks.experts[rank];
      if (is_free) break;
    }
    price(server, rank);
    return ranks.losses[rank];
  }

 private:
  static constexpr std::size_t at_a_time = 4;
  static constexpr std::uint32_t nobody = ~std::uint32_t{0};
  struct server_ranks {
    std::size_t n_found, n_priced;
    double last;  ///< The key of the last one found.
    std::array<std::uint32_t, max_slots> experts;
    std::array<std::array<loss_units, max_slots>, max_slots> losses;  ///< [rank, slot]
  };

  bool is_here(std::size_t slot, std::size_t server) const {
    return ((hosts_[targets_[slot]] >> server) & 1u) != 0;
  }

  slot_way way(std::size_t slot, std::size_t server, std::size_t rank) {
    if (is_here(slot, server)) return {0, targets_[slot]};
    price(server, rank);
    return {ranks_[server].losses[rank][slot], ranks_[server].experts[rank]};
  }

  /// The next few experts of a server by rank. Branches would hardly ever be foreseen here; minima and maxima need none.
  void find_more(std::size_t server) {
    auto& ranks = ranks_[server];
    const double below = ranks.n_found == 0 ? infinity : ranks.last;
    std::array<double, at_a_time> found{};
    for (const auto e : experts_at_[server]) {
      double key = keys_[e] < below ? keys_[e] : 0;
      for (auto& kept : found) {
        const double lower = std::min(kept, key);
        kept = std::max(kept, key);
        key = lower;
      }
    }
    for (const double key : found)
      ranks.experts[ranks.n_found++] = key == 0 ? nobody : expert_of(key);
    ranks.last = found.back();
  }

  void price(std::size_t server, std::size_t rank) {
    auto& ranks = ranks_[server];
    for (; ranks.n_priced <= rank; ++ranks.n_priced) {
      if (ranks.n_priced == ranks.n_found) find_more(server);
      const auto expert = ranks.experts[ranks.n_priced];
      auto& losses = ranks.losses[ranks.n_priced];
      losses.fill(forbidden);
      for (std::size_t j = 0; j < targets_.size(); ++j) {
        const auto loss = expert == nobody ? forbidden : loss_of(j, expert);
        losses[j] = is_here(j, server) ? 0 : loss <= left_ ? loss : forbidden;
      }
    }
  }

  loss_units loss_of(std::size_t slot, std::uint32_t expert) const {
    return to_substitute_units(
        (static_cast<double>(scores_[targets_[slot]]) - static_cast<double>(scores_[expert])) *
        damage_);
  }

  std::span<const std::uint32_t> targets_;
  std::span<const float> scores_;
  const std::vector<server_mask>& hosts_;
  const std::vector<std::vector<std::uint32_t>>& experts_at_;
  double damage_;
  loss_units left_;
  std::array<double, max_options> keys_;  ///< [E]; 0 for targets
  std::array<server_ranks, 64> ranks_;
};

}  // namespace ordermoe::planning::selection
