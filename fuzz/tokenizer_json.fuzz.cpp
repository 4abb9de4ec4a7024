#include "model/text/tokenizer_json.hpp"
#include "fuzz/support.hpp"

/// The bytes are a tokenizer.json.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto tokens =
      ordermoe::model::parse_tokenizer_json(fuzz::text_of(data, size), "tokenizer.json");
  if (tokens)
    fuzz::check_tokenizer(*tokens);
  else
    fuzz::check_refusal(tokens.error(), "tokenizer.json");
  return 0;
}
