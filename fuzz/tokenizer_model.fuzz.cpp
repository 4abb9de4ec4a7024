#include "fuzz/support.hpp"

/// The bytes are a tokenizer.model (SentencePiece), read as a folder's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::put(fuzz::memory_folder() / "tokenizer.model", fuzz::text_of(data, size));
  const auto tokens = ordermoe::model::tokenizer::load(fuzz::memory_folder());
  if (tokens)
    fuzz::check_tokenizer(*tokens);
  else
    fuzz::check_refusal(tokens.error(), "tokenizer.model");
  return 0;
}
