#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

/// A TCP connection, in TLS or not, so that what is above is compiled once. Of net/http's sources alone.
namespace ordermoe::net::http_detail {

class byte_stream {
 public:
  using done = std::function<void(const boost::system::error_code&, std::size_t)>;
  virtual ~byte_stream() = default;
  /// Before anything else.
  virtual void open(std::function<void(const boost::system::error_code&)> told) = 0;
  virtual void read(char* to, std::size_t most, done told) = 0;
  /// What read() tells.
  struct had {
    boost::system::error_code problem;
    std::size_t bytes = 0;
  };
  /// What comes within that time, on the calling thread, which sleeps until then: a wake for each part and nothing
  /// besides. try_again where nothing came. None: this stream has read() alone. While no read() is under way.
  virtual std::optional<had> read_within(char*, std::size_t, std::chrono::milliseconds) {
    return std::nullopt;
  }
  /// All of it; the text must live until told.
  virtual void write(std::string_view what, done told) = 0;
  /// How much of it is written at once: what there is room for, or nothing. While no write() is under way; on any thread,
  /// but not beside end_writing() or close().
  virtual std::size_t write_now(std::string_view) { return 0; }
  /// Says that nothing more is written; all that was is. `told` once it is said, or cannot be; this lives until then.
  virtual void end_writing(std::function<void()> told) = 0;
  virtual void close() = 0;
};

std::unique_ptr<byte_stream> plain_stream(boost::asio::ip::tcp::socket socket);
/// The end that accepted the connection.
std::unique_ptr<byte_stream> accepted_tls_stream(boost::asio::ip::tcp::socket socket,
                                                 boost::asio::ssl::context& context);
/// The end that dialled it: the other's certificate must be of this host.
std::unique_ptr<byte_stream> dialled_tls_stream(boost::asio::ip::tcp::socket socket,
                                                boost::asio::ssl::context& context,
                                                const std::string& host);

}  // namespace ordermoe::net::http_detail
