#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/sampling.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"

/// The plain single-process reference: the oracle for everything distributed. It shares the kernels
/// and nothing of the actors.
namespace ordermoe::model {

enum class finish_reason { length, end_of_text, stop_string, context };
const char* to_string(finish_reason reason);

struct generation_options {
  std::size_t max_new_tokens = 64;
  sampling_options sampling;
  std::uint64_t request = 0;  ///< Stream of the sampler.
  /// The answer ends before the first of these; needs a tokenizer.
  std::vector<std::string> stop_strings;
};

struct generation {
  std::vector<std::int32_t> token_ids;  ///< New tokens only, the end-of-text id not included.
  std::string text;                     ///< Empty without a tokenizer.
  finish_reason reason = finish_reason::length;
  std::vector<float> final_hidden;  ///< Hidden state [hidden_size] after the last layer of the last
                                    ///< computed position.
};

/// Continues a prompt; an encoder-decoder reads it with its encoder and answers with its decoder.
/// Errors: out_of_range where the prompt is empty, has an id outside the
/// vocabulary, or is longer than the context. `tokens` may be null.
result<generation> generate(const transformer& model, const tokenizer* tokens,
                            std::span<const std::int32_t> prompt,
                            const generation_options& options);

/// Called in a teacher-forced pass to replace what one row's slots execute. Given layer and router
/// logits of one row, fills the experts and gates in rank order.
struct executed_slot {
  expert_id expert;
  float gate = 0;
};
using slot_override =
    std::function<void(layer_id layer, std::size_t position, std::span<const float> logits,
                       std::vector<executed_slot>& slots)>;

/// Teacher-forced logits of all positions, [n, vocab_size]. Of an encoder-decoder: ids go into the
/// encoder, and the decoder reads decoder_start_id, then ids but for the last, as in training on
/// copying a text. Error: out_of_range for ids or length.
result<std::vector<float>> logits(const transformer& model, std::span<const std::int32_t> ids,
                                  const slot_override& override_slots = {});

/// Logits of an encoder-decoder for what its decoder reads, [decoder_ids.size(), vocab_size];
/// decoder_ids begin with decoder_start_id wherever the model was trained so. Errors: out_of_range
/// for ids or length; usage for a decoder alone.
result<std::vector<float>> logits(const transformer& model, std::span<const std::int32_t> ids,
                                  std::span<const std::int32_t> decoder_ids,
                                  const slot_override& override_slots = {});

/// Per-token negative log-likelihood in nats of ids[1..], n - 1 numbers. An encoder-decoder has
/// the first token in its encoder and predicts the others with its decoder.
result<std::vector<double>> token_losses(const transformer& model,
                                         std::span<const std::int32_t> ids,
                                         const slot_override& override_slots = {});

}  // namespace ordermoe::model
