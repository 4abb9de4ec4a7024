#pragma once

#include <cstdint>
#include <vector>

#include "planning/cost_model.hpp"
#include "planning/profile.hpp"
#include "planning/search/search.hpp"
#include "planning/selection/selector.hpp"

namespace ordermoe::planning {

inline constexpr std::size_t max_trajectory_slots = 8;

/// What the estimate needs of a profile and a cluster, in flat arrays. Immutable.
struct trajectory_model {
  struct layer {
    std::size_t n_sets = 0;
    std::vector<double> probability;     ///< [n_sets]
    std::vector<std::uint32_t> targets;  ///< [n_sets, n_slots]
    /// [n_sets, n_slots, n_experts] of running each expert in the slot; empty for more than two.
    std::vector<double> nats;
    /// [n_sets, n_slots, n_candidates] by rising nats, the target first.
    std::vector<std::uint32_t> candidates;
    /// [n_sets, n_slots, n_candidates] the same candidates' nats as the selector counts them; like
    /// the next only for more than two slots.
    std::vector<loss_units> losses;
    /// [n_sets, n_slots, n_experts] where each expert stands among the candidates, n_candidates
    /// where it is none.
    std::vector<std::uint16_t> ranks;
    /// [next n_sets, n_sets]: P(q -> q') by q', empty at the last layer
    std::vector<double> incoming;
    std::vector<double> outgoing;       ///< [n_sets, next n_sets] the same by q
    std::vector<double> visits;         ///< [n_sets] probability after the layers before
    std::vector<double> squared_gates;  ///< [n_sets, n_slots]
    /// [n_sets, n_slots] of leaving the slot out; empty where none may be, or with other than two.
    std::vector<double> left_out_nats;
    /// [n_servers, n_experts] nats per squared gate that a server's coarser copy of an expert loses
    /// besides; empty where every server keeps experts as the model has them.
    std::vector<double> copy_nats;
  };

  std::size_t n_layers = 0, n_experts = 0, n_servers = 0, n_slots = 0;
  std::size_t n_candidates = 0;  ///< Of a slot: no other slot's target is one.
  cost_model costs;
  server_mask coarse = 0;  ///< Servers that keep experts coarser than the model.
  std::vector<layer> layers;

  /// Nats that running an expert at a server costs a slot of a set besides.
  double copy_nats(const layer& content, std::size_t set, std::size_t slot, std::size_t server,
                   std::size_t expert) const {
    return ((coarse >> server) & 1u) == 0 ? 0
                                          : content.squared_gates[set * n_slots + slot] *
                                                content.copy_nats[server * n_experts + expert];
  }

  /// Keeps `max_sets` target sets of each layer at most; 0: 64.
  trajectory_model(const profile& profile, const cost_model& prices, std::size_t max_sets = 0,
                   bool may_leave_out = false);

 private:
  void add_slot(const layer_profile& source, const target_set& set, std::size_t slot,
                layer& target) const;
  void add_copies(const layer_profile& source, layer& target) const;
  static void add_left_out(const layer_profile& source, const target_set& set, layer& target);
  void count_visits();
};

}  // namespace ordermoe::planning
