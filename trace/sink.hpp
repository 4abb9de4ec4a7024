#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "config/error.hpp"
#include "config/files.hpp"
#include "config/sha256.hpp"

namespace ordermoe::trace {

/// Where a run's lines go, one per event, in the order in which they happened, and the closing line
/// that seals them. An output_file: no half-written trace is left under the name asked for. A
/// problem of the file is told by close(). Thread-safe.
class sink {
 public:
  static result<std::unique_ptr<sink>> open(const std::filesystem::path& path);
  void line(std::string text);
  /// Writes the closing line and brings the file under its name; nothing can be added afterwards.
  result<void> close();

 private:
  explicit sink(output_file file) : file_(std::move(file)) {}
  void flush();

  std::mutex mutex_;
  output_file file_;
  std::string buffer_;
  sha256 hash_;
  std::uint64_t lines_ = 0;
};

}  // namespace ordermoe::trace
