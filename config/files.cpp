#include "config/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace ordermoe {

namespace fs = std::filesystem;

result<std::string> read_file(const fs::path& path, std::size_t max_bytes) {
  std::error_code status;
  if (!fs::exists(path, status) && status)
    return error{errc::io,
                 fmt::format("{}: cannot be reached: {}; check the path and its permissions",
                             path.string(), status.message())};
  if (!fs::exists(path, status))
    return error{errc::not_found, fmt::format("{}: no such file; check the path", path.string())};
  if (fs::is_directory(path, status))
    return error{errc::not_found, fmt::format("{}: is a folder, expected a file", path.string())};
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return error{errc::io,
                 fmt::format("{}: cannot be opened: {}", path.string(), std::strerror(errno))};
  std::string bytes;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof buffer) || stream.gcount() > 0) {
    bytes.append(buffer, static_cast<std::size_t>(stream.gcount()));
    if (bytes.size() > max_bytes)
      return error{errc::out_of_range,
                   fmt::format("{}: larger than the {} bytes allowed", path.string(), max_bytes)};
  }
  if (stream.bad()) return error{errc::io, fmt::format("{}: reading failed", path.string())};
  return bytes;
}

namespace {

/// Writes all the bytes; false with errno set where the system refuses.
bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// Devices and pipes are written to; replacing them would destroy them.
result<void> write_in_place(const fs::path& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written = file >= 0 && write_all(file, bytes);
  const int code = errno;
  if (file >= 0) ::close(file);
  if (!written)
    return error{errc::io, fmt::format("{}: writing failed: {}; choose another destination",
                                       path.string(), std::strerror(code))};
  return {};
}

}  // namespace

result<void> write_file(const fs::path& path, std::string_view bytes) {
  std::error_code status;
  const auto kind = fs::status(path, status).type();
  if (kind == fs::file_type::directory)
    return error{errc::io,
                 fmt::format("{}: is a folder, expected the name of a file; choose another "
                             "destination",
                             path.string())};
  if (kind != fs::file_type::regular && kind != fs::file_type::not_found &&
      kind != fs::file_type::none && kind != fs::file_type::unknown)
    return write_in_place(path, bytes);
  const auto fail = [&](const char* step, int code) {
    return error{errc::io,
                 fmt::format("{}: {} failed: {}; nothing was changed, make room or choose "
                             "another destination",
                             path.string(), step, std::strerror(code))};
  };
  // A symbolic link keeps pointing where it did: what it points at is replaced.
  const auto target = fs::is_symlink(path, status) ? fs::canonical(path, status) : path;
  if (status && target.empty()) return fail("following the symbolic link", status.value());
  std::string pattern = target.string() + ".XXXXXX";
  const int file = ::mkostemp(pattern.data(), O_CLOEXEC);
  if (file < 0) return fail("creating a temporary file beside it", errno);
  const auto discard = [&](const char* step) {
    const int code = errno;
    ::close(file);
    ::unlink(pattern.c_str());
    return fail(step, code);
  };
  if (!write_all(file, bytes)) return discard("writing");
  if (::fchmod(file, 0644) != 0) return discard("setting permissions");
  if (::fsync(file) != 0) return discard("flushing to disk");
  ::close(file);
  if (::rename(pattern.c_str(), target.c_str()) != 0) {
    const int code = errno;
    ::unlink(pattern.c_str());
    return fail("renaming", code);
  }
  return {};
}

std::string sha256_hex(std::string_view bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  std::string text;
  text.reserve(2 * sizeof digest);
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace ordermoe
