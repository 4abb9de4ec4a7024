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

error unknown(const CLI::App& app, const std::string& found, const char* kind,
              const std::vector<std::string>& known) {
  const auto nearest = std::ranges::min_element(
      known, {}, [&](const std::string& name) { return edit_distance(found, name); });
  std::string remedy;
  if (nearest != known.end() &&
      edit_distance(found, *nearest) <= std::max<std::size_t>(1, found.size() / 3))
    remedy = fmt::format("did you mean {}?", *nearest);
  else if (known.size() <= 12)
    remedy = fmt::format("expected one of {}", fmt::join(known, ", "));
  else
    remedy = "--help lists them";
  std::string command = app.get_name();
  for (const auto* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent())
    command = parent->get_name().empty() ? command : parent->get_name() + " " + command;
  return {errc::usage, fmt::format("{}{}unknown {} '{}'; {}", command, command.empty() ? "" : ": ",
                                   kind, found, remedy)};
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

std::optional<error> check_spelling(const CLI::App& app,
                                    const std::vector<std::string>& arguments) {
  const auto* command = &app;
  std::size_t values_left = 0;
  for (const auto& argument : arguments) {
    if (argument == "--") return std::nullopt;
    if (is_option(argument)) {
      const auto equals = argument.find('=');
      const auto name = argument.substr(0, equals);
      const auto* option = find_option(*command, name);
      if (option == nullptr) return unknown(*command, name, "option", option_names(*command));
      values_left = equals == std::string::npos ? most_values_of(*option) : 0;
    } else if (values_left > 0) {
      --values_left;
    } else if (const auto names = subcommand_names(*command); !names.empty()) {
      if (std::ranges::find(names, argument) == names.end())
        return unknown(*command, argument, "subcommand", names);
      command = command->get_subcommand(argument);
    } else if (positionals_of(*command).empty()) {
      return error{errc::usage,
                   fmt::format("{}: found '{}' where an option was expected; give it to the option "
                               "that it belongs to, or remove it",
                               command->get_name(), argument)};
    }
  }
  return std::nullopt;
}

}  // namespace ordermoe::cli
