#pragma once

#include <unicode/uchar.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "model/text/split_pattern.hpp"
#include "model/text/utf8.hpp"
#include "test/model/text/byte_level_files.hpp"

/// A second implementation that shares nothing with the first: its own byte alphabet, scanners written by hand for the two
/// expressions with categories from ICU, and a merge loop that looks at all pairs every time.
namespace ordermoe::test::byte_level {

inline std::u32string code_points(const string& text) {
  std::u32string found;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const int n = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    char32_t c = n == 1 ? byte : byte & (0x7f >> n);
    for (int k = 1; k < n; ++k)
      c = c * 64 + (static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 63);
    found += c;
    i += static_cast<std::size_t>(n);
  }
  return found;
}

inline string utf8(const std::u32string& text) {
  string bytes;
  for (const char32_t c : text) {
    if (c < 0x80)
      bytes += static_cast<char>(c);
    else if (c < 0x800)
      bytes += {static_cast<char>(0xc0 + c / 64), static_cast<char>(0x80 + c % 64)};
    else if (c < 0x10000)
      bytes += {static_cast<char>(0xe0 + c / 4096), static_cast<char>(0x80 + c / 64 % 64),
                static_cast<char>(0x80 + c % 64)};
    else
      bytes += {static_cast<char>(0xf0 + c / 262144), static_cast<char>(0x80 + c / 4096 % 64),
                static_cast<char>(0x80 + c / 64 % 64), static_cast<char>(0x80 + c % 64)};
  }
  return bytes;
}

inline bool is_letter(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}
inline bool is_number(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}
inline bool is_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}
inline bool is_newline(char32_t c) {
  return c == U'\r' || c == U'\n';
}
inline bool is_sign(char32_t c) {
  return !is_space(c) && !is_letter(c) && !is_number(c);
}

using test_of = bool (*)(char32_t);
inline std::size_t run_of(const std::u32string& text, std::size_t at, test_of test) {
  std::size_t n = 0;
  while (at + n < text.size() && test(text[at + n])) ++n;
  return n;
}

inline std::size_t contraction(const std::u32string& text, std::size_t at, bool any_case) {
  if (at >= text.size() || text[at] != U'\'') return 0;
  for (const std::u32string ending : {U"s", U"t", U"re", U"ve", U"m", U"ll", U"d"}) {
    if (at + 1 + ending.size() > text.size()) continue;
    bool equal = true;
    for (std::size_t k = 0; k < ending.size(); ++k) {
      char32_t c = text[at + 1 + k];
      // U+017F is a lower-case long s; a case-insensitive s takes it.
      if (any_case) c = c == U'\u017f' ? U's' : c < 128 ? c | 32 : c;
      equal = equal && c == ending[k];
    }
    if (equal) return 1 + ending.size();
  }
  return 0;
}

/// Length of the white space at `at`, without its last character where a sign or a letter follows
/// and something is left.
inline std::size_t trailing_space(const std::u32string& text, std::size_t at) {
  const std::size_t n = run_of(text, at, is_space);
  return at + n < text.size() && n > 1 ? n - 1 : n;
}

inline std::size_t next_qwen(const std::u32string& text, std::size_t at) {
  if (const auto n = contraction(text, at, true)) return n;
  const char32_t c = text[at];
  const bool lead = !is_newline(c) && !is_letter(c) && !is_number(c);
  if (const auto n = run_of(text, at + (lead ? 1 : 0), is_letter)) return n + (lead ? 1 : 0);
  if (is_number(c)) return 1;
  const std::size_t space = c == U' ' ? 1 : 0;
  if (const auto n = run_of(text, at + space, is_sign))
    return space + n + run_of(text, at + space + n, is_newline);
  const std::size_t spaces = run_of(text, at, is_space);
  for (std::size_t n = spaces; n > 0; --n)
    if (is_newline(text[at + n - 1])) return n;
  return trailing_space(text, at);
}

inline std::size_t next_gpt2(const std::u32string& text, std::size_t at) {
  if (const auto n = contraction(text, at, false)) return n;
  const std::size_t space = text[at] == U' ' ? 1 : 0;
  for (const test_of test : {is_letter, is_number, is_sign})
    if (const auto n = run_of(text, at + space, test)) return space + n;
  return trailing_space(text, at);
}

using scanner = std::size_t (*)(const std::u32string&, std::size_t);

inline std::vector<string> pieces_by(scanner next, const string& text) {
  std::vector<string> pieces;
  const auto points = code_points(text);
  for (std::size_t at = 0; at < points.size();) {
    const std::size_t n = next(points, at);
    BOOST_REQUIRE(n > 0);
    pieces.push_back(utf8(points.substr(at, n)));
    at += n;
  }
  return pieces;
}

