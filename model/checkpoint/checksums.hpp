#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "config/error.hpp"

/// SHA-256 over files of any size, and the list of them that a model's folder carries.
///
/// The list is the one that sha256sum writes and `sha256sum -c` reads: a line of 64 hexadecimal
/// digits, two spaces and the plain name of a file in the same folder.
namespace ordermoe::model {

/// How long work is watched and ended.
struct work_watch {
  std::function<void(double share_done)> progress;  ///< From 0 to 1; may be empty.
  std::function<bool()> should_stop;                ///< Asked often; may be empty.

  bool stopped() const { return should_stop && should_stop(); }
  void show(double share_done) const {
    if (progress) progress(share_done);
  }
};

inline constexpr const char* checksums_name = "SHA256SUMS";

/// Digests by file name.
using checksum_list = std::map<std::string, std::string>;

/// Whether a folder's list must have the file: what a model is read from.
bool belongs_to_model(std::string_view file_name);

/// Digests of the files in a folder that belong to a model. Reads them once, some MiB at a time.
/// Errors: not_found, io, interrupted.
result<checksum_list> hash_model_files(const std::filesystem::path& folder,
                                       const work_watch& watch = {});
/// The digest of one file. Errors: not_found, io, interrupted.
result<std::string> hash_file(const std::filesystem::path& path, const work_watch& watch = {});

/// FOLDER/SHA256SUMS. Errors: not_found, io, malformed (with the line).
result<checksum_list> read_checksums(const std::filesystem::path& folder);
/// The text of the list.
std::string checksums_text(const checksum_list& list);

}  // namespace ordermoe::model
