#pragma once

#include <cstddef>
#include <filesystem>

#include "config/error.hpp"
#include "config/precision.hpp"
#include "model/checkpoint/checkpoint_writer.hpp"
#include "model/checkpoint/checksums.hpp"
#include "model/kernels/kernels.hpp"

/// Writing a model again in another precision, or as it is computed with.
namespace ordermoe::model {

struct convert_options {
  weight_storage kept = weight_storage::bf16;
  std::size_t shard_bytes = default_shard_bytes;  ///< Most bytes of tensors in one file.
  work_watch watch;
};

/// Writes a complete folder: config.json (with the type it names changed to match), the tokenizer
/// and what else belongs to the model, SHA256SUMS, and the tensors. fp32 and bf16: all tensors,
/// rounded to nearest. int8 and int4: the matrices of experts, shared ones included, as
/// quantised_rows.hpp has it, everything else as it is stored; loading that gives the bits of
/// quantising when loading. Profiles are not copied: they belong to the weights they were made
/// from. Memory: one matrix's scales and some MiB. Written in one step (checkpoint_writer.hpp).
/// Errors: io (the target is there and not empty, the disk has no room), interrupted, unsupported
/// (the model is quantised or packed already), and those of reading; a model whose tensors do not
/// fit its config.json, or with a number that is not finite, is refused.
result<written_model> convert_model(const std::filesystem::path& folder,
                                    const std::filesystem::path& target,
                                    const convert_options& options);

struct pack_options {
  precision experts = precision::stored;  ///< load_options::expert_precision.
  precision dense = precision::stored;    ///< load_options::dense_precision.
  std::size_t shard_bytes = default_shard_bytes;
  work_watch watch;
};

/// Writes a complete folder as convert_model() does, with every matrix as the kernels take it
/// (packed_tensors.hpp): loading it maps the files and gives the bits of loading `folder` with
/// these precisions. Only OrderMoE reads it. What is stored quantised stays so. Memory: 64 rows of
/// a matrix. Errors: those of convert_model().
result<written_model> pack_model(const std::filesystem::path& folder,
                                 const std::filesystem::path& target, const pack_options& options);

}  // namespace ordermoe::model
