#include "cli/manual.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/option_tree.hpp"
#include "config/files.hpp"
#include "ordermoe_version.hpp"

namespace ordermoe::cli {

namespace {

// --------------------------------------------------------------------------------------------- roff

/// Nothing of it means anything to roff, and hyphens can be copied into a shell.
std::string plain(std::string_view text) {
  std::string made;
  for (const char each : text) switch (each) {
      case '\\':
        made += "\\e";
        break;
      case '-':
        made += "\\-";
        break;
      case '\'':
        made += "\\(aq";
        break;
      case '`':
        made += "\\(ga";
        break;
      case '^':
        made += "\\(ha";
        break;
      case '~':
        made += "\\(ti";
        break;
      default:
        made += each;
    }
  return made;
}

std::string bold(std::string_view text) {
  return "\\fB" + plain(text) + "\\fR";
}

std::string italic(std::string_view text) {
  return "\\fI" + plain(text) + "\\fR";
}

/// Text with `code` between backticks, as our help has it.
std::string prose(std::string_view text) {
  std::string made;
  while (!text.empty()) {
    const auto begin = text.find('`');
    const auto end = begin == text.npos ? text.npos : text.find('`', begin + 1);
    if (end == text.npos) return made + plain(text);
    made += plain(text.substr(0, begin)) + bold(text.substr(begin + 1, end - begin - 1));
    text.remove_prefix(end + 1);
  }
  return made;
}

/// In lines of their own: sentences, and what is longer than a line. None is taken for a request.
std::string filled(const std::string& roff) {
  constexpr std::size_t longest = 78;
  std::string made, line;
  const auto end_line = [&] {
    if (line.empty()) return;
    made += (line[0] == '.' ? "\\&" : "") + line + "\n";
    line.clear();
  };
  std::istringstream words(roff);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > longest) end_line();
    line += (line.empty() ? "" : " ") + word;
    if (word.ends_with('.')) end_line();
  }
  end_line();
  return made;
}

std::string code_block(const std::vector<std::string>& lines) {
  std::string made = ".PP\n.RS 4\n.EX\n";
  for (const auto& line : lines) made += (line.starts_with('.') ? "\\&" : "") + plain(line) + "\n";
  return made + ".EE\n.RE\n";
}

std::string sentence(std::string text) {
  if (!text.empty() && !text.ends_with('.')) text += '.';
  return text;
}

// ------------------------------------------------------------------------------- what a command says

/// "ordermoe cluster up".
std::string path_of(const CLI::App& command) {
  if (command.get_parent() == nullptr) return "ordermoe";
  return path_of(*command.get_parent()) + " " + command.get_name();
}

struct footer_parts {
  std::string text;
  std::vector<std::pair<std::string, std::vector<std::string>>> examples;  ///< When, and lines.
};

/// A footer is prose, and "Example:" or "Examples, after this:" with what to type indented by two.
footer_parts parts_of(const std::string& footer) {
  footer_parts made;
  bool in_example = false;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) {
      if (!in_example) made.examples.emplace_back();
      in_example = true;
      made.examples.back().second.push_back(line.substr(2));
      continue;
    }
    in_example = false;
    const auto at = line.ends_with(':') ? line.rfind("Example") : line.npos;
    made.text += line.substr(0, at) + "\n";
    if (at == line.npos) continue;
    const auto comma = line.find(", ", at);
    made.examples.emplace_back();
    in_example = true;
    if (comma == line.npos) continue;
    auto when = line.substr(comma + 2);
    when[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(when[0])));
    made.examples.back().first = when;
  }
  return made;
}

/// Behind text; right behind a heading there is no paragraph to begin.
std::string examples_of(const footer_parts& footer) {
  std::string made;
  for (const auto& [when, lines] : footer.examples) {
    if (!when.empty()) made += ".PP\n" + filled(prose(when));
    made += code_block(lines);
  }
  return made;
}

/// What people call a value of this kind.
std::string value_name(const CLI::Option& option) {
  const auto kind = value_of(option).kind;
  if (kind == "UINT" || kind == "INT") return "N";
  return kind == "FLOAT" ? "NUMBER" : kind;
}

