#include <fmt/format.h>
#include <histedit.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/admin_verbs.hpp"
#include "cli/common.hpp"
#include "cli/complete.hpp"
#include "cli/spelling.hpp"

// `ordermoe admin`: an operator's console. It is a client of one node (or of the one that a verb names), whose admin
// actor does the work. Here are the command and the lines that somebody types; the verbs are in admin_verbs, what they
// print in admin_tables, the connections in admin_session.

namespace ordermoe::cli {

namespace {

constexpr const char* dry_run_text = "Say what would be done, and do nothing";

/// The verbs of one line, which choose a body and do not run it.
struct typed_verbs {
  CLI::App app{"An operator's verbs", ""};
  command_body chosen;
  bool dry_run = false;

  explicit typed_verbs(const session_ptr& session) {
    app.require_subcommand(1);
    // Verbs inherit it when they are added: what follows one may be an option of all.
    app.fallthrough();
    app.add_flag("--dry-run", dry_run, dry_run_text);
    add_verbs(
        app, [session] { return session; },
        [this](CLI::App& command, command_body body) {
          command.callback([this, body = std::move(body)] { chosen = body; });
        });
    // Of whoever reads the lines; here so that they are listed and completed.
    app.add_subcommand("help", "These verbs");
    app.add_subcommand("quit", "End");
  }
  typed_verbs(const typed_verbs&) = delete;
  typed_verbs& operator=(const typed_verbs&) = delete;
};

/// The last is empty where a blank is before the cursor.
std::vector<std::string> words_of(const std::string& typed) {
  std::istringstream text(typed);
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  if (typed.empty() || typed.back() == ' ') words.emplace_back();
  return words;
}

/// Lines with history and completion where somebody types them.
class line_reader {
 public:
  line_reader() : typed_(::isatty(STDIN_FILENO) != 0) {
    if (!typed_) return;
    edit_ = el_init("ordermoe", stdin, stdout, stderr);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, 500);
    el_set(edit_, EL_PROMPT, &line_reader::prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_ADDFN, "complete", "Complete a verb", &line_reader::complete);
    el_set(edit_, EL_BIND, "^I", "complete", nullptr);
  }
  ~line_reader() {
    if (!typed_) return;
    history_end(history_);
    el_end(edit_);
  }
  line_reader(const line_reader&) = delete;
  line_reader& operator=(const line_reader&) = delete;

  /// Whether somebody is there to read what is wrong with a line.
  bool is_typed() const { return typed_; }

  bool next(std::string& line) {
    if (!typed_) return static_cast<bool>(std::getline(std::cin, line));
    int n = 0;
    const char* text = el_gets(edit_, &n);
    if (text == nullptr || n <= 0) return false;
    line.assign(text, static_cast<std::size_t>(n));
    HistEvent event;
    if (line.find_first_not_of(" \t\n") != std::string::npos)
      history(history_, &event, H_ENTER, text);
    return true;
  }

 private:
  static char* prompt(EditLine*) {
    static char text[] = "ordermoe> ";
    return text;
  }

  /// What all words that may stand here begin with; where that is typed already, these words.
  static unsigned char complete(EditLine* edit, int) {
    const auto* info = el_line(edit);
    const auto words = words_of({info->buffer, info->cursor});
    const auto offered = cli::complete(typed_verbs(nullptr).app, words).words;
    if (offered.empty()) return CC_REFRESH_BEEP;
    auto rest = common_beginning(offered).substr(words.back().size());
    if (offered.size() == 1) rest += ' ';
    if (!rest.empty()) {
      el_insertstr(edit, rest.c_str());
      return CC_REFRESH;
    }
    fmt::print("\n");
    for (const auto& each : offered) fmt::print("  {:<16} {}\n", each.text, each.what);
    std::fflush(stdout);
    return CC_REDISPLAY;
  }

