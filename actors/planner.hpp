#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "actors/run_context.hpp"
#include "actors/strategies.hpp"

namespace ordermoe::actors {

struct push_plan {};  ///< From the run: put the strategy's plan in force everywhere.
using planner_actor = caf::typed_actor<caf::reacts_to<push_plan>>;

/// What a planner works on and where it says that every server is ready.
struct planner_work {
  planning::profile experts;
  strategy chosen;
  std::vector<edge_server_actor> servers;
  std::shared_ptr<std::atomic<std::size_t>> servers_ready;
};

/// One per cluster. Builds the selection tables of the plan, gives the plan its epoch and pushes
/// both to every server.
planner_actor spawn_planner(caf::actor_system& system, std::shared_ptr<const run_context> run,
                            planner_work work);

}  // namespace ordermoe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::push_plan)
