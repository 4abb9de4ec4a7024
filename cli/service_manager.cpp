#include "cli/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace ordermoe::cli {

void notify(const char* text) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto size = std::strlen(path);
  if (size >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path, size);
  // A name that begins with @ is in the abstract name space.
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int with = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (with < 0) return;
  ::sendto(with, text, std::strlen(text), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size));
  ::close(with);
}

std::chrono::milliseconds watchdog_period() {
  const char* text = std::getenv("WATCHDOG_USEC");
  const auto allowed_us = text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  return std::chrono::milliseconds(allowed_us > 0 ? std::max<std::int64_t>(1, allowed_us / 2000)
                                                  : 0);
}

}  // namespace ordermoe::cli
