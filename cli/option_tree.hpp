#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

/// What CLI11's tree of subcommands and options says, for those that describe it to shells and readers.
namespace ordermoe::cli {

/// Subcommands in the order of their registration.
std::vector<const CLI::App*> subcommands_of(const CLI::App& app);

/// With a name of their own, --help first; without positionals.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
/// Also those of the commands above whose options `app` takes.
std::vector<const CLI::Option*> options_in_reach(const CLI::App& app);
/// By a name as it is typed, "--model" or "-h", of those in reach; nullptr where there is none.
const CLI::Option* find_option(const CLI::App& app, const std::string& name);
std::vector<const CLI::Option*> positionals_of(const CLI::App& app);

/// "--model", or "-h" where an option has no long name.
std::string name_of(const CLI::Option& option);

/// Of an option's value. Flags have none.
struct value_shape {
  std::string kind;                  ///< FILE, FOLDER, TEXT, UINT...
  std::vector<std::string> choices;  ///< All that there are, where that is known.
  std::string range;                 ///< As in "0 to 1024".
};
value_shape value_of(const CLI::Option& option);
/// How many words may follow it at most; 0 for flags.
std::size_t most_values_of(const CLI::Option& option);
bool takes_many(const CLI::Option& option);

}  // namespace ordermoe::cli
