#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "model/architecture/model_config.hpp"

/// Which tensors a checkpoint has: the one place that knows their names and shapes, in the names of
/// Hugging Face transformers. Loading takes them by what they are for, everything else as a list.
namespace ordermoe::model {

struct tensor_spec {
  std::string name;
  std::vector<std::size_t> shape;
};

/// An expert, the shared one, or a dense block's feed-forward.
struct feed_forward_tensors {
  std::string place;                ///< What the names have in common.
  std::optional<tensor_spec> gate;  ///< [inner, hidden]; none in an encoder-decoder.
  tensor_spec up;                   ///< [inner, hidden]
  tensor_spec down;                 ///< [hidden, inner]
};

struct attention_tensors {
  tensor_spec norm;
  tensor_spec query, key, value;
  tensor_spec output;
  std::vector<tensor_spec> bias;  ///< Of query, key and value, or none.
  std::optional<tensor_spec> query_norm, key_norm;
};

/// Of a sparse block.
struct expert_tensors {
  tensor_spec router;
  std::vector<feed_forward_tensors> experts;
  std::optional<feed_forward_tensors> shared;
  std::optional<tensor_spec> shared_gate;
};

struct block_tensors {
  attention_tensors attention;
  std::optional<attention_tensors> to_prompt;  ///< In an encoder-decoder's decoder.
  tensor_spec feed_forward_norm;
  std::optional<feed_forward_tensors> dense;  ///< Either this
  std::optional<expert_tensors> sparse;       ///< or this.
};

/// All blocks of a decoder, or of an encoder.
struct stack_tensors {
  std::vector<block_tensors> blocks;
  tensor_spec final_norm;
  std::optional<tensor_spec> relative_bias;  ///< [buckets, heads]
};

struct model_tensors {
  tensor_spec embedding;
  std::optional<stack_tensors> encoder;
  stack_tensors decoder;
  std::optional<tensor_spec> head;  ///< None where the embedding is the head.
};
model_tensors tensors_by_use(const model_config& config);
/// Of a sparse layer, by expert. Precondition: `tensors` are this model's.
const std::vector<feed_forward_tensors>& experts_at(const model_config& config,
                                                    const model_tensors& tensors, layer_id layer);

/// The name of the embedding.
std::string embedding_name(const model_config& config);

/// A tensor and how it is drawn.
struct tensor_plan {
  std::string name;
  std::vector<std::size_t> shape;
  double mean = 0;
  double deviation = 0;  ///< Standard deviation of the draw, before rounding to bf16.

  std::size_t size() const;
};

/// Every tensor of a model, embedding first, then layer by layer. Deviations keep the size of
/// activations about constant: a matrix divides by the root of what it sums over, and what is added
/// to the residual stream by the root of how often that happens.
std::vector<tensor_plan> tensors_of(const model_config& config);

}  // namespace ordermoe::model
