#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "config/error.hpp"

namespace ordermoe {

/// The whole file as bytes. Errors: not_found, io; out_of_range where it is larger than max_bytes.
result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = std::size_t{1} << 31);

/// Replaces a file in one step: writes a temporary file beside it, syncs, renames. An interrupt or
/// a full disk leaves the old file, or none, and never half of the new one. Errors: io.
result<void> write_file(const std::filesystem::path& path, std::string_view bytes);

/// Lower-case hexadecimal SHA-256 of the bytes.
std::string sha256_hex(std::string_view bytes);

}  // namespace ordermoe
