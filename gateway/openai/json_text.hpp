#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace ordermoe::gateway {

/// JSON on one line; what is no UTF-8 in it becomes U+FFFD. `Json`: one of nlohmann's.
template <class Json>
std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Whether JSON says it as it is, between quotation marks.
inline bool is_plain(std::string_view text) {
  return std::ranges::all_of(text,
                             [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

}  // namespace ordermoe::gateway
