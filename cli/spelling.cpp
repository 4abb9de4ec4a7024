#include "cli/spelling.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "cli/option_tree.hpp"

namespace ordermoe::cli {

namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : options_in_reach(app))
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : subcommands_of(app)) names.push_back(command->get_name());
  return names;
}

/// "admin members: ", as it was typed.
std::string place_of(const CLI::App& app) {
  std::string command = app.get_name();
  for (const auto* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent())
    command = parent->get_name().empty() ? command : parent->get_name() + " " + command;
  return command.empty() ? command : command + ": ";
}

std::string all_of(const std::vector<std::string>& known, const char* where_listed) {
  constexpr std::size_t most = 12;
  if (known.size() > most) return where_listed;
  return fmt::format("expected one of {}", fmt::join(known, ", "));
}

/// "did you mean exact?"; empty where none is near.
std::string guess(const std::string& found, const std::vector<std::string>& known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& name) { return edit_distance(found, name); });
  if (nearest == known.end() ||
      edit_distance(found, *nearest) > std::max<std::size_t>(1, found.size() / 3))
    return {};
  return fmt::format("did you mean {}?", *nearest);
}

error unknown(const CLI::App& app, const std::string& found, const char* kind,
              const std::vector<std::string>& known, const char* where_listed) {
  const auto guessed = guess(found, known);
  return {errc::usage, fmt::format("{}unknown {} '{}'; {}", place_of(app), kind, found,
                                   guessed.empty() ? all_of(known, where_listed) : guessed)};
}

bool is_option(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-' &&
         (argument[1] == '-' || std::isalpha(static_cast<unsigned char>(argument[1])) != 0);
}

}  // namespace

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> steps(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        steps[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      steps[i][j] = std::min(
          {steps[i - 1][j] + 1, steps[i][j - 1] + 1, steps[i - 1][j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        steps[i][j] = std::min(steps[i][j], steps[i - 2][j - 2] + 1);
    }
  return steps[a.size()][b.size()];
}

std::string nearest_of(const std::string& found, const std::vector<std::string>& known) {
  const auto guessed = guess(found, known);
  return guessed.empty() ? fmt::format("expected one of {}", fmt::join(known, ", ")) : guessed;
}

std::optional<error> check_spelling(const CLI::App& app, const std::vector<std::string>& arguments,
                                    const spelling_words& words) {
  const auto* command = &app;
  std::size_t values_left = 0;
  bool asks_for_text = false;
  for (const auto& argument : arguments) {
    if (argument == "--") return std::nullopt;
    if (is_option(argument)) {
      const auto equals = argument.find('=');
      const auto name = argument.substr(0, equals);
      const auto* option = find_option(*command, name);
      if (option == nullptr)
        return unknown(*command, name, "option", option_names(*command), "--help lists them");
      asks_for_text |= name == "--help" || name == "-h" || name == "--version";
      values_left = equals == std::string::npos ? most_values_of(*option) : 0;
    } else if (values_left > 0) {
      --values_left;
    } else if (const auto names = subcommand_names(*command); !names.empty()) {
      if (std::ranges::find(names, argument) == names.end())
        return unknown(*command, argument, words.subcommand, names, words.where_listed);
      command = command->get_subcommand(argument);
    } else if (positionals_of(*command).empty()) {
      return error{errc::usage,
                   fmt::format("{}: found '{}' where an option was expected; give it to the option "
                               "that it belongs to, or remove it",
                               command->get_name(), argument)};
    }
  }
  if (asks_for_text || command->get_require_subcommand_min() == 0) return std::nullopt;
  return error{errc::usage,
               fmt::format("{}a {} is missing; {}", place_of(*command), words.subcommand,
                           all_of(subcommand_names(*command), words.where_listed))};
}

}  // namespace ordermoe::cli
