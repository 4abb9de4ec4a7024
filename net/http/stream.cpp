#include "net/http/stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <utility>

namespace ordermoe::net::http_detail {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

void set_up(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  // Else the system takes megabytes and says that there is room again when a third of them is gone: a peer that reads slowly would
  // seem not to read at all.
  constexpr int most_unsent = 256 << 10;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most_unsent,
               sizeof most_unsent);
}

class plain final : public byte_stream {
 public:
  explicit plain(tcp::socket socket) : socket_(std::move(socket)) { set_up(socket_); }

  void open(std::function<void(const error_code&)> told) override { told({}); }
  void read(char* to, std::size_t most, done told) override {
    socket_.async_read_some(asio::buffer(to, most), std::move(told));
  }
  std::optional<had> read_within(char* to, std::size_t most,
                                 std::chrono::milliseconds longest) override {
    pollfd wanted{socket_.native_handle(), POLLIN, 0};
    const had nothing{asio::error::try_again};
    if (::poll(&wanted, 1, static_cast<int>(longest.count())) <= 0) return nothing;
    const auto n = ::recv(socket_.native_handle(), to, most, MSG_DONTWAIT);
    if (n > 0) return had{{}, static_cast<std::size_t>(n)};
    if (n == 0) return had{asio::error::eof};
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return nothing;
    return had{{errno, boost::system::system_category()}};
  }
  void write(std::string_view what, done told) override {
    asio::async_write(socket_, asio::buffer(what.data(), what.size()), std::move(told));
  }
  /// What is wrong, write() will meet again.
  std::size_t write_now(std::string_view what) override {
    const auto n =
        ::send(socket_.native_handle(), what.data(), what.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  void end_writing(std::function<void()> told) override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    told();
  }
  void close() override {
    error_code ignored;
    socket_.close(ignored);
  }

 private:
  tcp::socket socket_;
};

class tls final : public byte_stream {
 public:
  tls(tcp::socket socket, asio::ssl::context& context, asio::ssl::stream_base::handshake_type end)
      : stream_(std::move(socket), context), end_(end) {
    set_up(stream_.next_layer());
  }

  void expect(const std::string& host) {
    error_code ignored;
    stream_.set_verify_callback(asio::ssl::host_name_verification(host), ignored);
    asio::ip::make_address(host, ignored);
    // Addresses are no names that a server could choose its certificate by.
    if (ignored) SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
  }

  void open(std::function<void(const error_code&)> told) override {
    stream_.async_handshake(end_, std::move(told));
  }
  void read(char* to, std::size_t most, done told) override {
    stream_.async_read_some(asio::buffer(to, most), std::move(told));
  }
  void write(std::string_view what, done told) override {
    asio::async_write(stream_, asio::buffer(what.data(), what.size()), std::move(told));
  }
  /// Asio's own way also waits for the peer's goodbye, and takes what else comes for an error, behind which nothing is read.
  void end_writing(std::function<void()> told) override {
    goodbye_ = goodbye();
    asio::async_write(stream_.next_layer(), asio::buffer(goodbye_),
                      [this, told = std::move(told)](const error_code&, std::size_t) {
                        error_code ignored;
                        stream_.next_layer().shutdown(tcp::socket::shutdown_send, ignored);
                        told();
                      });
  }
  void close() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  /// The record that says that nothing comes behind it; empty where there is no session. Nothing else is written from then on.
  std::string goodbye() {
    auto* const session = stream_.native_handle();
    auto* const out = BIO_new(BIO_s_mem());
    if (out == nullptr) return {};
    SSL_set0_wbio(session, out);
    SSL_shutdown(session);
    ERR_clear_error();
    char* bytes = nullptr;
    const auto n = BIO_get_mem_data(out, &bytes);
    return n > 0 ? std::string(bytes, static_cast<std::size_t>(n)) : std::string();
  }

  asio::ssl::stream<tcp::socket> stream_;
  asio::ssl::stream_base::handshake_type end_;
  std::string goodbye_;
};

}  // namespace

std::unique_ptr<byte_stream> plain_stream(tcp::socket socket) {
  return std::make_unique<plain>(std::move(socket));
}
std::unique_ptr<byte_stream> accepted_tls_stream(tcp::socket socket, asio::ssl::context& context) {
  return std::make_unique<tls>(std::move(socket), context, asio::ssl::stream_base::server);
}
std::unique_ptr<byte_stream> dialled_tls_stream(tcp::socket socket, asio::ssl::context& context,
                                                const std::string& host) {
  auto made = std::make_unique<tls>(std::move(socket), context, asio::ssl::stream_base::client);
  made->expect(host);
  return made;
}

}  // namespace ordermoe::net::http_detail
