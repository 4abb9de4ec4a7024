#include "net/http/connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <cctype>
#include <charconv>
#include <utility>

namespace ordermoe::net {

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
  }
  return "Unknown";
}

}  // namespace ordermoe::net

namespace ordermoe::net::http_detail {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

/// That wait for the request before to be answered; more are not read.
constexpr std::size_t most_ahead = 64u << 10;
constexpr std::size_t most_shown = 40;
constexpr std::chrono::milliseconds linger_time(2'000);

/// As they are sent, or less.
std::size_t bytes_of(const http::fields& fields) {
  constexpr std::size_t others = 3;  // A colon and the end of the line.
  std::size_t bytes = 0;
  for (const auto& each : fields) bytes += each.name_string().size() + each.value().size() + others;
  return bytes;
}

std::string lower(std::string_view text) {
  std::string made(text);
  std::ranges::transform(made, made.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return made;
}

}  // namespace

/// What the handler has of a connection.
class exchange final : public http_exchange {
 public:
  exchange(std::shared_ptr<connection> of, std::uint64_t number, http_request request)
      : of_(std::move(of)), number_(number), request_(std::move(request)) {}

  ~exchange() override {
    if (is_answered_) return;
    // Whoever lets go of it may be on any thread.
    asio::post(of_->side_.io, [of = of_, number = number_] {
      if (of->is_current(number)) of->close();
    });
  }

  const http_request& request() const override { return request_; }

  void respond(int status, const http_fields& fields, std::string_view body) override {
    if (std::exchange(is_answered_, true) || !of_->is_current(number_)) return;
    of_->put_head(status, fields, body.size());
    of_->put_body(body);
    of_->finish();
  }
  void begin_stream(int status, const http_fields& fields) override {
    if (of_->is_current(number_)) of_->put_head(status, fields, std::nullopt);
  }
  void write(std::string_view part) override { of_->put(number_, part); }
  void end() override {
    if (std::exchange(is_answered_, true) || !of_->is_current(number_)) return;
    of_->end_stream();
    of_->finish();
  }
  void on_gone(std::function<void()> told) override {
    if (of_->is_current(number_))
      of_->gone_ = std::move(told);
    else if (!is_answered_)
      told();
  }

 private:
  std::shared_ptr<connection> of_;
  std::uint64_t number_;
  http_request request_;
  bool is_answered_ = false;
};

connection::connection(server_side& side, std::unique_ptr<byte_stream> stream, std::string peer)
    : side_(side), stream_(std::move(stream)), peer_(std::move(peer)), timer_(side.io) {}

void connection::open() {
  set_timer(side_.options.limits.header_time);
  stream_->open([self = shared_from_this()](const error_code& problem) {
    if (problem) return self->close();
    if (self->state_ != state::opening) return;
    self->begin_request();
    self->read();
  });
}

void connection::close() {
  if (std::exchange(state_, state::closed) == state::closed) return;
  due_.reset();
  timer_.cancel();
  {
    const std::lock_guard lock(mutex_);
    streams_ = 0;
    out_.clear();
    stream_->close();
  }
  const auto gone = std::exchange(gone_, {});
  const auto self = shared_from_this();
  side_.forget(this);
  if (gone) gone();
}

void connection::begin_request() {
  state_ = state::head;
  told_to_continue_ = has_head_ = false;
  request_ = {};
  most_body_ = side_.options.limits.body_bytes;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(side_.options.limits.header_bytes));
  parser_->body_limit(side_.options.limits.body_bytes);
  // Whoever connects has something to say, and its time has begun then.
  if (number_ == 0) return;
  set_timer(in_.size() == 0 ? side_.options.limits.idle_time : side_.options.limits.header_time);
}

// --------------------------------------------------------------------------------------- reading

void connection::read() {
  if (reading_ || state_ == state::closed) return;
  if (state_ == state::answering && in_.size() > most_ahead) return;
  reading_ = true;
  stream_->read(read_.data(), read_.size(),
                [self = shared_from_this()](const error_code& problem, std::size_t n) {
                  self->take(problem, n);
                });
}

void connection::take(const error_code& problem, std::size_t n) {
  reading_ = false;
  if (state_ == state::closed) return;
  // Whoever says that it says no more has gone: it would not hear the end of a stream otherwise.
  if (problem) return close();
  if (state_ == state::lingering) return read();
  // The first request has its time from when the connection was opened.
  const bool begins =
      state_ == state::head && number_ > 0 && in_.size() == 0 && !parser_->got_some() && n > 0;
  in_.commit(asio::buffer_copy(in_.prepare(n), asio::buffer(read_, n)));
  if (begins) set_timer(side_.options.limits.header_time);
  advance();
  read();
}

void connection::advance() {
  if (state_ != state::head && state_ != state::body) return;
  if (!parse()) return;
  if (parser_->is_done() || (has_head_ && most_body_ == 0)) return dispatch();
  if (!parser_->is_header_done()) return;
  if (state_ == state::head) {
    state_ = state::body;
    set_timer(side_.options.limits.body_time);
  }
  if (!told_to_continue_ &&
      boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    told_to_continue_ = true;
    const std::lock_guard lock(mutex_);
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
}

/// What is here of the request; false where it was refused.
bool connection::parse() {
  while (in_.size() > 0 && !parser_->is_done()) {
    error_code problem;
    const auto used = parser_->put(in_.data(), problem);
    in_.consume(used);
    // The parser has a limit for what it reads at once, and takes field after field where they come so.
    if (used > 0 && (!problem || problem == http::error::need_more) &&
        bytes_of(parser_->get()) > side_.options.limits.header_bytes)
      problem = http::error::header_limit;
    if (problem == http::error::need_more) {
      // What the parser wants to see at once: the fields, a line before a chunk, the fields behind the last one. No limit of
      // its own holds for the last two.
      if (in_.size() <= side_.options.limits.header_bytes) return true;
      problem = http::error::header_limit;
    }
    if (problem == http::error::header_limit) {
      refuse(431,
             fmt::format("the fields of the request, or a line before a chunk of its body, have "
                         "more than {} bytes; send fewer",
                         side_.options.limits.header_bytes));
      return false;
    }
    if (problem == http::error::body_limit) {
      refuse_body();
      return false;
    }
    if (problem) {
      refuse(400, fmt::format("the request is no HTTP/1.1: {}", problem.message()));
      return false;
    }
    if (!has_head_ && parser_->is_header_done() && !take_head()) return false;
    if (has_head_ && most_body_ == 0) return true;
    if (used == 0) break;
  }
  return true;
}

/// Refuses what somebody who reads along may understand otherwise: where the body ends, and whom the request is for and from. What
/// comes behind a body adds nothing to its fields.
bool connection::take_head() {
  const auto& head = parser_->get();
  for (const auto name : {http::field::host, http::field::authorization})
    if (head.count(name) > 1) {
      refuse(400, fmt::format("the request has the field {} more than once; send one",
                              std::string(http::to_string(name))));
      return false;
    }
  if (head.count(http::field::transfer_encoding) > 0) {
    const auto coding = std::string(head[http::field::transfer_encoding]);
    if (!boost::beast::iequals(coding, "chunked")) {
      refuse(501, fmt::format("the transfer coding '{}' is not known, expected chunked",
                              coding.substr(0, most_shown)));
      return false;
    }
    if (head.version() < 11) {
      refuse(400, "a transfer coding in a request of HTTP/1.0; send a Content-Length");
      return false;
    }
  }
  for (const auto& each : head)
    request_.fields[lower({each.name_string().data(), each.name_string().size()})] =
        std::string(each.value());
  request_.method = std::string(head.method_string());
  const std::string_view target(head.target().data(), head.target().size());
  const auto mark = target.find('?');
  request_.path = target.substr(0, mark);
  if (mark != std::string_view::npos) request_.query = target.substr(mark + 1);
  request_.peer = peer_;
  has_head_ = true;
  if (const auto& most_body = side_.options.most_body)
    most_body_ = std::min(most_body_, most_body(request_));
  if (most_body_ > 0 && parser_->content_length().value_or(0) > most_body_) {
    refuse_body();
    return false;
  }
  parser_->body_limit(most_body_);
  parser_->eager(true);
  return true;
}

void connection::refuse_body() {
  refuse(413, fmt::format("the body of the request has more than {} bytes; send less", most_body_));
}

void connection::dispatch() {
  // Bytes of a body that is not read would be taken for the next request.
  const bool is_whole = parser_->is_done();
  auto message = parser_->release();
  auto request = std::move(request_);
  request.body = std::move(message.body());
  keeps_alive_ = is_whole && message.keep_alive();
  is_old_ = message.version() < 11;
  has_no_body_ = request.method == "HEAD";
  begin_answer();
  ++side_.figures.requests;
  side_.handler(std::make_shared<exchange>(shared_from_this(), number_, std::move(request)));
}

// --------------------------------------------------------------------------------------- answering

void connection::begin_answer() {
  state_ = state::answering;
  due_.reset();
  ++number_;
  const std::lock_guard lock(mutex_);
  is_complete_ = is_chunked_ = false;
  // Leave to go on, which its peer has not taken yet.
  if (!writing_.empty()) set_timer(side_.options.limits.write_time);
}

void connection::put_head(int status, const http_fields& fields,
                          std::optional<std::size_t> length) {
  const std::lock_guard lock(mutex_);
  auto to = std::back_inserter(out_);
  fmt::format_to(to, "HTTP/1.{} {} {}\r\n", is_old_ ? 0 : 1, status, reason_of(status));
  for (const auto& [name, value] : fields) fmt::format_to(to, "{}: {}\r\n", name, value);
  is_chunked_ = !length && !is_old_;
  if (length)
    fmt::format_to(to, "Content-Length: {}\r\n", *length);
  else if (is_chunked_)
    out_ += "Transfer-Encoding: chunked\r\n";
  else
    keeps_alive_ = false;
  if (!keeps_alive_)
    out_ += "Connection: close\r\n";
  else if (is_old_)
    out_ += "Connection: keep-alive\r\n";
  out_ += "\r\n";
  if (length) return;
  if (!has_no_body_) streams_ = number_;
  flush();
}

void connection::put_body(std::string_view body) {
  const std::lock_guard lock(mutex_);
  if (!has_no_body_) out_ += body;
}

void connection::put(std::uint64_t number, std::string_view part) {
  const std::lock_guard lock(mutex_);
  if (part.empty() || streams_ == 0 || number != streams_) return;
  if (is_chunked_) {
    std::array<char, 16> digits;
    const auto end = std::to_chars(digits.begin(), digits.end(), part.size(), 16).ptr;
    out_.append(digits.data(), end);
    out_ += "\r\n";
    out_ += part;
    out_ += "\r\n";
  } else {
    out_ += part;
  }
  // Not from within the writer's own call, which would be told of an end that it does not expect.
  if (out_.size() + writing_.size() > side_.options.limits.unsent_bytes)
    return asio::post(side_.io, [self = shared_from_this()] { self->close(); });
  flush();
}

void connection::end_stream() {
  const std::lock_guard lock(mutex_);
  if (is_chunked_ && !has_no_body_) out_ += "0\r\n\r\n";
  streams_ = 0;
}

void connection::finish() {
  gone_ = {};
  const std::lock_guard lock(mutex_);
  is_complete_ = true;
  if (!out_.empty() || !writing_.empty()) return flush();
  // All of it was written as it came, and nothing is to be said behind it.
  asio::post(side_.io, [self = shared_from_this()] { self->written({}, 0); });
}

namespace {

/// What the calling thread has put and not written.
struct writing_turn {
  const server_side* of = nullptr;  ///< Null: it writes at once.
  std::vector<std::shared_ptr<connection>> unwritten;
};
thread_local writing_turn turn;

}  // namespace

void server_side::begin_turn() {
  turn.of = this;
}

void server_side::end_turn() {
  turn.of = nullptr;
  for (const auto& each : turn.unwritten) {
    const std::lock_guard lock(each->mutex_);
    each->write_out();
  }
  turn.unwritten.clear();
}

void connection::flush() {
  if (turn.of != &side_) return write_out();
  auto& unwritten = turn.unwritten;
  if (unwritten.empty() || unwritten.back().get() != this) unwritten.push_back(shared_from_this());
}

/// A part of a stream is written by whoever has it, as far as there is room: most find some, and nobody has to be woken. What
/// needs time, or ends the answer, is the server's own thread's.
void connection::write_out() {
  if (!writing_.empty() || out_.empty()) return;
  if (streams_ != 0) out_.erase(0, stream_->write_now(out_));
  if (out_.empty()) return;
  if (side_.is_here()) return begin_writing();
  if (std::exchange(is_called_, true)) return;
  asio::post(side_.io, [self = shared_from_this()] {
    const std::lock_guard lock(self->mutex_);
    self->is_called_ = false;
    if (self->writing_.empty() && !self->out_.empty()) self->begin_writing();
  });
}

void connection::begin_writing() {
  if (state_ == state::closed) return;
  writing_.swap(out_);
  n_written_ = 0;
  write_part();
}

/// So much at a time as every peer that reads at all takes within write_time.
void connection::write_part() {
  constexpr std::size_t part_bytes = 64 << 10;
  if (state_ != state::body) set_timer(side_.options.limits.write_time);
  stream_->write(std::string_view(writing_).substr(n_written_, part_bytes),
                 [self = shared_from_this()](const error_code& problem, std::size_t n) {
                   self->written(problem, n);
                 });
}

void connection::written(const error_code& problem, std::size_t n) {
  std::unique_lock lock(mutex_);
  n_written_ += n;
  if (!problem && state_ != state::closed && n_written_ < writing_.size()) return write_part();
  writing_.clear();
  if (state_ == state::closed) return;
  if (problem) {
    lock.unlock();
    return close();
  }
  write_out();
  if (!writing_.empty()) return;
  const bool is_complete = is_complete_;
  lock.unlock();
  if (state_ == state::answering) {
    due_.reset();
    if (!is_complete) return;
    if (!keeps_alive_) return linger();
    begin_request();
    advance();
    read();
  }
}

void connection::refuse(int status, std::string_view what) {
  ++side_.figures.refused;
  keeps_alive_ = is_old_ = has_no_body_ = false;
  begin_answer();
  const auto body =
      side_.options.problem_body ? side_.options.problem_body(status, what) : std::string(what);
  put_head(status, {{"Content-Type", side_.options.problem_type}}, body.size());
  put_body(body);
  finish();
}

/// A socket that is closed with bytes unread takes back what was written: the peer would not see it.
void connection::linger() {
  state_ = state::lingering;
  in_.consume(in_.size());
  stream_->end_writing([self = shared_from_this()] {});
  set_timer(linger_time);
  read();
}

// --------------------------------------------------------------------------------------- time

/// A stream is given time for each of its parts: a timer that rings too early looks when it is due now.
void connection::set_timer(std::chrono::milliseconds time) {
  due_ = clock::now() + time;
  if (!rings_at_ || *rings_at_ > *due_) ring_at(*due_);
}

void connection::ring_at(clock::time_point at) {
  rings_at_ = at;
  timer_.expires_at(at);
  timer_.async_wait([self = shared_from_this()](const error_code& problem) {
    if (!problem) self->ring();
  });
}

void connection::ring() {
  rings_at_.reset();
  if (!due_) return;
  if (clock::now() < *due_) return ring_at(*due_);
  due_.reset();
  late();
}

void connection::late() {
  const bool has_begun =
      state_ == state::body || (state_ == state::head && (in_.size() > 0 || parser_->got_some()));
  if (!has_begun) return close();
  refuse(408, "the request did not come in time; send it faster");
}

}  // namespace ordermoe::net::http_detail
