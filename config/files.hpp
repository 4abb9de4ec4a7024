#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "config/error.hpp"

namespace ordermoe {

/// The whole file as bytes. Errors: not_found, io; out_of_range where it is larger than max_bytes.
result<std::string> read_file(const std::filesystem::path& path,
                              std::size_t max_bytes = std::size_t{1} << 31);

/// A file that is being written. One rule for every output of the program:
///
///   a new name, a regular file   written beside it, and renamed over it by commit(): an interrupt
///                                or a full disk leaves the old file, or none, and never half of
///                                the new one; the mode of an old file stays
///   a symbolic link              followed, dangling or not: what it points at is replaced
///   a device, a fifo             written through as the bytes come, and never replaced; so is what
///                                the program has as its standard output or error
///   a folder, a name in no       refused by open(), as is a file that may not be written
///   folder
///
/// Opening a fifo waits for its reader. Not thread-safe.
class output_file {
 public:
  /// Error: io, naming the path and what to do.
  static result<output_file> open(const std::filesystem::path& path);
  output_file(output_file&&) noexcept;
  output_file& operator=(output_file&&) noexcept;
  /// Without commit(), what was written beside the name goes away.
  ~output_file();

  result<void> write(std::string_view bytes);
  /// Brings the bytes to the disk and the file under its name. Error: io, that of a failed write()
  /// included.
  result<void> commit();

 private:
  struct state;
  explicit output_file(std::unique_ptr<state> opened);
  std::unique_ptr<state> state_;
};

/// Refuses what output_file::open() would refuse, and leaves nothing behind: for commands, before
/// the work whose result goes there.
result<void> check_writable(const std::filesystem::path& path);

/// Whether the path is a device, a fifo or the program's standard output, which take bytes once and
/// not again.
bool is_written_through(const std::filesystem::path& path);

/// All the bytes as one output_file.
result<void> write_file(const std::filesystem::path& path, std::string_view bytes);

/// Lower-case hexadecimal SHA-256 of the bytes.
std::string sha256_hex(std::string_view bytes);

}  // namespace ordermoe
