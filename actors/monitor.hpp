#pragma once

#include <memory>

#include "actors/context.hpp"
#include "actors/protocol/changes.hpp"

namespace ordermoe::actors {

/// One per cluster, where it is asked for. Measures and proposes; the planner decides.
///
///   load_report, link_load  -> recent waits of servers, recent use and waits of links
///   activation_report       -> counts of what routers chose for decoded rows, which fade with time; every
///                              `least_rows` rows, where as many count, the plan's expected cost under them is compared with that under the
///                              profile in force: off by more than `drift_margin` ->
///                              propose_replan, and silence until the planner answers
///   request_report          -> budget use and delay; each full window -> change_weights, eq. (45)
///   status_query            -> what was measured so far
///
/// Nothing here is on a token's path. Reports are messages of the control plane: like the
/// planner's, they take no time on emulated links and are not counted as traffic.
monitor_actor spawn_monitor(caf::actor_system& system,
                            std::shared_ptr<const service_context> context,
                            const monitor_options& options);

}  // namespace ordermoe::actors
