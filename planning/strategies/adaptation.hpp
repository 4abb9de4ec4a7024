#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"

/// What the monitor and the planner compute from what a run observes. Pure: the trace verifier
/// calls the same functions, so that a change of weights in a trace can be recomputed from it.
namespace ordermoe::planning {

/// One answered request, as eq. (45) counts it.
struct observed_request {
  double budget_use = 0;        ///< Q_i / Q_i^max, 0 to 1.
  double normalised_delay = 0;  ///< T_i / T_i^ref
};

/// What of an answered request the observation is made of.
struct answered_request {
  std::uint64_t request = 0;
  std::uint32_t access = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t new_tokens = 0;  ///< Without an end of text.
  loss_units budget = 0;
  loss_units spent = 0;
  std::int64_t admitted_ns = 0;
  std::int64_t done_ns = 0;
  std::uint64_t epoch = 0;  ///< Of the plan that it went by.
};

/// Whether a request says anything about eq. (45): it has a finite budget above 0.
bool has_budget_use(loss_units budget);

/// T_i^ref is the expected time of as many positions, executed exactly on the same plan, as
/// the request computes one after the other: its prompt chunks and every new token after the first.
observed_request observe(const answered_request& request, std::size_t chunk_rows,
                         std::span<const double> exact_position_ns);

/// [n_servers] expected nanoseconds of one position of each access server's requests where nothing
/// is substituted and nothing waits: the unit of T_i^ref.
std::vector<double> exact_position_ns(const profile& profile, const plan& placed,
                                      const cluster& servers, const cost_profile& costs);

/// Eq. (45) over one window: budget use and normalised delay enter as their means.
selection_weights adapt_to_window(double omega_quality, double kappa,
                                  std::span<const observed_request> window);

/// What routers chose: of each layer how many rows count (faded ones less), and the shares of its experts as eq. (5) defines them;
/// no shares where no row was seen. Values that servers tell each other.
struct measured_activation {
  std::vector<double> rows;                 ///< [n_layers]
  std::vector<std::vector<double>> shares;  ///< [n_layers, n_experts], each layer's sum to 1

  /// Of the layer that has the fewest.
  double least_rows() const;
  friend bool operator==(const measured_activation&, const measured_activation&) = default;
};
/// Of rows at different servers; each of this shape. Layers count as many rows as all of them together.
measured_activation sum_of(std::span<const measured_activation> parts, std::size_t n_layers,
                           std::size_t n_experts);
std::string activation_json(const measured_activation& measured);
/// Errors name `place`: malformed, and mismatch where the shape is another.
result<measured_activation> parse_activation(const std::string& text, const std::string& place,
                                             std::size_t n_layers, std::size_t n_experts);
/// [n_layers] by how much the shares differ from the profile's, 0 to 1 (total variation); 0 where nothing was measured.
std::vector<double> moved_shares(const profile& profile, const measured_activation& measured);

/// How often the router chose each expert, old counts fading: a row loses half of its weight with
/// every `half_life_rows` rows of its layer that come after it.
class activation_statistics {
 public:
  activation_statistics() = default;
  activation_statistics(std::size_t n_layers, std::size_t n_experts, double half_life_rows);

  /// counts [n_layers, n_experts] of choices, rows [n_layers] of positions that made them.
  void add(std::span<const std::uint32_t> counts, std::span<const std::uint32_t> rows);

  /// Weight of the layer's rows in all, in rows.
  double rows(std::size_t layer) const { return rows_[layer]; }
  /// Rows that came in at the layer with the fewest, faded or not.
  std::uint64_t rows_seen() const;
  /// [n_experts] shares that sum to 1, as eq. (5) defines them; empty where nothing came in.
  std::vector<double> shares(std::size_t layer) const;
  std::size_t n_layers() const { return rows_.size(); }
  measured_activation now() const;

 private:
  std::size_t n_experts_ = 0;
  double half_life_rows_ = 0;
  std::vector<double> counts_;  ///< [n_layers, n_experts]
  std::vector<double> rows_;    ///< [n_layers]
  std::vector<std::uint64_t> seen_;
};

/// The profile with the measured activation: frequencies of target sets are scaled, expert by
/// expert in turn, until their experts are as frequent as measured (where the known sets allow it);
/// similarity, gates, damage and transition rows stay. Valid where `experts` is. Layers without a
/// measurement stay as they are.
profile with_measured_activation(const profile& profile, const measured_activation& measured);

/// What the planner and the monitor compare placements by: estimate_plan without a
/// quality budget and without queues.
double placement_cost_ns(const profile& profile, const plan& placed, const cluster& servers,
                         const cost_profile& costs);

/// Weights that a change of plans moves between servers: each expert that is new to a server comes
/// from the former host whose link to it takes least, one expert after the other on each server,
/// all servers at the same time.
struct weight_move {
  std::int64_t bytes = 0;
  std::int64_t ns = 0;  ///< Until the last server has its experts.
};
weight_move weights_to_move(const plan& from, const plan& to, const cluster& servers,
                            const cost_profile& costs);

}  // namespace ordermoe::planning
