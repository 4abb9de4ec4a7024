#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

namespace ordermoe::model {

/// Longer ones are refused, whatever file they are in: at every place of a text the longest that fits is looked for.
inline constexpr std::size_t most_token_bytes = std::size_t{1} << 12;

/// A tokenizer: a SentencePiece model, or byte-level BPE. Immutable, thread-safe.
class tokenizer {
 public:
  /// Reads FOLDER/tokenizer.model or FOLDER/spiece.model, T5's name (SentencePiece), or, where
  /// there is neither, FOLDER/tokenizer.json (byte-level BPE; model/text/tokenizer_json.hpp says which).
  /// Tokens that were added to a SentencePiece model are read from beside it (model/text/added_token_files.hpp).
  /// Errors: not_found, malformed, out_of_range, unsupported, and for JSON files mismatch.
  static result<std::shared_ptr<const tokenizer>> load(const std::filesystem::path& folder);
  /// A tokenizer.model in memory; `place` is what messages name. Errors: malformed, out_of_range, unsupported.
  static result<std::shared_ptr<const tokenizer>> parse_sentencepiece(std::string_view bytes,
                                                                      std::string_view place);
  virtual ~tokenizer() = default;

  virtual std::size_t vocab_size() const = 0;
  /// Ids of the text, with what belongs before and after it: the beginning-of-text id of a
  /// SentencePiece model, or its end-of-text id where there is no piece to begin with (T5), the
  /// template of a tokenizer.json (often nothing). Ill-formed UTF-8 is
  /// encoded as U+FFFD.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Ids of the text alone, for a text that is put together from several.
  virtual std::vector<std::int32_t> encode_inside(std::string_view text) const = 0;
  /// The control or added token that is written so; nothing where there is none.
  virtual std::optional<std::int32_t> special_id(std::string_view token) const = 0;
  /// Control and special tokens are left out; ids beyond the vocabulary and bytes that form no
  /// character become U+FFFD.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// The same for ids that go on with a text: a space that they begin with is part of it.
  virtual std::string decode_further(std::span<const std::int32_t> ids) const {
    return decode(ids);
  }
  /// Whether ids behind these go on with a text of theirs; not so where these show nothing.
  virtual bool has_begun(std::span<const std::int32_t>) const { return false; }
};

/// Decodes a growing list of ids piece by piece and never hands out half a UTF-8 character.
class streaming_decoder {
 public:
  /// `before`: the ids that those to come go on behind, as an answer goes on behind its prompt; empty where a text of its
  /// own begins, as an encoder-decoder's answer is one.
  explicit streaming_decoder(std::shared_ptr<const tokenizer> tokens,
                             std::span<const std::int32_t> before = {});
  /// Adds an id; returns the text that is complete now and was not handed out before.
  std::string push(std::int32_t id);
  /// What is left at the end, incomplete characters replaced by U+FFFD.
  std::string finish();

 private:
  std::string decoded(std::span<const std::int32_t> ids) const;

  std::shared_ptr<const tokenizer> tokens_;
  bool has_begun_ = false;
  std::vector<std::int32_t> ids_;
  std::size_t handed_out_ = 0;
};

}  // namespace ordermoe::model
