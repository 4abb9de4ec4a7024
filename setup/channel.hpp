#pragma once

#include <string>
#include <vector>

#include "config/node_file.hpp"
#include "net/channel/connections.hpp"
#include "net/channel/identity_keeper.hpp"

/// What carries the sessions of a cluster.
namespace ordermoe::setup {

/// `channel` as in a node file: for transport_options::carried_by.
net::connections_maker connections_of(const std::string& channel);

/// Whether what is revoked can be refused there.
net::revocation_use revocations_on(const std::string& channel);

/// As the nodes of a cluster's folder were told; where it has no node files, as on a console's host that has the
/// certificates alone, that of "asio".
net::connections_maker connections_of_folder(const std::string& folder);

/// What whoever chose their channel should know; empty: nothing.
std::vector<std::string> channel_warnings(const std::vector<node_file>& files);

}  // namespace ordermoe::setup
