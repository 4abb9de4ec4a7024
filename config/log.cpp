#include "config/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "config/log_events.hpp"

namespace ordermoe {

namespace {

constexpr std::array level_names{"debug", "info", "warning", "error", "off"};

nlohmann::json json_of(const log_field::content& value) {
  return std::visit([](const auto& content) { return nlohmann::json(content); }, value);
}

bool is_plain(unsigned char c) {
  return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
}

/// As it is where a reader finds its end; else in quotes, with escapes for what would end a line or drive a terminal.
std::string quoted(const std::string& text) {
  if (!text.empty() && std::ranges::all_of(text, [](char c) { return is_plain(c); })) return text;
  std::string made = "\"";
  for (const char each : text) {
    const auto c = static_cast<unsigned char>(each);
    if (c == '"' || c == '\\')
      made += {'\\', each};
    else if (c == '\n')
      made += "\\n";
    else if (c < ' ' || c >= 0x7f)
      made += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else
      made += each;
  }
  return made + '"';
}

std::string dumped(const nlohmann::json& value) {
  return value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

const char* to_string(log_level of) {
  return level_names[static_cast<std::size_t>(of)];
}

std::optional<log_level> parse_log_level(std::string_view text) {
  const auto found = std::ranges::find(level_names, text);
  if (found == level_names.end()) return std::nullopt;
  return static_cast<log_level>(found - level_names.begin());
}

std::string_view log_record::name() const {
  return facts_of(event).name;
}
log_level log_record::level() const {
  return facts_of(event).level;
}

std::string text_of(const log_field& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
  return dumped(json_of(field.value));
}

std::string text_of(const log_record& record) {
  std::string line(record.name());
  for (const auto& each : record.fields)
    line += fmt::format(" {}={}", each.name, quoted(text_of(each)));
  return line;
}

std::string json_members_of(const log_record& record) {
  auto members = fmt::format("\"event\":{}", dumped(std::string(record.name())));
  for (const auto& each : record.fields)
    members += fmt::format(",{}:{}", dumped(each.name), dumped(json_of(each.value)));
  return members;
}

void log_outlet::tell(log_event event, std::vector<log_field> fields) const {
  if (takes(facts_of(event).level)) to_({event, std::move(fields)});
}

}  // namespace ordermoe
