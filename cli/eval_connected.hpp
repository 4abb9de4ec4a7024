#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/client.hpp"
#include "actors/service/runtime.hpp"
#include "config/error.hpp"
#include "setup/node_setup.hpp"

/// `eval --connect`: texts and problems that a running cluster scores.
namespace ordermoe::cli {

/// The nodes of a folder that can be asked from here.
class connected_cluster {
 public:
  /// Connects to the node at the address, and to every other of the folder that listens. Errors: those of
  /// connect_to for the first; the others are left out where they cannot be reached.
  static result<std::unique_ptr<connected_cluster>> connect(const std::string& address,
                                                            const std::string& folder);
  /// What the cluster runs. `model`: its folder here; empty: where the nodes have it.
  result<setup::cluster_outlook> look(const std::string& model) const;
  /// Answers all requests, each by the node of its access server where that can be asked and is not drained, some at once. Where
  /// every node was reached, executions are those of the whole cluster meanwhile. Errors: that of the first request that was
  /// not answered; failed where every node is drained; interrupted.
  result<actors::run_result> answer(const actors::run_setup& asked);

 private:
  /// Who takes requests of users of each server; says on stderr which are drained.
  result<std::vector<std::shared_ptr<actors::cluster_client>>> askers() const;
  /// Of all nodes, by kind; nothing where some cannot be asked.
  std::optional<serving::execution_counts> executions();

  std::vector<node_file> files_;
  std::shared_ptr<actors::cluster_client> first_;
  std::vector<std::shared_ptr<actors::cluster_client>> clients_;  ///< By server; null: not reached.
};

}  // namespace ordermoe::cli
