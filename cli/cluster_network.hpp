#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/rehearsal.hpp"
#include "setup/cluster_folder.hpp"

/// `cluster up --netns`: every node in a network namespace of its own, with the rates and delays of the cluster file between
/// them, so that one machine rehearses hosts that are apart.
///
///   namespace of node i                                    bridge                        namespace of node j
///   node -- relay i-j (delays both ways) -- eth0, htb: a class for each other node -- ... -- eth0 -- node
///
/// Rates are the kernel's (htb, one class for each direction of each pair), delays a relay's (`ordermoe relay`, one for each
/// pair, in the namespace of the node that dials). Where a server has an uplink, its classes share one, and what comes in goes through
/// a token bucket (tbf) on the bridge's side. Commands reach the nodes over the bridge, at once, and unshaped but for that bucket.
namespace ordermoe::cli {

class cluster_network {
 public:
  /// Of this folder; made or not.
  explicit cluster_network(setup::cluster_folder folder);

  bool is_there() const;
  /// Fills in where each node listens and dials. Before the folder is written.
  void address(setup::cluster_folder_contents& contents) const;
  /// Makes namespaces, links and rates. Error: failed, with the command that failed and what it said; usage without root.
  /// In a rehearsal links are slower by its dilation, and wider by its stretch.
  result<void> make(const cluster& servers, const std::optional<rehearsal>& rehearsed) const;
  /// Starts the relays. Once the folder is written.
  result<void> start_relays(const cluster& servers,
                            const std::optional<rehearsal>& rehearsed) const;
  /// Ends the relays and takes everything away.
  void remove() const;
  /// What a command begins with to run in a node's namespace; empty without namespaces.
  std::vector<std::string> prefix(const std::string& node) const;

 private:
  /// What leaves node m for each other, and what comes in where it has an uplink; `near` is the bridge's end of its link. Rates are `faster` times
  /// those of the file.
  result<void> hold_to_rates(const cluster& servers, std::size_t m, const std::string& near,
                             double faster) const;
  std::string namespace_of(std::size_t m) const;
  std::string host_of(std::size_t m) const;
  std::filesystem::path list() const { return folder_.path / "namespaces"; }
  setup::cluster_folder folder_;
  std::string tag_;   ///< Names of this folder's namespaces and links begin with it.
  unsigned net_ = 0;  ///< Their addresses: 10.77.net_.0/24.
};

}  // namespace ordermoe::cli
