#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "config/error.hpp"

/// Manual pages, from the same tree of subcommands and options that is parsed and that --help prints.
namespace ordermoe::cli {

/// In roff, with the macros of man(7): of the program itself, or of one of its subcommands, whose
/// own subcommands it has too. `date` is as in 2026-11-23.
std::string manual_page(const CLI::App& command, const std::string& date);

/// ordermoe.1 and one page for each subcommand, into a folder that is there or is made. Their date is
/// that of SOURCE_DATE_EPOCH, else today's. Error: io, usage.
result<void> write_manual(const CLI::App& app, const std::filesystem::path& folder);

}  // namespace ordermoe::cli
