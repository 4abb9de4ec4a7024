#include "model/text/utf8.hpp"

#include <algorithm>

namespace ordermoe::model {

namespace {

/// How many bytes the character that begins with `first` has (0: none begins so), and what its
/// second byte must lie between; all later ones are 0x80 to 0xbf.
struct shape {
  std::size_t size;
  unsigned low;
  unsigned high;
};

shape shape_of(unsigned first) {
  if (first < 0x80) return {1, 0, 0};
  if (first >= 0xc2 && first <= 0xdf) return {2, 0x80, 0xbf};
  if (first == 0xe0) return {3, 0xa0, 0xbf};
  if (first == 0xed) return {3, 0x80, 0x9f};
  if (first >= 0xe1 && first <= 0xef) return {3, 0x80, 0xbf};
  if (first == 0xf0) return {4, 0x90, 0xbf};
  if (first >= 0xf1 && first <= 0xf3) return {4, 0x80, 0xbf};
  if (first == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

/// How many bytes at the beginning can belong to one character: all of it where it is valid, what
/// there is of it where it is not, at least 1. Precondition: the text is not empty.
struct extent {
  std::size_t size;
  bool valid;
};

extent first_extent(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const shape expected = shape_of(at(0));
  if (expected.size <= 1) return {1, expected.size == 1};
  if (text.size() < 2 || at(1) < expected.low || at(1) > expected.high) return {1, false};
  std::size_t n = 2;
  while (n < expected.size && n < text.size() && (at(n) & 0xc0) == 0x80) ++n;
  return {n, n == expected.size};
}

}  // namespace

std::size_t character_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const extent first = first_extent(text);
  return first.valid ? first.size : 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t n = character_bytes(text);
    if (n == 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

char32_t first_code_point(std::string_view text) {
  const auto at = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  switch (character_bytes(text)) {
    case 1:
      return at(0);
    case 2:
      return (at(0) & 0x1f) << 6 | (at(1) & 0x3f);
    case 3:
      return (at(0) & 0x0f) << 12 | (at(1) & 0x3f) << 6 | (at(2) & 0x3f);
    case 4:
      return (at(0) & 0x07) << 18 | (at(1) & 0x3f) << 12 | (at(2) & 0x3f) << 6 | (at(3) & 0x3f);
    default:
      return 0xfffd;
  }
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xc0 | code_point >> 6);
    add(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    add(0xe0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  } else {
    add(0xf0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3f));
    add(0x80 | (code_point >> 6 & 0x3f));
    add(0x80 | (code_point & 0x3f));
  }
}

std::string replace_ill_formed(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const extent first = first_extent(bytes);
    text += first.valid ? bytes.substr(0, first.size) : utf8_replacement;
    bytes.remove_prefix(first.size);
  }
  return text;
}

}  // namespace ordermoe::model
