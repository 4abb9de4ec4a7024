#pragma once

#include <CLI/CLI.hpp>

/// Subcommands of `ordermoe model` that have a file of their own.
namespace ordermoe::cli {

void add_shard(CLI::App& parent);

}  // namespace ordermoe::cli
