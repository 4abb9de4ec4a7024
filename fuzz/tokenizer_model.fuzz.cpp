#include "fuzz/support.hpp"

/// The bytes are a tokenizer.model (SentencePiece).
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokens =
      ordermoe::model::tokenizer::parse_sentencepiece(fuzz::text_of(data, size), "tokenizer.model");
  if (tokens)
    fuzz::check_tokenizer(*tokens);
  else
    fuzz::check_refusal(tokens.error(), "tokenizer.model");
  return 0;
}
