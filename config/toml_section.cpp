#include "config/toml_section.hpp"

#include <charconv>
#include <cmath>
#include <limits>

namespace ordermoe {

std::string locate(const toml::source_region& region) {
  return fmt::format("{}:{}", region.begin.line, region.begin.column);
}

void refuse(errc code, const toml::source_region& region, std::string message) {
  throw refusal{{code, fmt::format("{}: {}", locate(region), message)}};
}

std::string type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::none:
      return "nothing";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return fmt::format("the string \"{}\"", **node.as_string());
    case toml::node_type::integer:
      return fmt::format("the integer {}", **node.as_integer());
    case toml::node_type::floating_point:
      return fmt::format("the number {}", **node.as_floating_point());
    case toml::node_type::boolean:
      return fmt::format("{}", **node.as_boolean());
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
  }
  return "something else";
}

section::section(const toml::table& table, std::string what,
                 std::initializer_list<std::string_view> known)
    : table_(table), what_(std::move(what)) {
  for (const auto& [key, value] : table_) {
    bool found = false;
    for (const auto name : known) found = found || key.str() == name;
    if (!found)
      refuse(errc::malformed, key.source(),
             fmt::format("found the unknown key '{}' in {}, expected one of {}; remove it or "
                         "correct its name",
                         key.str(), what_, fmt::join(known, ", ")));
  }
}

const toml::node& section::get(std::string_view key) const {
  const auto* node = find(key);
  if (node == nullptr)
    refuse(errc::malformed, place(),
           fmt::format("found no '{}' in {}, expected it; add it", key, what_));
  return *node;
}

std::string section::string(std::string_view key) const {
  const auto& node = get(key);
  if (!node.is_string()) wrong_type(node, key, "a string");
  return **node.as_string();
}

std::string section::name(std::string_view key) const {
  auto text = string(key);
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  };
  bool valid = !text.empty() && text.size() <= 64;
  for (const char c : text) valid = valid && allowed(c);
  if (!valid)
    refuse(errc::out_of_range, place(key),
           fmt::format(
               "found {} = \"{}\", expected 1 to 64 letters, digits, '.', '-' or '_'; rename it",
               key, text));
  return text;
}

bool section::boolean(std::string_view key, bool otherwise) const {
  const auto* node = find(key);
  if (node == nullptr) return otherwise;
  if (!node->is_boolean()) wrong_type(*node, key, "true or false");
  return **node->as_boolean();
}

double section::number(std::string_view key, range allowed) const {
  const auto& node = get(key);
  double value = 0;
  if (const auto* whole = node.as_integer())
    value = static_cast<double>(**whole);
  else if (const auto* real = node.as_floating_point())
    value = **real;
  else
    wrong_type(node, key, "a number");
  // Written so that a NaN is refused.
  if (!(value >= allowed.low && value <= allowed.high))
    refuse(errc::out_of_range, node.source(),
           fmt::format("found {} = {}, expected a number from {} to {}; correct it", key, value,
                       allowed.low, allowed.high));
  return value;
}

double section::whole_units(std::string_view key, const quantity& unit) const {
  return std::round(number(key, unit.allowed) * unit.scale);
}

std::int64_t section::integer(std::string_view key, std::int64_t low, std::int64_t high) const {
  const auto& node = get(key);
  if (!node.is_integer()) wrong_type(node, key, "a whole number");
  const auto value = **node.as_integer();
  if (value < low || value > high)
    refuse(errc::out_of_range, node.source(),
           fmt::format("found {} = {}, expected {} to {}; correct it", key, value, low, high));
  return value;
}

std::uint64_t section::seed(std::string_view key) const {
  const auto& node = get(key);
  const auto expected = fmt::format("a whole number from 0 to {}, or in quotes one up to {}",
                                    std::numeric_limits<std::int64_t>::max(),
                                    std::numeric_limits<std::uint64_t>::max());
  if (const auto* whole = node.as_integer()) {
    if (**whole >= 0) return static_cast<std::uint64_t>(**whole);
    refuse(errc::out_of_range, node.source(),
           fmt::format("found {} = {}, expected {}; correct it", key, **whole, expected));
  }
  if (!node.is_string()) wrong_type(node, key, expected);
  const auto& text = **node.as_string();
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size())
    refuse(errc::out_of_range, node.source(),
           fmt::format("found {} = \"{}\", expected a whole number from 0 to {}; correct it", key,
                       text, std::numeric_limits<std::uint64_t>::max()));
  return value;
}

const toml::table& section::table(std::string_view key) const {
  const auto& node = get(key);
  if (!node.is_table()) wrong_type(node, key, "a table");
  return *node.as_table();
}

const toml::array& section::array_of_tables(std::string_view key) const {
  const auto& node = get(key);
  if (!node.is_array()) wrong_type(node, key, "an array of tables");
  for (const auto& item : *node.as_array())
    if (!item.is_table()) wrong_type(item, key, "an array of tables");
  return *node.as_array();
}

void section::wrong_type(const toml::node& node, std::string_view key,
                         std::string_view expected) const {
  refuse(errc::malformed, node.source(),
         fmt::format("found {} for '{}' in {}, expected {}; correct it", type_name(node), key,
                     what_, expected));
}

std::vector<std::string> section::strings(std::string_view key) const {
  const auto& node = get(key);
  if (!node.is_array()) wrong_type(node, key, "an array of strings");
  std::vector<std::string> all;
  for (const auto& item : *node.as_array()) {
    if (!item.is_string()) wrong_type(item, key, "an array of strings");
    all.push_back(**item.as_string());
  }
  return all;
}

}  // namespace ordermoe