std::string description_of(const CLI::Option& option) {
  const auto shape = value_of(option);
  auto text = sentence(prose(option.get_description()));
  if (!shape.choices.empty()) {
    std::vector<std::string> choices;
    for (const auto& each : shape.choices) choices.push_back(bold(each));
    text += fmt::format(" One of {}.", fmt::join(choices, ", "));
  }
  if (!shape.range.empty()) text += " From " + prose(shape.range) + ".";
  if (const auto value = option.get_default_str(); !value.empty() && most_values_of(option) > 0)
    text += " Default: " + plain(value) + ".";
  if (option.get_required()) text += " Required.";
  if (takes_many(option)) text += " May be given several times.";
  return text;
}

std::string names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back(bold("-" + name));
  for (const auto& name : option.get_lnames()) names.push_back(bold("--" + name));
  auto made = fmt::format("{}", fmt::join(names, ", "));
  if (most_values_of(option) > 0) made += " " + italic(value_name(option));
  return made;
}

enum class with_help { yes, no };

std::string options_text(const CLI::App& command, with_help with = with_help::yes) {
  std::string made;
  for (const auto* option : positionals_of(command))
    made += ".TP\n" + italic(option->get_name(true)) + "\n" + filled(description_of(*option));
  for (const auto* option : options_of(command))
    if (with == with_help::yes || option != command.get_help_ptr())
      made += ".TP\n" + names_of(*option) + "\n" + filled(description_of(*option));
  return made;
}

/// What has to be given, and that there is more.
std::string synopsis_of(const CLI::App& command) {
  auto made = bold(path_of(command));
  for (const auto* option : options_of(command))
    if (option->get_required())
      made += " " + bold(name_of(*option)) + " " + italic(value_name(*option));
  made += " [" + italic("OPTIONS") + "]";
  for (const auto* option : positionals_of(command)) {
    auto name = italic(option->get_name(true)) + (takes_many(*option) ? "..." : "");
    made += " " + (option->get_required() ? name : "[" + name + "]");
  }
  if (!subcommands_of(command).empty())
    made += command.get_require_subcommand_min() > 0 ? " " + italic("COMMAND")
                                                     : " [" + italic("COMMAND") + "]";
  return filled(made);
}

/// Below a page's own command: those that do something, with what they take.
std::string commands_text(const CLI::App& above) {
  std::string made;
  for (const auto* command : subcommands_of(above)) {
    if (const auto below = commands_text(*command); !below.empty()) {
      made += below;
      continue;
    }
    const auto footer = parts_of(command->get_footer());
    made += ".SS " + plain(path_of(*command)) + "\n" + synopsis_of(*command) + ".PP\n" +
            filled(sentence(prose(command->get_description())));
    // Verbs that take the options of what is above say no more than that, each.
    if (!command->get_fallthrough()) made += filled(prose(footer.text));
    made += options_text(*command, with_help::no) + examples_of(footer);
  }
  return made;
}

// --------------------------------------------------------------------------- what is of the program

constexpr std::pair<const char*, const char*> exit_codes[] = {
    {"0", "Done."},
    {"1", "Failed."},
    {"2", "Wrong usage, or input that is no good."},
    {"3", "What was asked for cannot be planned, as where a model fits nowhere."},
    {"130, 143", "Interrupted: by Ctrl-C, which ends it as SIGINT does, or by SIGTERM."}};

constexpr std::pair<const char*, const char*> environment[] = {
    {"ORDERMOE_DATA",
     "Folder of the bundled models, clusters, plans and texts; else share/ordermoe "
     "beside the program's folder."},
    {"ORDERMOE_LOG_LEVEL", "As `--log-level` of `ordermoe node`."},
    {"ORDERMOE_LOG_FORMAT", "As `--log-format`."},
    {"ORDERMOE_LOG_FILE", "As `--log-file`."},
    {"ORDERMOE_API_KEY", "Key that `ordermoe chat` shows; else `OPENAI_API_KEY`."},
    {"ORDERMOE_KERNELS",
     "Which instruction set to compute with, as portable; else the best that the "
     "processor has. Answers have the same bits."},
    {"ORDERMOE_TORCH_MODULE", "File of the module for training and LibTorch's devices."}};

