#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/error.hpp"

/// Names on the command line that nothing has, before anything else is said about it.
namespace ordermoe::cli {

/// What is said of the names that there are.
struct spelling_words {
  const char* subcommand = "subcommand";
  const char* where_listed = "--help lists them";
};

/// The first argument that no subcommand or option has as its name, with the nearest that there is, or that a subcommand is
/// missing; nothing where all are known. Error: usage.
std::optional<error> check_spelling(const CLI::App& app, const std::vector<std::string>& arguments,
                                    const spelling_words& words = {});

/// "did you mean exact?" where one of those is near, else "expected one of exact, paper".
std::string nearest_of(const std::string& found, const std::vector<std::string>& known);

/// Letters to insert, remove, replace or exchange with the next one.
std::size_t edit_distance(const std::string& a, const std::string& b);

}  // namespace ordermoe::cli
