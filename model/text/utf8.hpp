#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ordermoe::model {

inline constexpr std::string_view utf8_replacement = "\xef\xbf\xbd";  ///< U+FFFD.

/// Bytes of the valid UTF-8 character that `text` begins with; 0 where there is none.
std::size_t character_bytes(std::string_view text);

bool is_utf8(std::string_view text);

/// The code point of the valid character that `text` begins with.
char32_t first_code_point(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

/// The text with one U+FFFD for every maximal part of an ill-formed sequence, as the Unicode
/// standard (section 3.9) recommends.
std::string replace_ill_formed(std::string_view bytes);

}  // namespace ordermoe::model
