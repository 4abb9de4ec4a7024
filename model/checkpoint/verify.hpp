#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/checksums.hpp"
#include "model/checkpoint/safetensors.hpp"

/// Whether a model's folder is whole: every part against every other.
///
/// Where loading stops at the first thing wrong, this goes on and names them all. Nothing is held
/// in memory but headers: numbers are read through the map and given back.
namespace ordermoe::model {

enum class checksum_check {
  skip,
  verify,  ///< Against FOLDER/SHA256SUMS, which must be there.
};

struct verify_report {
  std::vector<error> problems;  ///< Empty: the model is whole. Each names its file and tensor.
  std::size_t n_files = 0;      ///< Of weights, opened.
  std::size_t n_tensors = 0;
  std::uint64_t tensor_bytes = 0;
  std::map<std::string, std::size_t> tensors_of_type;
  std::size_t tokenizer_pieces = 0;  ///< 0 where it cannot be read.
  std::size_t n_checksums = 0;       ///< Files whose digest was compared.
};

/// Checks config.json; the files of weights by themselves; shards against their index (files that
/// are not there, tensors that are not in the shard named for them, total_size); tensors against
/// config.json (missing, of another shape, without a place); that all numbers are finite; the
/// tokenizer against the vocabulary; digests where asked for. What is wrong with the model is in
/// the report. Errors: not_found (no such folder), unsupported (half trained), interrupted.
result<verify_report> verify_model(const std::filesystem::path& folder, checksum_check checksums,
                                   const work_watch& watch = {});

/// Names and shapes of tensors against a config.json: a problem for each that is missing, has
/// another shape, or has no place in the model. `place` is what messages about missing ones name; `may_lack` may be
/// missing (part.hpp).
/// Reads no numbers, but for an output projection that must equal the embedding.
std::vector<error> compare_tensors(const model_config& config, const std::string& place,
                                   const std::map<std::string, tensor_view, std::less<>>& tensors,
                                   const std::set<std::string, std::less<>>& may_lack = {});

}  // namespace ordermoe::model
