#include "net/http/open_files.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>

namespace ordermoe::net {

void raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::size_t most_open_files() {
  rlimit limit{};
  const bool is_known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_known ? static_cast<std::size_t>(limit.rlim_cur) : SIZE_MAX;
}

connection_room room_for_connections(std::size_t wanted) {
  constexpr std::size_t reserve = 128;
  const auto most = most_open_files();
  const auto room = most - std::min(reserve, most / 2);
  // Where it is little, most of it is for those who are served.
  const auto served = std::min(wanted, room - room / 8);
  return {served, std::min(wanted, room - served)};
}

}  // namespace ordermoe::net
