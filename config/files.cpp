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

result<void> write_file(const fs::path& path, std::string_view bytes) {
  const auto fail = [&](const char* step, int code) {
    return error{errc::io, fmt::format("{}: {} failed: {}; nothing was changed", path.string(),
                                       step, std::strerror(code))};
  };
  std::string pattern = path.string() + ".XXXXXX";
  const int file = ::mkstemp(pattern.data());
  if (file < 0) return fail("creating a temporary file beside it", errno);
  const auto discard = [&](const char* step) {
    const int code = errno;
    ::close(file);
    ::unlink(pattern.c_str());
    return fail(step, code);
  };
  std::size_t written = 0;
  while (written < bytes.size()) {
    const auto n = ::write(file, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return discard("writing");
    written += static_cast<std::size_t>(n);
  }
  if (::fchmod(file, 0644) != 0) return discard("setting permissions");
  if (::fsync(file) != 0) return discard("flushing to disk");
  ::close(file);
  if (::rename(pattern.c_str(), path.c_str()) != 0) {
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
