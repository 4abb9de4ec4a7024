#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "config/error.hpp"
#include "model/text/tokenizer.hpp"

/// tokenizer.json as Hugging Face's library writes it, for byte-level BPE: Qwen, OLMoE, GPT-NeoX.
///
/// Text goes this way: ill-formed UTF-8 is replaced; added tokens are taken out, first those that
/// are looked for in the given text, then, in the normalised rest, the others; what is left is cut
/// by the expressions of `pre_tokenizer` and each piece merged by itself; at last the
/// `post_processor` puts its tokens around the whole. Ids equal those of the library, except that a
/// character which came to Unicode after version 14 may be cut otherwise.
///
/// Read: model BPE; normalizer null, NFC, Sequence of these; pre_tokenizer ByteLevel or a Sequence
/// of Split (a Regex, Isolated) that ends with ByteLevel; decoder ByteLevel; post_processor null,
/// ByteLevel, TemplateProcessing (the template of a single text), Sequence of these. Everything
/// else is refused by name, and so are dropout, truncation, padding, byte_fallback, marked
/// subwords, and vocabularies whose ids have holes.
///
/// Decoding leaves special tokens out, shows other added tokens as they are written, and decodes
/// the bytes in between together. Non-goals: training, offsets, pairs of texts.
namespace ordermoe::model {

/// Errors: not_found, io, malformed, out_of_range, mismatch, unsupported; the message names the
/// file, the field, and what to do.
result<std::shared_ptr<const tokenizer>> read_tokenizer_json(const std::filesystem::path& path);

/// The same for a text in memory; `place` is what messages name.
result<std::shared_ptr<const tokenizer>> parse_tokenizer_json(std::string_view text,
                                                              std::string place);

}  // namespace ordermoe::model
