#pragma once

#include <functional>

#include "config/error.hpp"
#include "config/log.hpp"
#include "config/node_file.hpp"

/// The plan in force, where a host has none or another one: from the members of its node.toml (actors/cluster/plan_fetch.hpp)
/// to the files that node.toml names.
namespace ordermoe::setup {

/// Whether there is no plan, or no profile, where node.toml says: the node cannot start before it has fetched them.
bool lacks_plan(const node_file& file);

struct joining_ways {
  bool once = false;  ///< One round; else until there is a plan.
  log_outlet log;
  std::function<bool()> pause;  ///< Asked often; true: give up.
};

/// Fetches them, checks them as a node that starts does, and writes them, the plan last; whether anything was written. What is
/// on its way stays in `state/joining`. Errors: those of place_node and actors::fetch_plan; mismatch, where what came is for
/// another model, cluster file or charges, naming who sent it and what to do; io.
result<bool> fetch_plan(const node_file& file, const joining_ways& how);

}  // namespace ordermoe::setup
