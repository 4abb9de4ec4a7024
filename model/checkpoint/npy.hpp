#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "config/error.hpp"

namespace ordermoe::model {

/// Writes fp32 numbers [n_rows, n_columns] as a NumPy .npy file, format version 1.0, little-endian,
/// C order, in one step. Errors: io.
result<void> write_npy(const std::filesystem::path& path, std::span<const float> numbers,
                       std::size_t n_rows, std::size_t n_columns);

}  // namespace ordermoe::model
