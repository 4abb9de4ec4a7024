#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// Many requests at once from one thread, as a client with an event loop asks them.
namespace ordermoe::bench {

/// One answer, whatever comes of it read as it comes.
class http_stream {
 public:
  http_stream() = default;
  ~http_stream() {
    if (socket_ >= 0) ::close(socket_);
  }
  http_stream(const http_stream&) = delete;
  http_stream& operator=(const http_stream&) = delete;

  /// False where nobody is there.
  bool ask(std::uint16_t port, std::string_view request) {
    parser_.eager(true);
    parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    return ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0 &&
           ::send(socket_, request.data(), request.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(request.size());
  }

  /// What is there now, of which the body is told; false once nothing will follow.
  bool hear(const std::function<void(std::string_view)>& part) {
    const auto n = ::recv(socket_, buffer_.data() + held_, buffer_.size() - held_, 0);
    if (n <= 0) return false;
    held_ += static_cast<std::size_t>(n);
    boost::system::error_code why;
    std::size_t at = 0;
    while (at < held_ && !parser_.is_done() && !why)
      at += parser_.put(boost::asio::buffer(buffer_.data() + at, held_ - at), why);
    std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(at),
              buffer_.begin() + static_cast<std::ptrdiff_t>(held_), buffer_.begin());
    held_ -= at;
    if (why && why != boost::beast::http::error::need_more) return false;
    auto& body = parser_.get().body();
    if (!body.empty()) part(body);
    body.clear();
    return !parser_.is_done();
  }

  int socket() const { return socket_; }
  bool is_whole() const { return parser_.is_done() && parser_.get().result_int() == 200; }

 private:
  int socket_ = -1;
  boost::beast::http::response_parser<boost::beast::http::string_body> parser_;
  std::array<char, 16u << 10> buffer_;
  std::size_t held_ = 0;  ///< That the parser wants to see again.
};

/// The same request so often at once, to a port of this machine; `part` is told which answer a part is of. How many came whole.
inline std::size_t ask_at_once(std::uint16_t port, const std::string& request, std::size_t times,
                               const std::function<void(std::size_t, std::string_view)>& part) {
  const auto streams = std::make_unique<http_stream[]>(times);
  const int loop = ::epoll_create1(0);
  std::size_t open = 0, whole = 0;
  for (std::size_t i = 0; i < times; ++i) {
    if (!streams[i].ask(port, request)) continue;
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.u64 = i;
    ::epoll_ctl(loop, EPOLL_CTL_ADD, streams[i].socket(), &wanted);
    ++open;
  }
  std::array<epoll_event, 64> ready;
  while (open > 0) {
    const auto n = ::epoll_wait(loop, ready.data(), static_cast<int>(ready.size()), -1);
    for (int at = 0; at < n; ++at) {
      const auto i = static_cast<std::size_t>(ready[static_cast<std::size_t>(at)].data.u64);
      if (streams[i].hear([&](std::string_view text) { part(i, text); })) continue;
      ::epoll_ctl(loop, EPOLL_CTL_DEL, streams[i].socket(), nullptr);
      whole += streams[i].is_whole();
      --open;
    }
  }
  ::close(loop);
  return whole;
}

}  // namespace ordermoe::bench
