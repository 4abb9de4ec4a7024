#pragma once

#include <vector>

#include "config/error.hpp"
#include "config/node_file.hpp"

/// What the files of one cluster's nodes must be beside each other, looked at before any of them starts.
namespace ordermoe::setup {

/// Pairs of nodes of which neither can dial the other. Error: mismatch, naming the first and the remedy.
result<void> check_reach(const std::vector<node_file>& files);

/// What all nodes have alike: the channel, what is charged, how keys and values are kept, what is rehearsed, and how fast
/// what routers chose fades (nodes' counts are added up). Error: mismatch, naming what differs, two nodes and what each of them has.
result<void> check_alike(const std::vector<node_file>& files);

}  // namespace ordermoe::setup
