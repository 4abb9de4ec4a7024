#include "model/checkpoint/strict_json.hpp"

#include <fmt/format.h>

#include "config/json_checker.hpp"

namespace ordermoe::model {

using nlohmann::json;

namespace {

constexpr std::size_t most_depth = 16;

}  // namespace

result<json> parse_strict(std::string_view text, const std::string& place, std::string_view redo) {
  json_checker checker(most_depth);
  json parsed;
  auto problem = std::string();
  try {
    if (json::sax_parse(text.begin(), text.end(), &checker))
      parsed = json::parse(text.begin(), text.end());
    problem = checker.is_too_deep ? "too many levels of nesting" : checker.problem;
  } catch (const std::exception& thrown) {
    problem = thrown.what();
  }
  if (!problem.empty())
    return error{errc::malformed, fmt::format("{}: not valid JSON ({}); {}", place, problem, redo)};
  if (checker.has_twice)
    return error{errc::malformed, fmt::format("{}: '{}' comes twice, expected each name once; {}",
                                              place, checker.twice, redo)};
  if (!parsed.is_object())
    return error{errc::malformed, fmt::format("{}: found {}, expected a JSON object; {}", place,
                                              parsed.type_name(), redo)};
  return parsed;
}

}  // namespace ordermoe::model
