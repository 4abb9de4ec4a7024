#include "cli/complete.hpp"

#include <algorithm>
#include <iterator>
#include <set>

#include "cli/option_tree.hpp"

namespace ordermoe::cli {

namespace {

/// Where a command line is: before its last word.
struct place {
  const CLI::App* command;
  std::set<const CLI::Option*> given;
  const CLI::Option* open = nullptr;  ///< The option that the next word is a value of.
  std::size_t open_values = 0;        ///< How many it has by now.
  std::size_t words = 0;              ///< Positional ones, of `command`.
  bool only_words = false;            ///< Behind `--`.
};

const CLI::App* find_subcommand(const CLI::App& command, const std::string& name) {
  for (const auto* below : subcommands_of(command))
    if (below->get_name() == name) return below;
  return nullptr;
}

bool begins_as_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-';
}

void pass_option(place& at, const std::string& word) {
  const auto equals = word.find('=');
  at.open = find_option(*at.command, word.substr(0, equals));
  if (at.open == nullptr) return;
  at.given.insert(at.open);
  at.open_values = 0;
  if (equals != std::string::npos || most_values_of(*at.open) == 0) at.open = nullptr;
}

void pass(place& at, const std::string& word) {
  if (at.only_words) {
    ++at.words;
  } else if (word == "--") {
    at.only_words = true;
    at.open = nullptr;
  } else if (begins_as_option(word)) {
    pass_option(at, word);
  } else if (at.open != nullptr) {
    if (++at.open_values >= most_values_of(*at.open)) at.open = nullptr;
  } else if (const auto* below = find_subcommand(*at.command, word); below != nullptr) {
    at.command = below;
    at.words = 0;
  } else {
    ++at.words;
  }
}

/// The first sentence or so: what a shell shows beside a word.
std::string one_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

void offer_value(completion& made, const CLI::Option& option, const std::string& typed,
                 const std::string& before = {}) {
  const auto shape = value_of(option);
  for (const auto& each : shape.choices)
    if (each.starts_with(typed)) made.words.push_back({before + each, ""});
  if (shape.kind == "FILE") made.also = completion::from_shell::files;
  if (shape.kind == "FOLDER") made.also = completion::from_shell::folders;
}

void offer_options(completion& made, const place& at, const std::string& typed) {
  for (const auto* option : options_in_reach(*at.command)) {
    const auto name = name_of(*option);
    if (!name.starts_with(typed) || (at.given.contains(option) && !takes_many(*option))) continue;
    made.words.push_back({name, one_line(option->get_description())});
  }
}

/// No option: a subcommand, or what stands for itself.
void offer_word(completion& made, const place& at, const std::string& typed) {
  if (at.words == 0)
    for (const auto* each : subcommands_of(*at.command))
      if (each->get_name().starts_with(typed))
        made.words.push_back({each->get_name(), one_line(each->get_description())});
  const auto known = positionals_of(*at.command);
  if (known.empty()) return;
  if (at.words < known.size())
    offer_value(made, *known[at.words], typed);
  else if (takes_many(*known.back()))
    offer_value(made, *known.back(), typed);
}

}  // namespace

completion complete(const CLI::App& app, const std::vector<std::string>& arguments) {
  completion made;
  if (arguments.empty()) return made;
  place at{&app, {}};
  std::for_each(arguments.begin(), std::prev(arguments.end()),
                [&](const std::string& word) { pass(at, word); });
  const auto& typed = arguments.back();
  if (at.only_words) {
    offer_word(made, at, typed);
  } else if (const auto equals = typed.find('=');
             begins_as_option(typed) && equals != std::string::npos) {
    if (const auto* option = find_option(*at.command, typed.substr(0, equals)))
      offer_value(made, *option, typed.substr(equals + 1), typed.substr(0, equals + 1));
  } else if (typed.starts_with('-')) {
    offer_options(made, at, typed);
  } else if (at.open != nullptr && (at.open_values == 0 || !typed.empty())) {
    offer_value(made, *at.open, typed);
  } else {
    offer_word(made, at, typed);
    if (made.words.empty() && made.also == completion::from_shell::nothing && typed.empty())
      offer_options(made, at, typed);
  }
  return made;
}

std::string text_of(const completion& offered) {
  using enum completion::from_shell;
  std::string text = offered.also == files     ? "files\n"
                     : offered.also == folders ? "folders\n"
                                               : "nothing\n";
  for (const auto& each : offered.words)
    text += each.what.empty() ? each.text + "\n" : each.text + "\t" + each.what + "\n";
  return text;
}

}  // namespace ordermoe::cli
