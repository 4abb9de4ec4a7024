#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace ordermoe {

/// Reads JSON for how deep it is and for names that come twice in an object, and keeps nothing: a parser with a callback takes time that
/// grows with the square of how many values an array or object has. For nlohmann's sax_parse, which is false where it is refused.
class json_checker final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit json_checker(std::size_t most_levels) : most_levels_(most_levels) {}

  bool is_too_deep = false;
  bool has_twice = false;
  std::string twice;    ///< The first name that came twice.
  std::string problem;  ///< Why it is no JSON, in nlohmann's words.

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    has_twice = true;
    twice = name;
    return false;
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& what) override {
    problem = what.what();
    return false;
  }

 private:
  bool enter() {
    open_.emplace_back();
    is_too_deep = open_.size() > most_levels_;
    return !is_too_deep;
  }
  bool leave() {
    open_.pop_back();
    return true;
  }

  std::size_t most_levels_;
  std::vector<std::set<std::string>> open_;  ///< Names of the objects and arrays that are open.
};

}  // namespace ordermoe
