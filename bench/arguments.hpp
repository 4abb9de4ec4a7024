#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

/// What programs of this folder are told on the command line.
namespace ordermoe::bench {

/// A whole number above 0; none where the text is no such number.
inline std::optional<std::size_t> number_above_zero(std::string_view text) {
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value == 0) return std::nullopt;
  return value;
}

}  // namespace ordermoe::bench
