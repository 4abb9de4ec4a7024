#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "planning/search/trajectory_model.hpp"
#include "planning/selection/slot_sweep.hpp"

/// What more than two slots of a layer can do, whatever a nat costs: for each pair of residences
/// and each target set the assignments whose (time, nats) no mixture of others beats. Made once for
/// a placement of the layer, they are priced for any price and made again only for the sets that a
/// change of the placement can concern.
namespace ordermoe::planning {

struct front_point {
  double ns = 0, nats = 0;
  std::array<std::uint16_t, max_trajectory_slots> runs{};  ///< server * n_experts + expert
};

struct layer_fronts {
  std::vector<server_mask> hosts;      ///< [n_experts] that they were made for
  std::vector<double> wait_ns;         ///< [n_servers] likewise
  bool exact = false;                  ///< Only choices without a loss.
  std::vector<std::uint8_t> from, to;  ///< Servers, ascending.
  std::vector<std::uint32_t> first;    ///< [from, to, n_sets] into points, and their number
  /// By rising time and falling nats; the last of a set has none.
  std::vector<front_point> points;
  /// [from, to, n_sets, n_slots, n_servers] how many of the slot's candidates were looked at for
  /// the server; what comes later in their order does not matter. 0: none.
  std::vector<std::uint16_t> reach;
};

/// Makes the fronts of the layers of one model. Keeps memory between calls; not thread-safe.
class front_builder {
 public:
  explicit front_builder(const trajectory_model& model);

  /// Whether fronts are those of this placement [n_experts] between these residences.
  static bool is_for(const layer_fronts& made, std::span<const server_mask> hosts,
                     std::span<const std::uint8_t> from, std::span<const std::uint8_t> to,
                     std::span<const double> wait_ns, bool exact);

  /// Fronts of a layer; takes over from `known`, other fronts of the same layer or none, what is
  /// the same. `out` is another object; of it only the memory matters.
  void build(std::size_t layer, std::span<const server_mask> hosts,
             std::span<const std::uint8_t> from, std::span<const std::uint8_t> to,
             std::span<const double> wait_ns, bool exact, const layer_fronts& known,
             layer_fronts& out);

  /// Sets swept so far: what was not taken over.
  std::uint64_t n_sweeps() const { return n_sweeps_; }

 private:
  /// A slot's cheapest experts at a server, and how far down its candidates they were found.
  struct reached_ways {
    std::array<selection::slot_way, max_trajectory_slots> ways;
    std::uint8_t size = 0;
    std::uint16_t reach = 0;
    std::uint64_t made_by = 0;  ///< The number of the build that looked for it.
  };
  struct ways_of_set;
  /// One expert that a server hosts and did not, or the reverse.
  struct change {
    std::uint32_t expert;
    server_mask hosts;  ///< Before or after.
  };

  loss_units copy_loss(std::size_t slot, std::size_t server, std::size_t expert) const {
    return to_loss_units(model_.copy_nats(model_.layers[layer_], set_, slot, server, expert));
  }
  void open_pair(std::size_t from, std::size_t to, std::span<const double> wait_ns);
  void find_ways(std::size_t slot, std::size_t server, reached_ways& list) const;
  void sweep(std::size_t from, std::size_t to, std::size_t set, layer_fronts& out,
             std::uint16_t* reach);
  void keep_hull(layer_fronts& out);
  bool concerns(std::size_t set, const std::uint16_t* reach) const;

  const trajectory_model& model_;
  // Of the layer and set at hand.
  std::size_t layer_ = 0, set_ = 0;
  bool exact_ = false;
  server_mask hosting_ = 0;
  std::span<const server_mask> hosts_;
  std::vector<change> changes_;
  std::vector<reached_ways> lists_;  ///< [n_sets, n_slots, n_servers]
  std::vector<front_point> met_;     ///< Of one sweep.
  std::uint64_t n_sweeps_ = 0, n_builds_ = 0;
  // Of pairs of residences, for the waits below.
  struct pair_times {
    bool known = false;
    std::vector<double> first_ns;                 ///< [n_servers]
    std::vector<selection::server_place> places;  ///< Soonest first.
  };
  std::vector<double> known_wait_ns_;
  std::vector<pair_times> pairs_;  ///< [n_servers, n_servers]
};

}  // namespace ordermoe::planning
