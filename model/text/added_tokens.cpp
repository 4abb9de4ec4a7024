#include "model/text/added_tokens.hpp"

#include <unicode/uchar.h>

#include <algorithm>

#include "config/error.hpp"
#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

/// What belongs to a word: letters, marks, decimal digits, connecting signs and joiners (Unicode
/// Technical Standard 18, annex C).
bool is_word(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  constexpr std::uint32_t kinds = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return u_hasBinaryProperty(code, UCHAR_ALPHABETIC) || (U_GET_GC_MASK(code) & kinds) != 0 ||
         u_hasBinaryProperty(code, UCHAR_JOIN_CONTROL);
}

bool is_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

/// Where the last character begins. Precondition: valid UTF-8, not empty.
std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word(first_code_point(text.substr(last_character(text))));
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word(first_code_point(text));
}

}  // namespace

void added_token_finder::add(const added_token& token) {
  ORDERMOE_CHECK(!token.content.empty(), "an added token without content");
  std::uint32_t node = 0;
  for (const char c : token.content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto [edge, is_new] = edges_.try_emplace(std::uint64_t{node} << 8 | byte,
                                                   static_cast<std::uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(-1);
    node = edge->second;
  }
  ORDERMOE_CHECK(ends_[node] < 0, "two added tokens with the same content");
  ends_[node] = static_cast<std::int32_t>(tokens_.size());
  begins_[static_cast<unsigned char>(token.content.front())] = true;
  tokens_.push_back(token);
}

added_token_finder::match added_token_finder::longest_at(std::string_view text) const {
  match longest;
  std::uint32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] >= 0) longest = {i + 1, &tokens_[static_cast<std::size_t>(ends_[node])]};
  }
  return longest;
}

std::vector<added_token_finder::part> added_token_finder::split(std::string_view text) const {
  std::vector<part> parts;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const auto [size, token] = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + size;
    at = end;
    if (token->single_word &&
        (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    if (token->lstrip)
      while (begin > done) {
        const std::size_t before = last_character(text.substr(0, begin));
        if (!is_space(first_code_point(text.substr(before)))) break;
        begin = before;
      }
    if (token->rstrip)
      while (end < text.size() && is_space(first_code_point(text.substr(end))))
        end += character_bytes(text.substr(end));
    if (begin > done) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({token->content, token->id});
    // A token of white space may lie within what the token before it took on its right.
    done = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace ordermoe::model
