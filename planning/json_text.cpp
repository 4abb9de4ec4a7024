#include "planning/json_text.hpp"

#include <fmt/format.h>

#include <limits>

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

/// What a message shows of a value that should not be there.
std::string summary(const json& value) {
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (value.is_object()) return "an object";
  auto text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return text;
}

}  // namespace

std::string json_text(const ordered_json& content) {
  std::string text;
  write(text, content, 0);
  text += '\n';
  return text;
}

result<json_document> json_document::parse(const std::string& text, const std::string& place,
                                           std::string_view format, std::uint64_t version) {
  json_document document;
  document.place_ = place;
  try {
    document.content_ = json::parse(text);
  } catch (const json::exception& problem) {
    return error{errc::malformed,
                 fmt::format("{}: {}; expected a whole JSON document", place, problem.what())};
  }
  const auto root = document.root();
  if (const auto found = root["format"].text(); !document.problem_ && found != format)
    root["format"].fail(errc::malformed, fmt::format("\"{}\"", format));
  if (const auto found = root["version"].count(); !document.problem_ && found != version)
    root["version"].fail(errc::unsupported,
                         fmt::format("{}, the version that this program reads", version));
  if (document.problem_) return *document.problem_;
  return document;
}

json_document::view json_document::view::operator[](const char* key) const {
  auto path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  if (node_ == nullptr) return {*document_, nullptr, std::move(path)};
  if (!node_->is_object()) {
    fail(errc::malformed, "an object");
    return {*document_, nullptr, std::move(path)};
  }
  const auto entry = node_->find(key);
  if (entry == node_->end()) {
    if (!document_->problem_)
      document_->problem_ =
          error{errc::malformed,
                fmt::format("{}: {}: found nothing, expected a value", document_->place_, path)};
    return {*document_, nullptr, std::move(path)};
  }
  return {*document_, &*entry, std::move(path)};
}

json_document::view json_document::view::operator[](std::size_t index) const {
  auto path = fmt::format("{}[{}]", path_, index);
  if (node_ == nullptr || index >= size()) return {*document_, nullptr, std::move(path)};
  return {*document_, &(*node_)[index], std::move(path)};
}

std::size_t json_document::view::size() const {
  if (node_ == nullptr) return 0;
  if (node_->is_array()) return node_->size();
  fail(errc::malformed, "a list");
  return 0;
}

double json_document::view::number() const {
  if (node_ == nullptr) return 0;
  if (node_->is_number()) return node_->get<double>();
  fail(errc::malformed, "a number");
  return 0;
}

std::uint64_t json_document::view::count(std::uint64_t limit) const {
  if (node_ == nullptr) return 0;
  if (node_->is_number_unsigned()) {
    if (const auto value = node_->get<std::uint64_t>(); value <= limit) return value;
  }
  fail(node_->is_number() ? errc::out_of_range : errc::malformed,
       fmt::format("a whole number from 0 to {}", limit));
  return 0;
}

std::int64_t json_document::view::integer() const {
  if (node_ == nullptr) return 0;
  const bool fits = node_->is_number_unsigned()
                        ? node_->get<std::uint64_t>() <=
                              static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
                        : node_->is_number_integer();
  if (fits) return node_->get<std::int64_t>();
  fail(node_->is_number() ? errc::out_of_range : errc::malformed, "a whole number of 64 bits");
  return 0;
}

std::string json_document::view::text() const {
  if (node_ == nullptr) return {};
  if (node_->is_string()) return node_->get<std::string>();
  fail(errc::malformed, "a text");
  return {};
}

std::vector<double> json_document::view::numbers() const {
  std::vector<double> values;
  values.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) {
    const auto& entry = (*node_)[i];
    values.push_back(entry.is_number() ? entry.get<double>() : (*this)[i].number());
  }
  return values;
}

std::vector<std::uint32_t> json_document::view::indices() const {
  std::vector<std::uint32_t> values;
  values.reserve(size());
  for (std::size_t i = 0; i < size(); ++i)
    values.push_back(
        static_cast<std::uint32_t>((*this)[i].count(std::numeric_limits<std::uint32_t>::max())));
  return values;
}

std::vector<std::int64_t> json_document::view::integers() const {
  std::vector<std::int64_t> values;
  values.reserve(size());
  for (std::size_t i = 0; i < size(); ++i) values.push_back((*this)[i].integer());
  return values;
}

void json_document::view::fail(errc code, std::string_view expected) const {
  if (document_->problem_) return;
  document_->problem_ =
      error{code, fmt::format("{}: {}: found {}, expected {}", document_->place_,
                              path_.empty() ? "the document" : path_,
                              node_ == nullptr ? "nothing" : summary(*node_), expected)};
}

}  // namespace ordermoe::planning