std::string pairs_text(std::span<const std::pair<const char*, const char*>> pairs) {
  std::string made;
  for (const auto& [name, what] : pairs) made += ".TP\n" + bold(name) + "\n" + filled(prose(what));
  return made;
}

std::string page_name(const CLI::App& command) {
  return command.get_parent() == nullptr ? "ordermoe" : "ordermoe-" + command.get_name();
}

std::string references(const std::vector<const CLI::App*>& pages) {
  std::vector<std::string> names;
  for (const auto* page : pages) names.push_back(bold(page_name(*page)) + "(1)");
  return filled(fmt::format("{}", fmt::join(names, ", ")));
}

std::string beginning_of(const CLI::App& command, const std::string& date) {
  std::string title = page_name(command);
  for (char& each : title) each = static_cast<char>(std::toupper(static_cast<unsigned char>(each)));
  auto what = command.get_description();
  what[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(what[0])));
  if (what.ends_with('.')) what.pop_back();
  return fmt::format(
      ".\\\" Written by `ordermoe __manual`; change the help texts instead.\n"
      ".TH {} 1 {} \"OrderMoE {}\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\n{} \\- {}\n.SH "
      "SYNOPSIS\n{}",
      plain(title), date, version_string, plain(page_name(command)), prose(what),
      synopsis_of(command));
}

std::string program_page(const CLI::App& app, const std::string& date) {
  auto made = beginning_of(app, date) + ".SH DESCRIPTION\n" +
              filled(sentence(prose(app.get_description()))) +
              filled(prose("Each command has a page of its own, and `--help`.")) + ".SH COMMANDS\n";
  for (const auto* command : subcommands_of(app))
    made += ".TP\n" + bold(page_name(*command)) + "(1)\n" +
            filled(sentence(prose(command->get_description())));
  return made + ".SH OPTIONS\n" + options_text(app) + ".SH EXIT STATUS\n" + pairs_text(exit_codes) +
         ".SH ENVIRONMENT\n" + pairs_text(environment) + ".SH SEE ALSO\n" +
         references(subcommands_of(app));
}

std::string command_page(const CLI::App& command, const std::string& date) {
  const auto footer = parts_of(command.get_footer());
  auto made =
      beginning_of(command, date) + ".SH DESCRIPTION\n" +
      filled(sentence(prose(command.get_description()))) +
      (subcommands_of(command).empty() || !footer.examples.empty() ? filled(prose(footer.text))
                                                                   : std::string()) +
      ".SH OPTIONS\n" + options_text(command);
  if (const auto below = commands_text(command); !below.empty()) made += ".SH COMMANDS\n" + below;
  if (!footer.examples.empty())
    made += ".SH EXAMPLES\n" + examples_of(footer).substr(std::string_view(".PP\n").size());
  return made + ".SH SEE ALSO\n" + references({command.get_parent()});
}

result<std::string> date_of_pages() {
  auto seconds = std::time(nullptr);
  if (const char* told = std::getenv("SOURCE_DATE_EPOCH"); told != nullptr && *told != '\0') {
    const std::string_view text(told);
    const auto read = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (read.ec != std::errc{} || read.ptr != text.data() + text.size())
      return error{errc::usage, fmt::format("SOURCE_DATE_EPOCH: found '{}', expected seconds since "
                                            "1970",
                                            text)};
  }
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(seconds));
}

}  // namespace

std::string manual_page(const CLI::App& command, const std::string& date) {
  return command.get_parent() == nullptr ? program_page(command, date)
                                         : command_page(command, date);
}

result<void> write_manual(const CLI::App& app, const std::filesystem::path& folder) {
  const auto date = date_of_pages();
  if (!date) return date.error();
  std::error_code status;
  std::filesystem::create_directories(folder, status);
  if (status)
    return error{errc::io, fmt::format("{}: {}; name a folder that can be written", folder.string(),
                                       status.message())};
  auto pages = subcommands_of(app);
  pages.push_back(&app);
  for (const auto* command : pages)
    if (auto written =
            write_file(folder / (page_name(*command) + ".1"), manual_page(*command, *date));
        !written)
      return written;
  return {};
}

}  // namespace ordermoe::cli
