#pragma once

#include <string>

namespace ordermoe {

/// JSON as text, on one line where no indent is given; what is no UTF-8 in it, as some file names are, becomes U+FFFD. `Json`: one of
/// nlohmann's.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ordermoe
