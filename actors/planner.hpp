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
  /// In a node of a cluster, the model with these experts, which from then on are those that it has; empty: plans change
  /// none.
  std::function<result<std::shared_ptr<const model::transformer>>(
      std::uint64_t change, const std::function<bool(layer_id layer, expert_id expert)>& hosts)>
      load;
};

/// One per cluster. Builds the selection tables, gives each plan its epoch and pushes both to every
/// server; plans anew when the operator orders it or the monitor proposes it. Requests begin all the while where both plans
/// fit into every server's memory.
///
///   idle --push_plan--> installing --all servers have it--> steady
///
///   steady --order or proposal--> [plan: refused?] --yes--> steady, the plan in force stays
///                       no |                | and both plans do not fit together
///                          |            draining: every server holds admission and answers when no request of its
///                          |                |     users is in flight
///                         moving: expert weights travel (weights_to_move)
///                          |
///                         installing: servers have the new plan beside the one in force, and say so
///                          |
///                         installed --> beginning: requests begin under the new plan; held ones, too, once all say so
///                          |
///                         ending: servers say when none of their users' requests is under the plan before
///                          |
///                         retiring: servers let the plan before go, once nothing is under it, and say so
///                          |
///                         steady
///
/// So a request has one plan from its beginning to its end, every server has that plan as long as anybody waits for something
/// of the request, and no server has a third.
///
/// A policy changes at any time: the tables of decisions to come differ, under both plans. Steps of eq. (45) are such
/// changes, and so are orders.
///
/// In a node of a cluster all planners change together, each for its own server, step by step as the admin says
/// (plan_step): prepare builds tables and loads what is new beside what is there, all in `steady`; hold drains, where both do
/// not fit; install reads the rest in that case; after `installed` it waits for commit, in `ending` for retire; abort leads
/// back to `steady` from anywhere before the commit. Others may have come back sooner: what they ask of experts that made room
/// for the next plan's waits (install_plans::lacks_under). Where these cannot be read back it is tried again every few seconds, and
/// no request begins here, nor another change, until they are. Requests that are in flight, or under the plan before, longer than the
/// change allows end by name.
///
/// Refused, with the reason told to the recorder: no feasible plan; KV rows of the longest request would
/// never fit; a proposal whose plan is not cheaper by the margin; the plan in force; a policy that no
/// tables can be built for; draining or installing that takes longer than a request may. An order that comes
/// meanwhile waits; a proposal is answered plan_kept. A server that does not do its part within the
/// time of a request, once requests begin under the new plan, is told to the recorder as a problem; the others go on.
planner_actor spawn_planner(caf::actor_system& system,
                            std::shared_ptr<const service_context> context, planner_work work);

/// Of the plan that a service begins with: 1, but for nodes, which start at different times and go by the plan that they were
/// given last.
std::uint64_t first_epoch(const planning::plan& plan, const service_context& context);

/// Errors: infeasible, naming request positions, server and bytes, where KV rows of a request of
/// some access server can never be reserved under a residency.
result<void> check_kv_fits(const std::vector<planning::residency>& residence,
                           const std::vector<std::size_t>& most_positions, const cluster& servers,
                           const cost_profile& costs);

}  // namespace ordermoe::actors
