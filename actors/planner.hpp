#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/context.hpp"
#include "actors/protocol/changes.hpp"

namespace ordermoe::actors {

/// What a planner begins with.
struct planner_work {
  planning::profile profile;
  planning::strategy chosen;             ///< Plan, policy and budgets of the start.
  planning::strategy_options proposals;  ///< How plans that the monitor proposes are made.
  std::vector<edge_server_actor> servers;
  std::vector<std::uint32_t> ids;  ///< Of these.
  recorder_actor recorder;
  monitor_actor monitor;  ///< Empty where none runs.
  /// [n_servers] positions of the longest request that each access server must be able to take: a plan
  /// under which its KV rows could never be reserved is refused.
  std::vector<std::size_t> most_positions;
  /// In a node of a cluster, the model with the experts that a plan places on its server; empty: plans change none.
  std::function<result<std::shared_ptr<const model::transformer>>(const planning::plan&)> load;
};

/// One per cluster. Builds the selection tables, gives each plan its epoch and pushes both to every
/// server; plans anew when the operator orders it or the monitor proposes it.
///
///   idle --push_plan--> installing --all servers installed it--> steady
///   steady --order or proposal--> [plan: refused?] --yes--> steady, the plan in force stays
///                                       | no
///                                   draining: every server holds admission and answers when no
///                                       |     request of its users is in flight
///                                   moving: expert weights travel (weights_to_move)
///                                       |
///                                   installing: servers host the new plan and say so
///                                       |
///                                   steady: admission resumes everywhere
///
/// So no two plans are ever in force for one request, and no server hosts more than one plan: the
/// memory limits of plan validation hold at every moment. What can still be on its way while a plan
/// is installed are frames of requests that are over, which servers drop, and memory given back,
/// which reservations of the new plan wait for.
///
/// A policy changes within an epoch, at any time and without draining: only the tables of decisions to
/// come differ. Steps of eq. (45) are such changes, and so are orders.
///
/// In a node of a cluster all planners change together, each for its own server, step by step as the admin says
/// (plan_step): prepare loads weights and builds tables in `steady`; hold drains; after `moving` it waits for commit,
/// after `installing` for resume; abort leads back to `steady` from anywhere before the commit. Requests that are in
/// flight longer than a hold allows end by name.
///
/// Refused, with the reason told to the recorder: no feasible plan; KV rows of the longest request would
/// never fit; a proposal whose plan is not cheaper by the margin; the plan in force; a policy that no
/// tables can be built for; draining that takes longer than a request may. An order that comes
/// meanwhile waits; a proposal is answered plan_kept. A server that does not install a plan within the
/// time of a request is told to the recorder as a problem; the others go on.
planner_actor spawn_planner(caf::actor_system& system,
                            std::shared_ptr<const service_context> context, planner_work work);

/// Errors: infeasible, naming request positions, server and bytes, where KV rows of a request of
/// some access server can never be reserved under a residency.
result<void> check_kv_fits(const std::vector<planning::residency>& residence,
                           const std::vector<std::size_t>& most_positions, const cluster& servers,
                           const cost_profile& costs);

}  // namespace ordermoe::actors
