#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config/error.hpp"

/// Byte-pair encoding over bytes (Radford et al. 2019): a piece of text starts as its bytes, and
/// the pair of neighbours that comes first in the list of merges is joined until none is left.
namespace ordermoe::model {

/// The bytes that a token stands for, where it is written in the alphabet of byte-level
/// tokenizers: printable Latin-1 characters stand for themselves, the other bytes, in order, for
/// U+0100 and following. Nothing where a character is not of this alphabet.
std::optional<std::string> bytes_of_token(std::string_view token);

/// Bytes written in that alphabet.
std::string token_of_bytes(std::string_view bytes);

class byte_level_bpe {
 public:
  struct merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t joined;
  };
  enum class whole_tokens { after_merges, before_merges };

  /// `tokens` by id, in the byte alphabet; where there is none (an id that is taken otherwise) the
  /// text is empty. `merges`: the first goes first. `before_merges`: a piece that is itself a
  /// token becomes this token, whatever the merges make of it.
  /// Precondition: ids are within tokens, and no pair is there twice. Errors (malformed): a byte
  /// that occurs in UTF-8 has no token.
  static result<byte_level_bpe> make(const std::vector<std::string>& tokens,
                                     const std::vector<merge>& merges, whole_tokens rule);

  /// Appends the ids of one piece. Precondition: valid UTF-8. Time: n log n in the piece's bytes;
  /// ties between equal pairs go to the leftmost.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

 private:
  struct ranked {
    std::int32_t rank;
    std::int32_t joined;
  };
  const ranked* find(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, ranked> merges_;  ///< By left id << 32 | right id.
  std::unordered_map<std::string, std::int32_t> whole_;
};

}  // namespace ordermoe::model
