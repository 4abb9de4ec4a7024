#pragma once

#include <string>

namespace ordermoe::gateway {

/// JSON on one line; what is no UTF-8 in it becomes U+FFFD. `Json`: one of nlohmann's.
template <class Json>
std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ordermoe::gateway
