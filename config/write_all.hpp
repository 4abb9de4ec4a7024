#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace ordermoe {

/// Writes all the bytes; false with errno set where the system refuses.
inline bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto n = ::write(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace ordermoe
