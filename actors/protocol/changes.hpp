#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/drift_watch.hpp"
#include "config/error.hpp"
#include "planning/selection/selector.hpp"
#include "planning/strategies/strategies.hpp"

/// What changes while a service runs: what is ordered, and what came of it. No CAF type in this header.
namespace ordermoe::actors {

/// What is measured while a service runs, and what follows from it. Off, no monitor runs and a trace
/// is what it would be without one.
struct monitor_options {
  bool on = false;
  /// Step size of eq. (45); 0: weights stay. Moves them where requests have a finite budget above 0
  /// and the policy weighs by omega and not by a price.
  double kappa = 0;
  std::size_t window_requests = 8;  ///< Observation window of eq. (45).
  /// A new plan is proposed where the expected cost of the one in force under the measured
  /// activation is off by more than this share of its cost under the profile, and taken where it
  /// saves as much; 0: never.
  double drift_margin = 0;
  /// After which a row counts half, in the time of the service; a node's table [drift] says it of its own.
  double half_life_s = drift_watch{}.half_life_s;
  /// Of each layer before drift is judged, as old ones count, and that come in from one judgement to the next.
  std::uint64_t least_rows = 1024;
  planning::strategy_options planning;  ///< Of plans that are proposed.
};

/// An operator's order to plan anew: experts and residency as this strategy would choose them. The
/// selection policy and the budget stay those in force.
struct replan_order {
  std::int64_t at_ns = 0;  ///< After the start of the service; before now: now.
  std::string strategy;
  planning::strategy_options planning;
};

/// An operator's order to select by another policy from now on. Budgets of requests stay.
struct policy_order {
  std::int64_t at_ns = 0;
  planning::selection_policy policy;
};

/// A change of plans, or the reason why there was none.
struct plan_change {
  std::uint64_t epoch = 0;  ///< Of the plan in force afterwards.
  std::string reason;       ///< order, drift
  std::string refused;      ///< Empty where the plan changed.
  std::int64_t asked_ns = 0;
  /// No request began from asked_ns to done_ns, since both plans did not fit into memory together.
  bool held = false;
  std::int64_t drained_ns = 0;  ///< Where held, when no request was in flight any more.
  std::int64_t done_ns = 0;     ///< When the first requests could begin under the new plan.
  std::int64_t moved_bytes = 0;
  double cost_before_ns =
      0;  ///< planning::placement_cost_ns of the plan in force and of the new one,
  double cost_after_ns = 0;  ///< both under the profile that the new one was made for.
};

/// A change of the policy within an epoch: one step of eq. (45), or an order.
struct policy_change {
  std::uint64_t epoch = 0;
  std::uint64_t version = 0;  ///< Counts the changes of policy.
  planning::selection_weights weights;
  std::string reason;                   ///< window, order
  std::string refused;                  ///< Empty where the policy changed.
  std::vector<std::uint64_t> requests;  ///< The window of eq. (45); empty for an order.
  std::int64_t time_ns = 0;
};

/// Something that went wrong and ends neither the process nor other requests.
struct problem {
  enum class scope { request, peer, server, service };
  scope of = scope::service;
  std::uint64_t request = 0;
  std::uint32_t server = 0;  ///< Where it was found.
  std::uint32_t peer = 0;    ///< Whose frame it was.
  std::uint64_t count = 1;   ///< How often so far; a peer's are told when they are 1, 2, 4, ...
  error what;
  std::int64_t time_ns = 0;
};
const char* to_string(problem::scope scope);

}  // namespace ordermoe::actors
