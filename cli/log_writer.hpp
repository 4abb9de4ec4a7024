#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "config/error.hpp"
#include "config/log.hpp"
#include "config/log_settings.hpp"

/// Writes what a process tells of itself: a line each, as text or JSON, to standard error or to the end of a file. The one
/// place that knows spdlog.
namespace ordermoe::cli {

/// `node`: whose process it is, in every line. Each line is written before the call that told it returns. Error: io, where
/// the file cannot be opened.
result<log_outlet> open_log(const log_settings& settings, const std::string& node);

/// The same, as flags, the environment and a node's file say. Error: also usage, naming which of them says what is none.
result<log_outlet> open_log_as_told(const log_choice& flags, const log_choice& file,
                                    const std::string& node);

/// --log-level, --log-format and --log-file.
void add_log_flags(CLI::App& command, log_choice& flags, bool with_file = true);

}  // namespace ordermoe::cli
