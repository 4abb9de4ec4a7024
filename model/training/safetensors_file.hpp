#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Writes tensors in the safetensors format, and reads back the files that training wrote (its
/// checkpoints).
namespace ordermoe::training {

struct stored_tensor {
  std::string name;
  std::string dtype;  ///< "F32" or "BF16".
  std::vector<std::int64_t> shape;
  std::string bytes;  ///< Little-endian, row-major.
};

struct stored_file {
  std::vector<stored_tensor> tensors;
  std::map<std::string, std::string> metadata;
  const stored_tensor* find(std::string_view name) const;
};

/// Whether something has this name. Error: io, where that cannot be told.
result<bool> is_there(const std::filesystem::path& path);

std::string safetensors_bytes(const stored_file& content);
/// Replaces the file in one step. Errors: io.
result<void> write_safetensors(const std::filesystem::path& path, const stored_file& content);
/// Errors: not_found, io; malformed where the header, an offset or a size does not fit the file.
result<stored_file> read_stored_file(const std::filesystem::path& path);

stored_tensor store_f32(std::string name, std::vector<std::int64_t> shape, const float* values);
/// Rounds to bf16, to nearest, ties to even.
stored_tensor store_bf16(std::string name, std::vector<std::int64_t> shape, const float* values);

}  // namespace ordermoe::training
