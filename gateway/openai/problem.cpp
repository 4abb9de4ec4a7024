#include "gateway/openai/problem.hpp"

#include <nlohmann/json.hpp>

#include "gateway/openai/json_text.hpp"

namespace ordermoe::gateway {

using nlohmann::ordered_json;

namespace {

ordered_json or_null(const std::string& text) {
  return text.empty() ? ordered_json() : ordered_json(text);
}

}  // namespace

std::string problem_json(const api_problem& what) {
  return json_text(ordered_json{{"error",
                                 {{"message", what.message},
                                  {"type", what.type},
                                  {"param", or_null(what.param)},
                                  {"code", or_null(what.code)}}}});
}

api_problem problem_of_status(int status, std::string_view what) {
  api_problem made;
  made.status = status;
  made.message = what;
  if (status >= 500) made.type = "server_error";
  return made;
}

api_problem problem_of(const error& why) {
  api_problem made;
  made.message = why.message;
  switch (why.code) {
    case errc::out_of_range:
    case errc::malformed:
    case errc::usage:
    case errc::unsupported:
    case errc::infeasible:
      return made;
    case errc::timed_out:
      made.status = 504;
      made.type = "server_error";
      made.code = "timeout";
      return made;
    case errc::io:
      made.status = 503;
      made.type = "server_error";
      made.code = "server_lost";
      made.retry_after_s = 1;
      return made;
    default:
      made.status = 500;
      made.type = "server_error";
      return made;
  }
}

}  // namespace ordermoe::gateway
