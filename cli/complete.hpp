#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

/// What may come next on a command line, for the completion functions of shells (cli/completion/). They know
/// nothing themselves: each asks `ordermoe __complete WORDS...`, so what is offered is what is parsed.
namespace ordermoe::cli {

struct completion {
  /// What fits besides `words`: nothing, or names that the shell knows better.
  enum class from_shell { nothing, files, folders };
  struct word {
    std::string text, what;  ///< `what` is one line.
  };
  from_shell also = from_shell::nothing;
  std::vector<word> words;
};

/// `arguments` are those behind the program's name; the last, empty where nothing of it is typed
/// yet, is the one to complete. A value in `--option=value` is offered together with its option.
completion complete(const CLI::App& app, const std::vector<std::string>& arguments);

/// For the shells' functions: `nothing`, `files` or `folders` in a line, then each word in one of its own, with what it
/// means behind a tab.
std::string text_of(const completion& offered);

}  // namespace ordermoe::cli
