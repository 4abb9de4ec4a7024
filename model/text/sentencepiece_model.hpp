#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "config/error.hpp"

/// A SentencePiece model, BPE or unigram: reading the file, text to ids, ids to text.
///
/// Why not the SentencePiece library: Debian's carries its own protobuf and exports it, and
/// LibTorch loads another version; a program with both ends before main. The file format (a
/// protobuf message) and the algorithm are small. Results equal the library's; a test compares them
/// with what spm_encode and spm_decode printed. Non-goals: word and character models, sampling,
/// training.
namespace ordermoe::model {

/// Where decoded ids stand in their text: the space that encoding puts before a text is taken away at its beginning alone.
enum class text_place { beginning, further };

class sentencepiece_model {
 public:
  sentencepiece_model(sentencepiece_model&&) = default;
  sentencepiece_model& operator=(sentencepiece_model&&) = default;

  /// From the bytes of a tokenizer.model. Errors: malformed, out_of_range, unsupported; the caller
  /// adds the place.
  static result<sentencepiece_model> parse(std::string_view bytes);

  std::size_t size() const { return pieces_.size(); }
  /// -1 where there is no such piece, as in T5's models; then there is one that ends a text.
  std::int32_t bos_id() const { return bos_id_; }
  std::int32_t eos_id() const { return eos_id_; }  ///< -1 where there is no such piece.
  /// Precondition: the id is in [0, size()), here and below.
  const std::string& text_of(std::int32_t id) const;
  /// The control or user-defined piece of this text.
  std::optional<std::int32_t> special_id(std::string_view text) const;
  /// Ids of the text alone, without beginning or end.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& ids,
                     text_place place = text_place::beginning) const;
  /// Whether text that begins with this piece has begun behind it: not behind a control piece, nor behind a space alone
  /// where such a beginning is left out.
  bool begins_text(std::int32_t id) const;

 private:
  enum class kind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct piece {
    std::string text;
    float score = 0;
    kind type = kind::normal;
  };

  sentencepiece_model() = default;
  result<void> parse_piece(std::string_view message);
  result<void> parse_trainer(std::string_view message);
  result<void> parse_normalizer(std::string_view message);
  result<void> index_pieces();

  /// Parts of a normalised text, one after the other: pieces, or what is none.
  std::vector<std::string_view> merge_pairs(std::string_view whole) const;
  std::vector<std::string_view> likeliest_parts(std::string_view whole) const;

  std::string normalize(std::string_view text) const;
  /// The replacement of what `text` begins with, and how many bytes it replaces.
  struct step {
    std::string_view replacement;
    std::size_t consumed = 0;
  };
  step normalize_prefix(std::string_view text) const;
  /// Bytes of the longest user-defined piece that `text` begins with; 0 where there is none.
  std::size_t user_defined_prefix(std::string_view text) const;

  std::vector<piece> pieces_;
  std::unordered_map<std::string_view, std::int32_t> mergeable_;  ///< Views into pieces_.
  std::vector<std::string> user_defined_;                         ///< Longest first.
  std::int32_t byte_ids_[256] = {};
  std::int32_t unknown_id_ = -1;
  std::int32_t bos_id_ = -1;
  std::int32_t eos_id_ = -1;
  bool byte_fallback_ = false;
  bool whitespace_as_suffix_ = false;
  bool add_dummy_prefix_ = true;
  bool remove_extra_whitespaces_ = true;
  bool escape_whitespaces_ = true;
  int model_type_ = 1;
  std::string bos_text_ = "<s>";
  std::string eos_text_ = "</s>";
  // Of a unigram model:
  float least_score_ = 0, most_score_ = 0;  ///< Of the normal pieces.
  std::size_t longest_piece_ = 0;           ///< In bytes.
  std::string unknown_surface_ = " \xe2\x81\x87 ";
  std::vector<std::uint32_t> charsmap_trie_;
  std::string charsmap_texts_;  ///< NUL-terminated replacements; a trie value is an offset.
};

}  // namespace ordermoe::model
