#pragma once

#include <CLI/CLI.hpp>
#include <optional>

/// Words that no user types: shells and packages do.
namespace ordermoe::cli {

/// `__complete WORDS...` and `__manual FOLDER`: the exit code; nothing where the command line is another.
std::optional<int> answer_shell(const CLI::App& app, int argc, char** argv);

}  // namespace ordermoe::cli
