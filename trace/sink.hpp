#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "config/error.hpp"
#include "config/files.hpp"
#include "config/sha256.hpp"

namespace ordermoe::trace {

/// Where a run's lines go, one per event, in the order in which they happened, and the closing line
/// that seals them. An output_file: no half-written trace is left under the name asked for. A
/// problem of the file is told by close(). Thread-safe.
///
/// Where servers write a file each, every line begins with a stamp, a hybrid logical clock in nanoseconds since 1970 (Kulkarni
/// et al. 2014): frames carry it, so that whatever causes a line in another file has a lower one, and `trace merge` can put
/// the files together.
class sink {
 public:
  enum class stamps : bool { none, before_each_line };
  static result<std::unique_ptr<sink>> open(const std::filesystem::path& path,
                                            stamps with = stamps::none);
  void line(std::string text);
  /// No line before now has a larger one; 0 without stamps.
  std::uint64_t stamp() const;
  /// Lines from now on have larger ones than this.
  void observe(std::uint64_t stamp);
  /// Writes the closing line and brings the file under its name; nothing can be added afterwards.
  result<void> close();

 private:
  sink(output_file file, stamps with) : file_(std::move(file)), stamps_(with) {}
  void flush();
  void add_stamped(std::string_view text);

  mutable std::mutex mutex_;
  output_file file_;
  stamps stamps_;
  std::uint64_t stamp_ = 0;
  std::string buffer_;
  sha256 hash_;
  std::uint64_t lines_ = 0;
};

}  // namespace ordermoe::trace
