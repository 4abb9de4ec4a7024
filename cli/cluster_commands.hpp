#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "config/error.hpp"
#include "net/channel/tls.hpp"

/// What works with the nodes of a folder that `cluster up` made.
namespace ordermoe::cli {

/// cluster up, start, status and down.
void add_cluster_processes(CLI::App& parent);

/// cluster check.
void add_cluster_check(CLI::App& parent);

/// That a node's certificate is in force for so many seconds more; below 0: not any more.
std::string expiry_warning(const std::string& node, std::int64_t left_s);

/// Starts every node that does not run and waits until all serve; where one does not, those that it started are ended. Error:
/// usage where all run.
result<void> start_cluster(const std::string& path, bool json);

}  // namespace ordermoe::cli
