#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "actors/cluster/client.hpp"
#include "actors/cluster/remote_experts.hpp"
#include "config/error.hpp"

/// What commands do with a cluster that runs.
namespace ordermoe::cli {

/// --connect and --dir.
struct connection_flags {
  std::string address, folder;

  void add(CLI::App& command, const std::string& what);
  bool given() const { return !address.empty(); }
};

/// Error: usage where the address makes no sense; those of certificates and cluster_client::connect.
result<std::shared_ptr<actors::cluster_client>> connect_to(const std::string& address,
                                                           const std::string& folder);

/// Of an error of cluster_client::connect: where the two have certificates of different authorities, that the folder may be
/// another cluster's.
error explained(error problem);

/// A model whose experts run on a cluster.
struct connected_model {
  std::filesystem::path folder;  ///< Where what is no expert is read here.
  std::shared_ptr<const actors::remote_experts> experts;
};

/// `model`: the model's folder here; empty: where the nodes have it. Error: mismatch where the cluster serves another.
result<connected_model> connect_model(const connection_flags& flags, const std::string& model);

}  // namespace ordermoe::cli
