#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "config/error.hpp"
#include "net/channel/tls.hpp"

/// What works with the nodes of a folder that `cluster up` made.
namespace ordermoe::cli {

/// cluster up, start, status and down.
void add_cluster_processes(CLI::App& parent);

/// Starts every node and waits until all serve; where one does not, all are ended.
result<void> start_cluster(const std::string& path, bool json);

}  // namespace ordermoe::cli
