#pragma once

#include <fmt/format.h>

#include <toml++/toml.h>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Checked reading of TOML files: every message says line, column, what was found, what is expected and what to do.
/// Of config's own readers.
namespace ordermoe {

struct range {
  double low = 0;
  double high = 0;
};

/// What a unit of the file is in units of the program, and what values make sense.
struct quantity {
  double scale = 1;
  range allowed;
};

/// Ends the reading at the first error; caught where it began (read_toml).
struct refusal {
  error reason;
};

std::string locate(const toml::source_region& region);
[[noreturn]] void refuse(errc code, const toml::source_region& region, std::string message);
std::string type_name(const toml::node& node);

/// A table whose keys are all known, with typed access; `what` names it in messages ("server",
/// "link").
class section {
 public:
  section(const toml::table& table, std::string what,
          std::initializer_list<std::string_view> known);

  const toml::node* find(std::string_view key) const { return table_.get(key); }
  const toml::source_region& place() const { return table_.source(); }
  const toml::source_region& place(std::string_view key) const { return get(key).source(); }
  const toml::node& get(std::string_view key) const;

  std::string string(std::string_view key) const;
  /// Between 1 and 64 letters, digits, dots, dashes and underscores.
  std::string name(std::string_view key) const;
  bool boolean(std::string_view key, bool otherwise) const;
  double number(std::string_view key, range allowed) const;
  /// A quantity in whole units of the program.
  double whole_units(std::string_view key, const quantity& unit) const;
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const;
  /// 64 bits without sign: a whole number, or one in quotes where TOML's own integers end.
  std::uint64_t seed(std::string_view key) const;
  const toml::table& table(std::string_view key) const;
  const toml::array& array_of_tables(std::string_view key) const;
  /// An array of strings.
  std::vector<std::string> strings(std::string_view key) const;

 private:
  [[noreturn]] void wrong_type(const toml::node& node, std::string_view key,
                               std::string_view expected) const;

  const toml::table& table_;
  std::string what_;
};

/// read(table) of a TOML text; `place` names the text, `schema` what it should follow.
template <class Content, class Read>
result<Content> read_toml(const std::string& text, const std::string& place,
                          std::string_view schema, Read read) {
  try {
    const auto file = toml::parse(text);
    return read(file);
  } catch (const refusal& problem) {
    return error{problem.reason.code, fmt::format("{}:{}", place, problem.reason.message)};
  } catch (const toml::parse_error& problem) {
    return error{
        errc::malformed,
        fmt::format("{}:{}: found invalid TOML: {}; expected the schema of {}; correct the syntax",
                    place, locate(problem.source()), problem.description(), schema)};
  }
}

}  // namespace ordermoe
