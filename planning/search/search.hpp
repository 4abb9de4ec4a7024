#pragma once

#include <cstdint>
#include <functional>

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"

/// Placement by search: whole layers, parts of layers, replicas and residency sets chosen together
/// against the expected time of a token that selects with full look-ahead.
namespace ordermoe::planning {

struct search_options {
  double quality_nats = 0;  ///< Budget per token in nats; 0: exact only; infinity: unbounded.
  std::uint64_t seed = 1;
  /// Candidate moves tried; the result depends on this number, never on the clock.
  std::size_t n_steps = 20000;
  std::size_t min_copies = 1;
  /// Requests in flight that the plan should expect: above 1 queues are priced, and access servers
  /// may get residencies of their own to spread the load.
  double concurrency = 1;
  /// Whether tokens will go by a policy that may leave slots out (selection_policy::may_leave_out), which the estimate then reckons with
  /// where a token has two; with more it takes all of them to run.
  bool may_leave_out = false;
  double kv_price = 0.005;  ///< Ns charged for each KV byte streamed: no position waits for it, but
                            ///< it keeps links busy (0.005: as long as one of 1.6 Gbit/s).
  std::function<bool()> should_stop;
};

/// Expected nanoseconds of one decoded position for requests of each access server, and the nats it
/// spends, when each token selects as selection_policy `any`, `distinct`, with full look-ahead would
/// at price `ns_per_nat`.
struct trajectory_estimate {
  double token_ns = 0;
  double token_nats = 0;
};
trajectory_estimate estimate_trajectory(const profile& profile, const plan& placed,
                                        const cluster& servers, const cost_profile& costs,
                                        std::size_t access, double ns_per_nat);

/// The planner's estimate of any plan for a budget and a load: expected nanoseconds of one decoded
/// position, averaged over the access servers by arrival share, at the prices at which the mean
/// nats of each residency's positions meet options.quality_nats, with the queues of
/// options.concurrency positions in flight.
double estimate_plan(const profile& profile, const plan& placed, const cluster& servers,
                     const cost_profile& costs, const search_options& options);

/// Nanoseconds that one nat is worth to the requests of an access server whose positions spend
/// quality_nats each on average: at a price just below it they spend more, just above it less. 0
/// where the budget is never used up, infinity without a budget: selection_policy::price_ns_per_loss.
double price_of_budget(const profile& profile, const plan& placed, const cluster& servers,
                       const cost_profile& costs, std::size_t access,
                       const search_options& options);

/// The planner of the `ordermoe` strategy. Starts from the layer shards, Algorithm 1 and popularity
/// placements and keeps the best plan met, so that its estimate is never worse than theirs. Error:
/// infeasible.
result<plan> place_by_search(const profile& profile, const cluster& servers,
                             const cost_profile& costs, const search_options& options);

}  // namespace ordermoe::planning
