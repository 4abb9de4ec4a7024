#include "net/relay/arrival.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <optional>

namespace ordermoe::net {

namespace {

constexpr std::int64_t longest_ns = 1'000'000'000;  ///< Ago; otherwise the clock was set.

template <class Clock>
std::int64_t now_ns() {
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

/// When the kernel says that they came, by its real-time clock.
std::optional<std::int64_t> stamp_of(msghdr& message) {
  for (auto* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_TIMESTAMPNS) continue;
    timespec stamp{};
    std::memcpy(&stamp, CMSG_DATA(each), sizeof(stamp));
    return std::int64_t{stamp.tv_sec} * 1'000'000'000 + stamp.tv_nsec;
  }
  return std::nullopt;
}

}  // namespace

void stamp_arrivals(int socket) {
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on));
}

arrival receive(int socket, std::span<char> into, boost::system::error_code& problem) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec)) + 64> control;
  iovec part{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  do n = ::recvmsg(socket, &message, MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0) {
    problem.assign(errno, boost::system::system_category());
    return {};
  }
  if (n == 0) problem = boost::asio::error::eof;
  arrival got{static_cast<std::size_t>(n), now_ns<std::chrono::steady_clock>()};
  if (const auto stamp = stamp_of(message))
    if (const auto ago = now_ns<std::chrono::system_clock>() - *stamp;
        ago > 0 && ago < longest_ns) {
      got.came_ns -= ago;
      got.stamped = true;
    }
  return got;
}

}  // namespace ordermoe::net
