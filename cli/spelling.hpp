#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/error.hpp"

/// Names on the command line that nothing has, before anything else is said about it.
namespace ordermoe::cli {

/// The first argument that no subcommand or option has as its name, with the nearest that there is;
/// nothing where all are known. Error: usage.
std::optional<error> check_spelling(const CLI::App& app, const std::vector<std::string>& arguments);

/// Letters to insert, remove, replace or exchange with the next one.
std::size_t edit_distance(const std::string& a, const std::string& b);

}  // namespace ordermoe::cli
