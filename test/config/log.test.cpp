#include "config/log.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "config/files.hpp"
#include "config/log_events.hpp"
#include "config/log_settings.hpp"

namespace ordermoe {

namespace {

/// The lines of docs/OPERATING.md's table of events: name to "level | fields".
std::map<std::string, std::string> documented() {
  const auto text = read_file(ORDERMOE_DATA "/../docs/OPERATING.md");
  BOOST_REQUIRE(text.has_value());
  std::istringstream lines(*text);
  std::string line;
  std::map<std::string, std::string> found;
  bool inside = false;
  while (std::getline(lines, line)) {
    if (line.starts_with("| event | level | fields |")) {
      inside = true;
      continue;
    }
    if (!inside || line.starts_with("|---")) continue;
    if (!line.starts_with('|')) break;
    std::vector<std::string> cells;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) {
      std::erase(cell, '`');
      const auto first = cell.find_first_not_of(' ');
      cells.push_back(first == std::string::npos
                          ? ""
                          : cell.substr(first, cell.find_last_not_of(' ') + 1 - first));
    }
    BOOST_REQUIRE_MESSAGE(cells.size() >= 4, line);
    BOOST_TEST(!cells[3].empty(), line);
    BOOST_TEST(found.emplace(cells[0], cells[1] + " | " + cells[2]).second, line);
  }
  return found;
}

log_choice choice(const char* level, const char* format, const char* file) {
  log_choice made;
  if (level != nullptr) made.level = level;
  if (format != nullptr) made.format = format;
  if (file != nullptr) made.file = file;
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(log)

BOOST_AUTO_TEST_CASE(every_event_stands_in_the_operators_table_and_nothing_else_does) {
  auto told = documented();
  std::set<std::string_view> names;
  for (const auto& each : log_events) {
    BOOST_TEST(names.insert(each.name).second, each.name);
    const auto found = told.extract(std::string(each.name));
    BOOST_TEST(!found.empty(), each.name);
    if (!found.empty())
      BOOST_TEST(found.mapped() == fmt::format("{} | {}", to_string(each.level), each.fields),
                 each.name);
  }
  for (const auto& [name, rest] : told) BOOST_ERROR("no event of the sources: " + name);
}

BOOST_AUTO_TEST_CASE(no_field_is_called_as_what_stands_before_a_record_or_numbers_an_event) {
  for (const auto& each : log_events)
    for (std::string_view rest = each.fields; !rest.empty();) {
      const auto end = std::min(rest.find(' '), rest.size());
      const auto field = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      for (const auto* taken : {"time", "level", "node", "event", "number", "time_s"})
        BOOST_TEST(field != taken, each.name);
    }
}

BOOST_AUTO_TEST_CASE(a_record_is_one_line_whatever_its_fields_hold) {
  const log_record plain{log_event::session_up, {{"peer", "lyon"}}};
  BOOST_TEST(text_of(plain) == "session.up peer=lyon");
  const log_record hostile{
      log_event::session_down,
      {{"peer", ""}, {"why", "a \"b\" c=d\\\n\x1b[31m\xff"}, {"n", 7u}, {"ok", true}, {"x", -0.5}}};
  const auto text = text_of(hostile);
  BOOST_TEST(text ==
             R"(session.down peer="" why="a \"b\" c=d\\\n\x1b[31m\xff" n=7 ok=true x=-0.5)");
  const auto json = "{" + json_members_of(hostile) + "}";
  for (const char c : json) BOOST_TEST((c >= ' ' && c < 0x7f));
  const auto read = nlohmann::json::parse(json);
  BOOST_TEST(read["event"] == "session.down");
  BOOST_TEST(read["n"] == 7);
  BOOST_TEST(read["ok"] == true);
  BOOST_TEST(read["x"] == -0.5);
  BOOST_TEST(read["why"].get<std::string>().starts_with("a \"b\" c=d\\\n\x1b[31m"));
}

BOOST_AUTO_TEST_CASE(what_is_below_the_level_is_not_told_and_copies_share_the_level) {
  std::vector<std::string> told;
  const log_outlet out([&](const log_record& record) { told.emplace_back(record.name()); });
  const auto copy = out;
  out.tell(log_event::client_came, {});
  out.tell(log_event::session_up, {});
  BOOST_TEST(told == std::vector<std::string>{"session.up"}, boost::test_tools::per_element());
  copy.set_least(log_level::debug);
  out.tell(log_event::client_came, {});
  BOOST_TEST(told.size() == 2u);
  copy.set_least(log_level::off);
  out.tell(log_event::plan_not_kept, {});
  BOOST_TEST(told.size() == 2u);
  BOOST_TEST((out.least() == log_level::off));
  const log_outlet nobody;
  nobody.tell(log_event::session_up, {});
  nobody.set_least(log_level::debug);
  BOOST_TEST(!nobody.takes(log_level::error));
}

BOOST_AUTO_TEST_CASE(a_flag_stands_before_the_environment_before_the_node_file) {
  const auto none = log_choice();
  const auto nothing = choose_log(none, none, none);
  BOOST_REQUIRE(nothing.has_value());
  BOOST_TEST((nothing->level == log_level::info && nothing->format == log_format::text));
  BOOST_TEST(nothing->file.empty());
  const auto file = choice("error", "json", "node.log");
  const auto all =
      choose_log(choice("debug", nullptr, nullptr), choice("warning", "text", nullptr), file);
  BOOST_REQUIRE(all.has_value());
  BOOST_TEST((all->level == log_level::debug));
  BOOST_TEST((all->format == log_format::text));
  BOOST_TEST(all->file == "node.log");
  const auto only_file = choose_log(none, none, file);
  BOOST_REQUIRE(only_file.has_value());
  BOOST_TEST((only_file->level == log_level::error && only_file->format == log_format::json));
}

BOOST_AUTO_TEST_CASE(a_choice_that_is_none_is_refused_by_the_name_of_its_source) {
  const std::map<std::string, std::string> variables{{"ORDERMOE_LOG_LEVEL", "loud"},
                                                     {"ORDERMOE_LOG_FORMAT", ""}};
  const auto environment = log_choice_of_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  BOOST_TEST(!environment.format.has_value());
  const auto refused = choose_log({}, environment, {});
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message ==
             "ORDERMOE_LOG_LEVEL: found 'loud', expected one of debug, info, warning, error, off; "
             "correct it");
  BOOST_TEST(!choose_log(choice(nullptr, "xml", nullptr), {}, {}).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