  static std::string common_beginning(const std::vector<completion::word>& offered) {
    auto common = offered.front().text;
    for (const auto& each : offered)
      common.erase(std::ranges::mismatch(common, each.text).in1, common.end());
    return common;
  }

  bool typed_;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
};

/// Runs one line. A line's --dry-run is its own, and not the next one's.
result<void> run_line(const session_ptr& session, bool all_dry_run, const std::string& line) {
  typed_verbs verbs(session);
  if (auto misspelt =
          check_spelling(verbs.app, CLI::detail::split_up(line), {"verb", "`help` lists them"}))
    return *misspelt;
  try {
    verbs.app.parse(line, false);
  } catch (const CLI::ParseError& problem) {
    if (problem.get_exit_code() != 0) return error{errc::usage, text_of(problem)};
    verbs.app.exit(problem, std::cout, std::cout);
    return {};
  }
  session->set_dry_run(all_dry_run || verbs.dry_run);
  if (!verbs.chosen) return error{errc::usage, "`help` and `quit` stand alone on a line"};
  return verbs.chosen();
}

/// On a terminal what is wrong with a line is said, and the next one follows; what nobody types ends with the first line that
/// fails.
result<void> talk(const session_ptr& session) {
  const bool all_dry_run = session->flags().dry_run;
  line_reader reader;
  std::string line;
  // A signal leaves half a line, which nobody gave.
  for (int n = 1; !stop_requested() && reader.next(line) && !stop_requested(); ++n) {
    const auto first = line.find_first_not_of(" \t\r\n");
    if (first == std::string::npos || line[first] == '#') continue;
    line = line.substr(first, line.find_last_not_of(" \t\r\n") + 1 - first);
    const auto verb = words_of(line).front();
    if (verb == "quit" || verb == "exit") break;
    const auto done = run_line(session, all_dry_run, verb == "help" ? "--help" : line);
    if (!done && !reader.is_typed()) return at(fmt::format("line {}", n), done.error());
    if (!done) fmt::print("error: {}\n", done.error().message);
    std::fflush(stdout);
  }
  if (stop_requested() && !reader.is_typed()) return error{errc::interrupted, "interrupted"};
  return {};
}

}  // namespace

void add_admin(CLI::App& app) {
  auto& command = *app.add_subcommand("admin", "Look at a running cluster and change it");
  auto flags = std::make_shared<admin_flags>();
  command.add_option("--dir", flags->folder, "Folder of the cluster, with its certificates")
      ->type_name(folder_value)
      ->capture_default_str();
  command.add_option("--node", flags->node, "Node to ask; default: the first that answers");
  command
      .add_option("--token-file", flags->token_file,
                  "File with a token of `token create`, whose role is had where it is more than "
                  "the certificate's")
      ->type_name(file_value);
  command.add_flag("--json", flags->json, "Print JSON on standard output");
  command.add_flag("--dry-run", flags->dry_run, dry_run_text);
  command.fallthrough();
  command.footer(
      "Without a verb it reads verbs line by line, with history and completion on a terminal. "
      "Lines that come from\n"
      "elsewhere end with the first that fails, by its exit code.\n"
      "Examples, after `ordermoe cluster up --dir edge`:\n"
      "  ordermoe admin --dir edge members\n"
      "  ordermoe admin --dir edge plan propose --strategy layer-shards\n"
      "  ordermoe admin --dir edge plan apply --drain-s 10\n"
      "  ordermoe admin --dir edge drain s2");
  auto session = [flags] { return std::make_shared<admin_session>(*flags); };
  add_verbs(command, session,
            [](CLI::App& verb, command_body body) { set_body(verb, std::move(body)); });
  // Called after that of a verb, which stands.
  command.final_callback([&command, flags] {
    if (command.get_subcommands().empty())
      set_chosen([flags] { return talk(std::make_shared<admin_session>(*flags)); });
  });
}

}  // namespace ordermoe::cli
