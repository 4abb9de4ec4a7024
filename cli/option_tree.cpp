#include "cli/option_tree.hpp"

namespace ordermoe::cli {

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->nonpositional(); });
}

std::vector<const CLI::Option*> options_in_reach(const CLI::App& app) {
  auto all = options_of(app);
  for (const auto* below = &app; below->get_fallthrough() && below->get_parent() != nullptr;
       below = below->get_parent())
    for (const auto* option : options_of(*below->get_parent()))
      if (app.get_option_no_throw(name_of(*option)) == nullptr) all.push_back(option);
  return all;
}

const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  for (const auto* option : options_in_reach(app))
    if (option->check_name(name)) return option;
  return nullptr;
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::string name_of(const CLI::Option& option) {
  if (!option.get_lnames().empty()) return "--" + option.get_lnames().front();
  return "-" + option.get_snames().front();
}

value_shape value_of(const CLI::Option& option) {
  if (most_values_of(option) == 0) return {};
  // As CLI11 writes it into the help: kind, and what each check says of itself behind a colon.
  const auto text = option.get_type_name();
  value_shape made;
  auto end = text.find(':');
  made.kind = text.substr(0, end);
  while (end != std::string::npos) {
    const auto begin = end + 1;
    end = text.find(':', begin);
    const auto check = text.substr(begin, end == std::string::npos ? end : end - begin);
    if (check.starts_with('{') && check.ends_with('}'))
      made.choices = CLI::detail::split(check.substr(1, check.size() - 2), ',');
    else
      made.range = check;
  }
  return made;
}

std::size_t most_values_of(const CLI::Option& option) {
  const auto most = option.get_items_expected_max();
  return most <= 0 ? 0 : static_cast<std::size_t>(most);
}

bool takes_many(const CLI::Option& option) {
  return option.get_items_expected_max() >= CLI::detail::expected_max_vector_size;
}

}  // namespace ordermoe::cli
