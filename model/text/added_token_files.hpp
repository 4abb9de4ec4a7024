#pragma once

#include <filesystem>
#include <vector>

#include "config/error.hpp"
#include "model/text/added_tokens.hpp"
#include "model/text/sentencepiece_model.hpp"

/// Tokens that were added to a SentencePiece model after its training: the markers of chats, T5's sentinels. Its own
/// file does not have them; other files of the folder do.
namespace ordermoe::model {

/// The tokens with ids beyond the pieces, in order of ids. They come from the first of these that is there: `added_tokens`
/// of tokenizer.json, `added_tokens_decoder` of tokenizer_config.json, added_tokens.json, where those are special that
/// tokenizer_config.json or special_tokens_map.json names as such. Where none of them is a sentinel and
/// tokenizer_config.json states `extra_ids`, or has sentinels among its additional_special_tokens, these come behind the
/// pieces: <extra_id_0> is the last of them. A token that is a piece of the same id and text is left to the model. Ids may
/// leave holes.
/// Errors: io, malformed, out_of_range, mismatch (a piece of the same text or id); the message names the file and the
/// token.
result<std::vector<added_token>> read_added_tokens(const std::filesystem::path& folder,
                                                   const sentencepiece_model& pieces);

}  // namespace ordermoe::model
