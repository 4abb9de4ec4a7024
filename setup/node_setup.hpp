#pragma once

#include "actors/cluster/node.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "config/node_file.hpp"

/// From node.toml to a node that can start.
namespace ordermoe::setup {

/// Reads cluster, plan, profile and certificates, loads the experts that the plan places on this node, and counts this
/// start. Errors name the file, and what in it does not fit the others: a name that the cluster does not have, a member
/// too many or too few, a plan or profile of another model, a certificate of another name, weights that do not fit the
/// server's memory.
result<actors::node_options> prepare_node(const node_file& file, job& work);

}  // namespace ordermoe::setup
