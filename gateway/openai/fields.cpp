#include "gateway/openai/fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "config/json_checker.hpp"
#include "gateway/openai/json_text.hpp"

namespace ordermoe::gateway {

using nlohmann::json;

namespace {

constexpr std::size_t most_levels = 32;
const json no_members = json::object();

std::string shown(const json& value) {
  constexpr std::size_t longest = 40;
  auto text = json_text(value);
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return text;
}

/// What the checker, which did not read it to its end, has against it.
std::string why_not(const json_checker& checker) {
  if (checker.is_too_deep) return fmt::format("it is nested deeper than {} levels", most_levels);
  if (checker.has_twice) return fmt::format("it has the member {} twice", shown(checker.twice));
  // "[json.exception.parse_error.101] ..."
  const std::string_view what = checker.problem;
  return std::string(what.substr(std::min(what.find("] "), what.size() - 2) + 2));
}

}  // namespace

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

json parse_body(std::string_view text, std::optional<api_problem>& problem) {
  const auto refuse = [&](const std::string& why) {
    problem =
        api_problem{.message = fmt::format("the body is not the JSON that was expected: {}", why)};
    return no_members;
  };
  json_checker checker(most_levels);
  if (!json::sax_parse(text.begin(), text.end(), &checker)) return refuse(why_not(checker));
  auto read = json::parse(text.begin(), text.end());
  if (!read.is_object()) return refuse(fmt::format("found {}, expected an object", kind_of(read)));
  return read;
}

fields::fields(const json& object, std::string path, std::optional<api_problem>& problem)
    : object_(&object), path_(std::move(path)), problem_(&problem) {}

std::string fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

const json* fields::find(const char* name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void fields::refuse(std::string_view name, std::string message, std::string code) const {
  if (failed()) return;
  *problem_ =
      api_problem{.message = std::move(message), .param = path_of(name), .code = std::move(code)};
}

void fields::wrong_type(const char* name, const json& found, const char* expected) const {
  refuse(name,
         fmt::format("Invalid type for '{}': expected {}, found {}.", path_of(name), expected,
                     kind_of(found)),
         "invalid_type");
}

void fields::only(std::initializer_list<std::string_view> names,
                  std::span<const std::string_view> more) const {
  for (const auto& [name, value] : object_->items())
    if (std::ranges::find(names, name) == names.end() &&
        std::ranges::find(more, name) == more.end())
      return refuse(name, fmt::format("Unrecognized request argument supplied: {}", path_of(name)),
                    "unknown_parameter");
}

bool fields::boolean(const char* name, bool otherwise) const {
  const auto* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  wrong_type(name, *value, "a boolean");
  return otherwise;
}

double fields::number(const char* name, double low, double high, double otherwise) const {
  const auto* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number()) {
    wrong_type(name, *value, "a number");
    return otherwise;
  }
  const auto found = value->get<double>();
  if (found >= low && found <= high) return found;
  refuse(name,
         fmt::format("Invalid value for '{}': found {}, expected {:g} to {:g}.", path_of(name),
                     shown(*value), low, high),
         "invalid_value");
  return otherwise;
}

std::int64_t fields::integer(const char* name, std::int64_t low, std::int64_t high,
                             std::int64_t otherwise) const {
  const auto* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer()) {
    wrong_type(name, *value, "an integer");
    return otherwise;
  }
  // Unsigned ones may be larger than any signed one.
  const bool fits = !value->is_number_unsigned() ||
                    value->get<std::uint64_t>() <=
                        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (fits)
    if (const auto found = value->get<std::int64_t>(); found >= low && found <= high) return found;
  refuse(name,
         fmt::format("Invalid value for '{}': found {}, expected {} to {}.", path_of(name),
                     shown(*value), low, high),
         "invalid_value");
  return otherwise;
}

std::optional<std::uint64_t> fields::seed(const char* name) const {
  const auto* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<std::uint64_t>();
  if (value->is_number_integer()) return static_cast<std::uint64_t>(value->get<std::int64_t>());
  wrong_type(name, *value, "an integer of 64 bits");
  return std::nullopt;
}

std::string fields::string(const char* name, std::string otherwise) const {
  const auto* value = find(name);
  if (value == nullptr) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  wrong_type(name, *value, "a string");
  return otherwise;
}

fields fields::object(const char* name) const {
  const auto* value = find(name);
  if (value != nullptr && !value->is_object()) {
    wrong_type(name, *value, "an object");
    value = nullptr;
  }
  return {value == nullptr ? no_members : *value, path_of(name), *problem_};
}

}  // namespace ordermoe::gateway
