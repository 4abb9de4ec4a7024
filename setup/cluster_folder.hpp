#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/node_file.hpp"
#include "net/channel/tls.hpp"

/// A folder with everything that the nodes of a cluster on this machine need:
///
///   cluster.toml, plan.json, profile.json     the same for all
///   certificates/                             of the nodes and of the console (`ordermoe cert`)
///   nodes/NAME/node.toml                      `ordermoe node --config` starts it
///   nodes/NAME/log, pid, state/, trace.jsonl  what comes of that
namespace ordermoe::setup {

struct cluster_folder {
  std::filesystem::path path;

  std::filesystem::path cluster() const { return path / "cluster.toml"; }
  std::filesystem::path plan() const { return path / "plan.json"; }
  std::filesystem::path profile() const { return path / "profile.json"; }
  std::filesystem::path certificates() const { return path / "certificates"; }
  std::filesystem::path node(const std::string& name) const { return path / "nodes" / name; }
  std::filesystem::path config(const std::string& name) const { return node(name) / "node.toml"; }
  std::filesystem::path log(const std::string& name) const { return node(name) / "log"; }
  std::filesystem::path pid(const std::string& name) const { return node(name) / "pid"; }
};

/// In a node's state folder: who belongs to the cluster, as it last heard (actors/admin/member_roll.hpp).
inline constexpr const char* members_file = "members.json";
/// The name of the certificate that commands on this machine use.
inline constexpr const char* console_name = "console";
/// Its files. Errors: those of tls_identity::load.
result<std::shared_ptr<const net::tls_identity>> console_identity(const cluster_folder& folder);

struct cluster_folder_contents {
  cluster servers;
  std::string plan, profile;  ///< Texts of the files.
  std::filesystem::path model;
  std::string costs, kv_precision = "bf16", channel = "asio";
  std::vector<std::string> addresses;  ///< [n_servers] where each listens.
  /// [n_servers][n_servers] where one dials another; empty: where that listens.
  std::vector<std::vector<std::string>> dialled;
  std::set<std::string> spares;  ///< Servers that are no members until they are added.
  std::size_t threads = 1;       ///< Of each node.
  std::uint32_t most_positions = 0;
  bool trace = false;
  double load_period_ms = node_file{}.load_period_ms;
  double busy_poll_us = node_file{}.busy_poll_us;
  bool measures_links = true;
  std::optional<rehearsal> rehearsed;
  log_choice log;  ///< Of every node; no file.
};

/// Makes the folder, with new certificates. Errors: usage where there is a cluster in it already; io; those of
/// certificates, as for a server whose name no certificate can have.
result<void> write_cluster_folder(const cluster_folder& folder,
                                  const cluster_folder_contents& contents);

/// The names of servers that are no members: as the nodes of these files last heard, or as the files say.
result<std::set<std::string>> absent_members(const std::vector<node_file>& files);

/// What each node was told, by server. Error: not_found where there is no cluster.
result<std::vector<node_file>> read_cluster_folder(const cluster_folder& folder);

}  // namespace ordermoe::setup