inline void merge_slowly(const json& vocab, const string& piece, std::vector<std::int32_t>& ids) {
  std::vector<string> symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  for (;;) {
    std::size_t best_rank = merge_list.size();
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      for (std::size_t rank = 0; rank < best_rank; ++rank)
        if (merge_list[rank] == pair(symbols[i], symbols[i + 1])) {
          best_rank = rank;
          best_at = i;
        }
    if (best_rank == merge_list.size()) break;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  for (const auto& symbol : symbols) ids.push_back(vocab.at(written(symbol)).get<std::int32_t>());
}

/// Text without a normaliser; added tokens without flags, the longest at each place.
inline std::vector<std::int32_t> encode_slowly(const json& file, scanner next, const string& text) {
  std::vector<std::int32_t> ids;
  string between;
  const auto flush = [&] {
    for (const auto& piece : pieces_by(next, between))
      merge_slowly(file["model"]["vocab"], piece, ids);
    between.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    string longest;
    int id = -1;
    for (const auto& token : file["added_tokens"]) {
      const auto content = token["content"].get<string>();
      if (content.size() > longest.size() && text.compare(at, content.size(), content) == 0) {
        longest = content;
        id = token["id"].get<int>();
      }
    }
    if (id < 0) {
      between += text[at++];
      continue;
    }
    flush();
    ids.push_back(id);
    at += longest.size();
  }
  flush();
  return ids;
}

const std::vector<string> hard_cases = {
    "",
    "hello",
    "hello hello the the",
    "abc abcabc aabc aaaaaaa",
    "I'll you'LL he's HE'S we've 'tis don't can''t 'S'\xc5\xbf 're",
    "'",
    "''s'",
    "12345 1a2b 3.14 \xc2\xbd\xe2\x85\xa7\xd9\xa3\xe0\xa5\xaa",
    "tabs\t\tand\tnewlines\n\n\nand\r\n\r\nCRLF\r\n",
    " leading",
    "   three leading",
    "trailing ",
    "trailing     ",
    "     ",
    "\n",
    " \n ",
    "  \n  \n  x",
    "x \r\n\t y\r",
    "nbsp\xc2\xa0here\xc2\xa0\xc2\xa0there\xc2\xa0",
    "ideographic\xe3\x80\x80space \xe3\x80\x80 x",
    "line\xe2\x80\xa8separator\xe2\x80\xa9paragraph",
    "next\xc2\x85line\x0b\x0c",
    "mongolian\xe1\xa0\x8e vowel \xe1\xa0\x8e separator",
    "zero\xe2\x80\x8bwidth\xef\xbb\xbf"
    "bom",
    "caf\xc3\xa9 cafe\xcc\x81 e\xcc\x81\xcc\x82",
    "\xcc\x81 starts with a mark",
    "\xe6\xbc\xa2\xe5\xad\x97 and \xe3\x81\x8b\xe3\x81\xaa"
    "abc123\xed\x95\x9c\xea\xb8\x80",
    "\xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7 \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
    "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80",
    "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 family",
    "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd!",
    "code: if (a[0] != b->c) { return x...; } // ok\n",
    "snake_case __init__ $var @user #tag 100%",
    "....  ... .",
    "a\n b\n  c\n\n   d",
    "<|end|>",
    "a<|end|>b <|end|>> c<|end|<|end|>>>",
    " <tool> the <tool>hello",
    "<|en d|> <|end|",
    string("nul\0inside", 10),
    "\xf0\x9d\x94\xb8\xf0\x9d\x95\x93\xf0\x9d\x9f\x99",
    "\xc7\x85\xca\xb0\xe2\x93\x90\xe2\x85\xb0",
};

/// Characters that tell the alternatives of the expressions apart, and any others.
inline string random_text(ordermoe::random_stream& random) {
  static const std::u32string favourites =
      U" \t\n\r\u00a0\u3000\u2028\u180e\u0085'sStTrevVmMlLdD019.,!<|>end\u00e9\u0301\u017f\u212a"
      U"\u6f22\u3042\u05d0\u0966\u00bd\u200d\U0001f469\U0001f3fd\u0130\u00df";
  std::u32string text;
  const auto n = random.below(40);
  while (text.size() < n) {
    if (random.below(4) != 0) {
      text += favourites[random.below(favourites.size())];
      continue;
    }
    const auto c = static_cast<char32_t>(random.below(random.below(2) == 0 ? 0x110000 : 0x3000));
    UVersionInfo age;
    u_charAge(static_cast<UChar32>(c), age);
    // Surrogates are no characters; what came after Unicode 14 is unknown to PCRE2 10.42.
    if ((c < 0xd800 || c > 0xdfff) && age[0] <= 14) text += c;
  }
  return utf8(text);
}

inline string shown(const std::vector<std::int32_t>& ids) {
  return json(ids).dump();
}

inline std::vector<string> pieces_of(const string& expression, const string& text) {
  const auto pattern = fixture::need(om::split_pattern::compile(expression));
  std::vector<std::string_view> pieces;
  pattern.split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

}  // namespace ordermoe::test::byte_level
