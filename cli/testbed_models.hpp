#pragma once

#include <CLI/CLI.hpp>

namespace ordermoe::cli {

/// `ordermoe testbed models`.
void add_model_comparison(CLI::App& parent);

}  // namespace ordermoe::cli
