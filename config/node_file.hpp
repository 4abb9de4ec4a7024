#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/drift_watch.hpp"
#include "config/error.hpp"
#include "config/log_settings.hpp"
#include "config/rehearsal.hpp"

/// node.toml: what one process of a cluster is told (config/README.md has the schema).
namespace ordermoe {

struct node_member {
  std::string name;
  std::string address;  ///< HOST:PORT; empty: it dials, nobody dials it.
  bool spare = false;   ///< No member until an operator adds it.
};

struct node_file {
  std::string name;  ///< Of its server in the cluster file, and in its certificate.
  // Paths, as they are meant from the working directory:
  std::filesystem::path cluster, model, plan, profile;
  std::filesystem::path state;  ///< A folder of this node's own: counts its starts.
  std::filesystem::path authority, certificate, key;
  std::filesystem::path trace;  ///< Empty: none.
  std::vector<std::string> listen;
  std::string costs = "mixtral-8x7b";
  std::string kv_precision = "bf16";
  std::string device;  ///< What it computes on (devices.hpp); empty: what the cluster file says.
  std::string channel =
      "asio";  ///< What carries the sessions: "asio" or "caf"; all nodes have the same.
  std::size_t threads = 0;           ///< 0: the machine's.
  std::uint32_t most_positions = 0;  ///< Of a request; 0: twice the model's context.
  /// What is measured of the links goes into what is decided; else what the cluster file says stands.
  bool measures_links = true;
  std::vector<node_member> members;  ///< The other nodes.
  double load_period_ms = 5;         ///< Between looks whether waits changed; 0: none are told.
  /// How long the thread that reads the network looks for more at most before it sleeps, where that pays; 0: it sleeps.
  double busy_poll_us = 400;
  std::optional<rehearsal> rehearsed;
  drift_watch drift;
  log_choice log;  ///< `file` as it is meant from the working directory.
};

/// Relative paths count from the file's folder. Errors name file:line:column, what was found, what is expected and what
/// to do.
result<node_file> read_node_file(const std::filesystem::path& path);
/// As read_node_file reads it back; paths as they are.
std::string node_toml(const node_file& content);

}  // namespace ordermoe
