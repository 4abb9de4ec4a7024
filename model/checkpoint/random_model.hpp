#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/checkpoint_writer.hpp"

/// Checkpoints of any family with random weights: complete folders to test, measure and plan with
/// where no trained weights are at hand.
namespace ordermoe::model {

/// Shape of the family's published model: Mixtral-8x7B, Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B,
/// OLMoE-1B-7B, switch-base-8, with n_layers instead of the published number where it is not 0; of
/// an encoder-decoder each stack has so many, each of a dense and a sparse block. Beginning and end
/// of text are 1 and 2, as the tokenizers of this project have it.
model_config published_shape(family kind, std::size_t n_layers = 0);
/// A model of three layers (an encoder-decoder: two in each stack) and eight experts that runs in
/// milliseconds and keeps what sets its family apart.
model_config small_shape(family kind);

struct random_model_options {
  model_config shape;
  std::uint64_t seed = 1;
  std::string_view tokenizer;                     ///< Bytes of the tokenizer.model.
  std::size_t shard_bytes = default_shard_bytes;  ///< Most bytes of tensors in one file.
  std::function<void(double share_done)> progress;
  std::function<bool()> should_stop;
};

/// Writes config.json, tokenizer.model, SHA256SUMS and bf16 safetensors, in shards with an index
/// where they do not fit one file. A number is a function of seed, name and place alone. Memory: a
/// few MiB, whatever the model. Written in one step (checkpoint_writer.hpp). Errors: io (the target
/// is there and not empty, the disk has no room), interrupted.
result<written_model> write_random_model(const std::filesystem::path& folder,
                                         const random_model_options& options);

}  // namespace ordermoe::model
