#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/error.hpp"

/// What went wrong with a request, as OpenAI's interface says it.
namespace ordermoe::gateway {

struct api_problem {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {};  ///< Member of the request that it is about; empty: none.
  std::string code = {};   ///< Empty: none.
  std::optional<int> retry_after_s = {};
};

/// {"error": {"message", "type", "param", "code"}}
std::string problem_json(const api_problem& what);
/// What an HTTP server says by itself.
api_problem problem_of_status(int status, std::string_view what);
/// What an answer ended with.
api_problem problem_of(const error& why);

}  // namespace ordermoe::gateway
