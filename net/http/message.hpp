#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What HTTP requests and answers consist of, for both ends.
namespace ordermoe::net {

using http_fields = std::vector<std::pair<std::string, std::string>>;

struct http_request {
  std::string method;
  std::string path, query;                    ///< As sent, percent signs and all.
  std::map<std::string, std::string> fields;  ///< By name in lower case; the last of several.
  std::string body;
  std::string peer;  ///< Address that it came from, without port.

  /// Empty where there is none.
  std::string_view field(const std::string& name) const {
    const auto found = fields.find(name);
    return found == fields.end() ? std::string_view() : std::string_view(found->second);
  }
};

/// "Not Found" of 404; "Unknown" of what is not used here.
const char* reason_of(int status);

}  // namespace ordermoe::net
