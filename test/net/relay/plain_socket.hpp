#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "config/error.hpp"

/// Sockets as programs at both ends of a relay have them. What waits for 30 s has failed: no test is meant to.
namespace ordermoe::test {

constexpr auto patience = std::chrono::seconds(30);

class plain_socket {
 public:
  enum class version { v4, v6 };

  plain_socket() = default;
  ~plain_socket() { close(); }
  plain_socket(plain_socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  plain_socket& operator=(plain_socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }

  /// On the loopback address and a port that is free; nothing where the system has no such address.
  static std::optional<plain_socket> listening(version of = version::v4) {
    plain_socket made(of);
    const auto [address, length] = loopback(of, 0);
    if (made.file_ < 0 || ::bind(made.file_, as_any(address), length) != 0) return {};
    ORDERMOE_CHECK(::listen(made.file_, 64) == 0, "listen");
    return made;
  }
  /// Whoever is reset at once may hear of it here already; reading then gives nothing, as it would a moment later.
  static plain_socket dialled(std::uint16_t port, version of = version::v4) {
    plain_socket made(of);
    const auto [address, length] = loopback(of, port);
    const bool connected = ::connect(made.file_, as_any(address), length) == 0;
    ORDERMOE_CHECK(connected || errno == ECONNRESET, "connect");
    return made;
  }
  plain_socket accept() {
    ORDERMOE_CHECK(readable(patience), "nobody dialled");
    plain_socket made;
    made.file_ = ::accept(file_, nullptr, nullptr);
    ORDERMOE_CHECK(made.file_ >= 0, "accept");
    return made;
  }
  std::uint16_t port() const {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    ORDERMOE_CHECK(::getsockname(file_, reinterpret_cast<sockaddr*>(&address), &length) == 0,
                   "getsockname");
    return ntohs(address.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }

  bool readable(std::chrono::milliseconds within) const { return waits_for(POLLIN, within); }
  bool writable(std::chrono::milliseconds within) const { return waits_for(POLLOUT, within); }
  /// False where the other side does not take them any more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  /// As many as go without waiting.
  std::size_t send_some(std::string_view bytes) {
    const auto n = ::send(file_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  /// So many, or fewer where it ends before.
  std::string read(std::size_t n) {
    std::string bytes(n, '\0');
    std::size_t done = 0;
    while (done < n) {
      ORDERMOE_CHECK(readable(patience), "nothing came");
      const auto got = ::recv(file_, bytes.data() + done, n - done, 0);
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    bytes.resize(done);
    return bytes;
  }
  /// Up to its end, of whatever kind.
  std::string read_all() {
    std::string bytes;
    for (auto part = read(4096); !part.empty(); part = read(4096)) bytes += part;
    return bytes;
  }
  void end() { ::shutdown(file_, SHUT_WR); }
  /// Closes it by RST.
  void reset() {
    const linger at_once{1, 0};
    ::setsockopt(file_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }
  void close() {
    if (file_ >= 0) ::close(std::exchange(file_, -1));
  }

 private:
  explicit plain_socket(version of)
      : file_(::socket(of == version::v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  static std::pair<sockaddr_storage, socklen_t> loopback(version of, std::uint16_t port) {
    sockaddr_storage address{};
    if (of == version::v4) {
      auto& v4 = reinterpret_cast<sockaddr_in&>(address);
      v4.sin_family = AF_INET;
      v4.sin_port = htons(port);
      v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      return {address, sizeof(sockaddr_in)};
    }
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_addr = in6addr_loopback;
    return {address, sizeof(sockaddr_in6)};
  }
  static const sockaddr* as_any(const sockaddr_storage& address) {
    return reinterpret_cast<const sockaddr*>(&address);
  }
  bool waits_for(short what, std::chrono::milliseconds within) const {
    pollfd one{file_, what, 0};
    return ::poll(&one, 1, static_cast<int>(within.count())) > 0;
  }

  int file_ = -1;
};

/// Looks again until it holds. False where it never does.
template <class Condition>
bool comes_true(const Condition& holds) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace ordermoe::test
