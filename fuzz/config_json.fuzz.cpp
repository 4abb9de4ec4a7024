#include "fuzz/support.hpp"
#include "model/architecture/model_config.hpp"

/// The bytes are a config.json. What is accepted must be a shape that can be computed with, and be
/// read back from what is written of it.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace om = ordermoe::model;
  const auto read = om::parse_model_config(fuzz::text_of(data, size), "config.json");
  if (!read) {
    fuzz::check_refusal(read.error(), "config.json");
    return 0;
  }
  const om::model_config& config = *read;
  for (const std::size_t size_of :
       {config.hidden_size, config.intermediate_size, config.n_layers, config.n_heads,
        config.n_kv_heads, config.head_dim, config.n_experts, config.top_k, config.vocab_size,
        config.max_context})
    ORDERMOE_CHECK(size_of >= 1 && size_of <= std::size_t{1} << 24, "a size out of bounds");
  ORDERMOE_CHECK(config.n_heads % config.n_kv_heads == 0, "heads");
  ORDERMOE_CHECK(config.encoder_decoder || config.head_dim % 2 == 0, "rotary positions need pairs");
  ORDERMOE_CHECK(config.top_k <= config.n_experts, "more experts chosen than there are");
  ORDERMOE_CHECK(config.rms_norm_eps > 0 && config.rope_theta > 0, "a number that is not positive");
  const std::string written = om::model_config_json(config);
  const auto again = om::parse_model_config(written, "config.json");
  ORDERMOE_CHECK(again.has_value(), "what was written is refused");
  ORDERMOE_CHECK(om::model_config_json(*again) == written, "what was written reads differently");
  return 0;
}
