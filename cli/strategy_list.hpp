#pragma once

#include <CLI/CLI.hpp>

namespace ordermoe::cli {

/// `testbed strategies`: what there is to compare.
void add_strategy_list(CLI::App& parent);

}  // namespace ordermoe::cli
