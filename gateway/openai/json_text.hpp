#pragma once

#include <algorithm>
#include <string_view>

#include "config/json_text.hpp"

namespace ordermoe::gateway {

/// Whether JSON says it as it is, between quotation marks.
inline bool is_plain(std::string_view text) {
  return std::ranges::all_of(text,
                             [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
}

}  // namespace ordermoe::gateway
