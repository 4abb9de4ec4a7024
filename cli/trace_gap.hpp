#pragma once

#include <CLI/CLI.hpp>

namespace ordermoe::cli {

/// `trace gap`: what decisions were and what they could have been.
void add_trace_gap(CLI::App& parent);

}  // namespace ordermoe::cli
