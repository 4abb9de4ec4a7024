#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "actors/run_context.hpp"
#include "actors/runtime.hpp"
#include "actors/strategies.hpp"

namespace ordermoe::actors {

/// What a planner works on and where it says that every server is ready.
struct planner_work {
  planning::profile experts;
  strategy chosen;
  planner_options options;
  std::vector<edge_server_actor> servers;
  monitor_actor monitor;  ///< Empty where none runs.
  /// [n_servers] positions of the longest request of each access server: a plan under which its KV
  /// rows could never be reserved is refused.
  std::vector<std::size_t> most_positions;
  std::shared_ptr<std::atomic<std::size_t>> servers_ready;
  /// Called with the first strategy, plan included, before any server hears of it.
  std::function<result<void>(const strategy&)> announce;
};

/// One per cluster. Makes the first plan where the run brings none, builds the selection tables,
/// gives each plan its epoch and pushes both to every server; plans anew when the operator orders
/// it or the monitor proposes it.
///
///   idle --push--> installing --all servers confirmed--> steady
///   steady --order or proposal--> [plan: refused?] --yes--> steady, the plan in force stays
///                                       | no
///                                   draining: every server holds admission and answers when no
///                                       |     request of its users is in flight
///                                   moving: expert weights travel (weights_to_move)
///                                       |
///                                   installing: servers host the new plan and confirm
///                                       |
///                                   steady: admission resumes everywhere
///
/// So no two plans are ever in force for one request, and no server hosts more than one plan: the
/// memory limits of plan validation hold at every moment. What can still be on its way while a plan
/// is installed are KV rows of requests that are over, which servers drop, and memory given back,
/// which reservations of the new plan wait for.
///
/// Weights of eq. (45) change within an epoch, at any time and without draining: only the tables of
/// decisions to come differ.
///
/// Refused, with the reason in the run's books: no feasible plan; KV rows of some request would
/// never fit; a proposal whose plan is not cheaper by the margin; no request left. An order that
/// comes meanwhile waits; a proposal is answered plan_kept. A server that does not confirm within
/// 30 s ends the run; draining is bounded by the requests' own deadlines.
planner_actor spawn_planner(caf::actor_system& system, std::shared_ptr<const run_context> run,
                            planner_work work);

/// Errors: infeasible, naming request positions, server and bytes, where KV rows of a request of
/// some access server can never be reserved under a residency.
result<void> check_kv_fits(const std::vector<planning::residency>& residence,
                           const std::vector<std::size_t>& most_positions, const cluster& servers,
                           const cost_profile& costs);

}  // namespace ordermoe::actors
