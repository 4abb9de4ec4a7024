#pragma once

#include <array>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "net/http/server.hpp"
#include "net/http/stream.hpp"

/// One connection of a server (README.md has its states). Of net/http's sources alone.
namespace ordermoe::net::http_detail {

/// What connections share; it outlives them. Its own thread, which is the one that makes it where nothing else is said, does
/// everything but what is said to be done on any.
struct server_side {
  boost::asio::io_context& io;
  const http_server_options& options;
  const http_handler& handler;
  http_figures figures;
  std::function<void(const class connection*)> forget;
  std::thread::id own = std::this_thread::get_id();

  bool is_here() const { return std::this_thread::get_id() == own; }
  /// Between these two what the calling thread writes waits, so that what belongs together is one write. On any thread.
  void begin_turn();
  void end_turn();
};

class connection final : public std::enable_shared_from_this<connection> {
 public:
  connection(server_side& side, std::unique_ptr<byte_stream> stream, std::string peer);
  void open();
  /// Nobody is told; what is answered is told that its peer is gone.
  void close();
  /// Answers this and nothing else.
  void refuse(int status, std::string_view what);

 private:
  friend class exchange;
  friend struct server_side;
  enum class state { opening, head, body, answering, lingering, closed };

  void read();
  void take(const boost::system::error_code& problem, std::size_t n);
  void advance();
  bool parse();
  bool take_head();
  void dispatch();
  using clock = std::chrono::steady_clock;
  void set_timer(std::chrono::milliseconds time);
  void ring_at(clock::time_point at);
  void ring();
  void late();
  void begin_request();
  void refuse_body();
  void begin_answer();
  void linger();

  // Of exchanges, by the number of theirs:
  bool is_current(std::uint64_t number) const {
    return state_ == state::answering && number == number_;
  }
  void put_head(int status, const http_fields& fields, std::optional<std::size_t> length);
  void put_body(std::string_view body);
  /// Of a stream that has begun and not ended; else nothing. On any thread.
  void put(std::uint64_t number, std::string_view part);
  /// Nothing more is put into the stream.
  void end_stream();
  void finish();
  /// Lock held, and so beneath. On any thread.
  void flush();
  void write_out();
  /// On the server's own thread.
  void begin_writing();
  void write_part();
  void written(const boost::system::error_code& problem, std::size_t n);

  server_side& side_;
  std::unique_ptr<byte_stream> stream_;
  std::string peer_;
  state state_ = state::opening;
  boost::asio::steady_timer timer_;
  std::optional<clock::time_point> due_;       ///< When it is too late; none: never.
  std::optional<clock::time_point> rings_at_;  ///< The timer, and not after it is due.
  bool reading_ = false;
  /// Of the read that is under way. Not a part of in_, which moves where it is consumed meanwhile.
  std::array<char, 16u << 10> read_;
  boost::beast::flat_buffer in_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  http_request request_;  ///< Its fields, once they are here.
  bool has_head_ = false, told_to_continue_ = false;
  std::size_t most_body_ = 0;  ///< Bytes of its body, once the fields are here.
  // Of the answer:
  std::uint64_t number_ = 0;
  bool keeps_alive_ = false, is_old_ = false, has_no_body_ = false;
  std::function<void()> gone_;

  std::mutex mutex_;  ///< Of everything below, and of the stream where it is closed or written to.
  std::uint64_t streams_ = 0;  ///< The number of the answer that is put in parts; 0: none is.
  bool is_chunked_ = false, is_complete_ = false;
  std::string out_, writing_;
  std::size_t n_written_ = 0;  ///< Of the latter.
  bool is_called_ = false;     ///< The server's own thread will write.
};

}  // namespace ordermoe::net::http_detail
