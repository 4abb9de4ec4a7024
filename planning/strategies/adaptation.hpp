#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"
#include "planning/strategies/measured_activation.hpp"

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
