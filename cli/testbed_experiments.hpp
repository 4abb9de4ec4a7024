#pragma once

#include <CLI/CLI.hpp>

namespace ordermoe::cli {

/// `ordermoe testbed NAME` of every experiment, and `all`.
void add_experiments(CLI::App& parent);

}  // namespace ordermoe::cli
