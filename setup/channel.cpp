#include "setup/channel.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "actors/caf_channel/caf_connections.hpp"
#include "net/channel/tls_connections.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::setup {

net::connections_maker connections_of(const std::string& channel) {
  if (channel == "caf") return actors::caf_connections;
  return net::tls_connections;
}

net::revocation_use revocations_on(const std::string& channel) {
  return channel == "caf" ? net::revocation_use::impossible : net::revocation_use::honoured;
}

net::connections_maker connections_of_folder(const std::string& folder) {
  const auto files = read_cluster_folder({folder});
  return connections_of(files && !files->empty() ? files->front().channel : "asio");
}

std::vector<std::string> channel_warnings(const std::vector<node_file>& files) {
  std::vector<std::string> warnings;
  if (std::ranges::find(files, "caf", &node_file::channel) == files.end()) return warnings;
  warnings.push_back(
      "channel caf: CAF tells nobody whose certificate a peer has, so every holder of a "
      "certificate "
      "of the cluster can pass for any node or client, and anybody who reaches the port can end a "
      "node; what is revoked cannot be refused, so that no node takes a list of it, and renewed "
      "certificates are used after a restart; "
      "let a firewall admit the cluster's hosts alone, or use asio (docs/OPERATING.md)");
  return warnings;
}

}  // namespace ordermoe::setup
