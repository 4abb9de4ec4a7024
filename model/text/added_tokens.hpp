#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// Tokens that a tokenizer finds in the text itself, before anything is cut or merged: control
/// tokens of chats, runs of spaces.
namespace ordermoe::model {

struct added_token {
  std::string content;
  std::int32_t id = -1;
  bool single_word = false;  ///< Only where no letter, mark, digit or '_' is beside it.
  bool lstrip = false;       ///< Takes the white space on its left with it.
  bool rstrip = false;       ///< And on its right.
  bool normalized = false;   ///< Looked for in the normalised text, not in the given one.
  bool special = false;      ///< Not shown in decoded text.
};

/// Finds added tokens: at each place the longest, from left to right, without overlap; a match that
/// its flags rule out is skipped whole, as Hugging Face's library does it.
class added_token_finder {
 public:
  /// Precondition: the token has content, and no token before it has the same.
  void add(const added_token& token);
  bool empty() const { return tokens_.empty(); }

  struct part {
    std::string_view text;  ///< Between tokens, or a token's own content.
    std::int32_t id = -1;   ///< Of the added token; -1: text between tokens.
  };
  /// The text in order, without the white space that tokens take with them; no part is empty. The
  /// parts are views of `text` and of this object. Precondition: valid UTF-8. Time: at most length
  /// of the text times length of the longest token.
  std::vector<part> split(std::string_view text) const;

 private:
  struct match {
    std::size_t size = 0;
    const added_token* token = nullptr;
  };
  match longest_at(std::string_view text) const;

  std::vector<added_token> tokens_;
  /// A trie: (node << 8 | byte) to node; the root is 0.
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  /// For each node the token that ends there, as an index into tokens_, or -1.
  std::vector<std::int32_t> ends_ = {-1};
  bool begins_[256] = {};
};

}  // namespace ordermoe::model
