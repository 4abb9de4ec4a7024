#pragma once

#include <memory>

#include "actors/context.hpp"
#include "actors/token_meter.hpp"

/// What an operator sees of a running cluster and changes in it. Every node has an admin; whoever is connected to a node
/// asks that one, and it asks the others where that takes all of them.
///
/// An order is a JSON text {"ref", "verb", "arguments", "dry_run", "token", "by_token_alone"}; its reply {"ref", "result"}, where
/// something changes with "operation", "epoch_before" and "epoch_after", or {"ref", "problem": {"code", "message", "lacks"}}, with
/// "lacks" ("token" or "role") where another bearer might be heard.
///
///   verb             role      arguments                      what
///   status           viewer                                   a line for each node, who is asked all at once
///   topology         viewer                                   servers, links as stated and as each node found them
///   peers            viewer                                   this node's sessions with the others
///   experts          viewer    layer, server                  which servers host which
///   members          viewer                                   servers, who is connected, plan and policy in force
///   requests.list    viewer                                   of this node's users
///   requests.show    viewer    request                        and its memory here
///   plan.show        viewer                                   the plan in force
///   plan.diff        viewer    proposal                       experts that servers gain and lose
///   plan.history     viewer                                   changes, and why some were refused
///   policy.get       viewer
///   log.level        viewer
///   events           viewer    since                          what happened here, numbered
///   log.set_level    operator  level                          of this node, until it ends
///   token.list       admin                                    no secrets
///   token.create     admin     name, role, for_s              the reply has the secret, this once
///   token.revoke     admin     name                           at all nodes
///   audit            admin                                    who ordered what, and what came of it
///   cert.show        viewer                                   this node's certificate, and what it takes as revoked
///   cert.reload      admin     revocations                    reads certificate, key and list of what is revoked anew;
///                                                             a newer list (PEM) is taken by all nodes
///   requests.cancel  operator  request
///   drain, resume    operator                                 this node takes no requests of users, or does again
///   members.add      admin     name, address                  a server of the cluster file is a member from now on
///   members.remove   admin     name, lost                     one that hosts nothing is none any more (member_roll.hpp); lost: one
///                                                             that does not come back, whatever it hosts
///   drift            viewer                                   what routers choose, at all nodes, beside what the plan was
///                                                             made for
///   plan.propose     operator  strategy, steps, seed,         a plan by what is known now, with measured by what routers
///                              without, measured              chose lately; nothing changes. It places nothing on servers of
///                                                             the names in without, or that are no members. Not while a
///                                                             change of plan is under way
///   plan.apply       admin     proposal, drain_s              all servers go over to it, or none
///   plan.abort       admin                                    ends a change that is not committed
///   policy.set       admin     policy (members to change)     on all servers
///
/// `token`, where it is there, is the secret of a token (tokens.hpp), by whose role the order counts where that is more than
/// the certificate's. With `by_token_alone` it counts by the token's role whatever the certificate's, and not without a token:
/// so orders come that a gateway hands on for others, who have no certificate. Their replies name the token and its role ("bearer").
///
/// Admins say to each other: parts of a change of plan; {"ask", "of"}, answered by {"told", "report"}, for what is asked of the
/// whole cluster (how each does, or what its routers chose); and {"policy"} and {"tokens"} when one changes and when a server is connected again.
///
/// A change of plan is made by the rules of planning/serving/plan_change.hpp: weights are loaded while requests are
/// answered; then new ones begin under the new plan, and those before end under theirs, at most drain_s seconds later by
/// name. Where a server has no room for the experts of both, new requests wait until those in flight have ended.
namespace ordermoe::actors {

struct admin_work {
  std::shared_ptr<const service_context> context;  ///< With a seat.
  planner_actor planner;
  edge_server_actor server;
  selector_actor selector;
  recorder_actor recorder;
  monitor_actor monitor;
  std::shared_ptr<const token_meter> tokens;  ///< Of this server's users.
};

admin_actor spawn_admin(caf::actor_system& system, admin_work work);

}  // namespace ordermoe::actors
