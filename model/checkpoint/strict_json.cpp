#include "model/checkpoint/strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

namespace ordermoe::model {

using nlohmann::json;

namespace {

constexpr std::size_t most_depth = 16;

/// Reads JSON for names that come twice and for how deep it is, and keeps nothing: a parser with a callback takes time that grows with
/// the square of an object's members.
class strict_reader final : public nlohmann::json_sax<json> {
 public:
  std::string repeated;  ///< The first name that came twice; empty: none.
  std::string problem;   ///< Why it is no JSON.

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool key(string_t& name) override {
    if (repeated.empty() && !keys_.back().insert(name).second) repeated = name;
    return true;
  }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const json::exception& what) override {
    problem = what.what();
    return false;
  }

 private:
  bool enter() {
    keys_.emplace_back();
    if (keys_.size() <= most_depth) return true;
    problem = "too many levels of nesting";
    return false;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }
  std::vector<std::set<std::string>> keys_;  ///< Of the objects and arrays that are open.
};

}  // namespace

result<json> parse_strict(std::string_view text, const std::string& place, std::string_view redo) {
  strict_reader reader;
  json parsed;
  try {
    if (json::sax_parse(text.begin(), text.end(), &reader))
      parsed = json::parse(text.begin(), text.end());
  } catch (const std::exception& problem) {
    reader.problem = problem.what();
  }
  if (!reader.problem.empty())
    return error{errc::malformed,
                 fmt::format("{}: not valid JSON ({}); {}", place, reader.problem, redo)};
  if (!reader.repeated.empty())
    return error{errc::malformed, fmt::format("{}: '{}' comes twice, expected each name once; {}",
                                              place, reader.repeated, redo)};
  if (!parsed.is_object())
    return error{errc::malformed, fmt::format("{}: found {}, expected a JSON object; {}", place,
                                              parsed.type_name(), redo)};
  return parsed;
}

}  // namespace ordermoe::model
