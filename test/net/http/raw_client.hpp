#pragma once

#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <string>
#include <string_view>

#include "net/channel/address.hpp"

/// A client that says exactly what it is told.
namespace ordermoe::net {

class raw_client {
 public:
  /// `from`: the address of its own end; null: any.
  explicit raw_client(const address& at, int receive_buffer = 0, const char* from = nullptr) {
    using boost::asio::ip::tcp;
    socket_.open(tcp::v4());
    if (from != nullptr) socket_.bind({boost::asio::ip::make_address(from), 0});
    if (receive_buffer > 0)
      socket_.set_option(boost::asio::socket_base::receive_buffer_size(receive_buffer));
    socket_.connect({boost::asio::ip::make_address(at.host), at.port});
    const timeval longest{20, 0};
    ::setsockopt(socket_.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
  }

  /// What cannot be sent any more is not.
  void send(std::string_view text) {
    boost::system::error_code ignored;
    boost::asio::write(socket_, boost::asio::buffer(text.data(), text.size()), ignored);
  }
  /// Until this has come, or the end; all that came since the last call.
  std::string until(std::string_view what) {
    while (got_.find(what) == std::string::npos && read()) {
    }
    const auto at = got_.find(what);
    const auto end = at == std::string::npos ? got_.size() : at + what.size();
    auto text = got_.substr(0, end);
    got_.erase(0, end);
    return text;
  }
  std::string all() {
    while (read()) {
    }
    return std::exchange(got_, {});
  }
  /// So many bytes, which are not kept, or fewer at the end.
  std::size_t some(std::size_t n) {
    while (got_.size() < n && read()) {
    }
    n = std::min(n, got_.size());
    got_.erase(0, n);
    return n;
  }
  /// Without waiting.
  bool has_more() {
    char byte = 0;
    return !got_.empty() || ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  }
  void close() {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  bool read() {
    std::array<char, 4096> part{};
    const auto n = ::recv(socket_.native_handle(), part.data(), part.size(), 0);
    if (n <= 0) return false;
    got_.append(part.data(), static_cast<std::size_t>(n));
    return true;
  }

  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_{io_};
  std::string got_;
};

}  // namespace ordermoe::net
