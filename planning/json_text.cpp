#include "planning/json_text.hpp"

#include <fmt/format.h>

namespace ordermoe::planning {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

bool is_plain_list(const ordered_json& content) {
  if (!content.is_array()) return false;
  for (const auto& entry : content)
    if (entry.is_structured()) return false;
  return true;
}

void write(std::string& text, const ordered_json& content, std::size_t depth) {
  if (!content.is_structured() || content.empty()) {
    text += content.dump(-1, ' ', false, json::error_handler_t::replace);
    return;
  }
  if (is_plain_list(content)) {
    text += '[';
    for (std::size_t i = 0; i < content.size(); ++i) {
      if (i > 0) text += ", ";
      text += content[i].dump(-1, ' ', false, json::error_handler_t::replace);
    }
    text += ']';
    return;
  }
  text += content.is_array() ? '[' : '{';
  bool first = true;
  for (const auto& [key, value] : content.items()) {
    text += first ? "\n" : ",\n";
    first = false;
    text.append(depth + 1, ' ');
    if (content.is_object()) text += json(key).dump() + ": ";
    write(text, value, depth + 1);
  }
  text += '\n';
  text.append(depth, ' ');
  text += content.is_array() ? ']' : '}';
}

}  // namespace

std::string json_text(const ordered_json& content) {
  std::string text;
  write(text, content, 0);
  text += '\n';
  return text;
}

result<std::unique_ptr<json_document>> parse_versioned(const std::string& text,
                                                       const std::string& place,
                                                       std::string_view format,
                                                       std::uint64_t version) {
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  if (const auto found = root.at("format").string(); found != format)
    root.at("format").refuse('"' + found + '"', fmt::format("\"{}\"", format), errc::malformed);
  if (const auto found = root.at("version").unsigned_integer(); found != version)
    root.at("version").refuse(std::to_string(found),
                              fmt::format("{}, the version that this program reads", version),
                              errc::unsupported);
  if (auto read = (*document)->outcome(); !read) return read.error();
  return document;
}

}  // namespace ordermoe::planning
