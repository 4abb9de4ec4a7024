#include "net/http/client.hpp"

#include <fmt/format.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "net/http/stream.hpp"

namespace ordermoe::net {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t read_bytes = 16u << 10;
constexpr std::chrono::milliseconds slice(100);

/// One request and its answer.
class conversation {
 public:
  conversation(const http_ask& ask, const std::function<void(std::string_view)>& part,
               const std::function<bool()>& paused)
      : ask_(ask), part_(part), paused_(paused) {}

  result<http_reply> run() {
    if (auto done = connect(); !done) return done.error();
    if (auto done = send(); !done) return done.error();
    return hear();
  }

 private:
  error problem(errc code, const std::string& what) const {
    return {code, fmt::format("{}: {}", to_string(ask_.to.at), what)};
  }

  /// After each slice of waiting. Errors: interrupted, timed_out.
  result<void> may_wait(std::chrono::steady_clock::time_point end,
                        std::chrono::milliseconds longest, const char* what) const {
    if (paused_ && paused_()) return error{errc::interrupted, "interrupted"};
    if (std::chrono::steady_clock::now() < end) return {};
    return problem(errc::timed_out, fmt::format("{} took longer than {} s", what,
                                                static_cast<double>(longest.count()) / 1000));
  }

  /// Until `done` is set; by then at the latest.
  result<void> wait(const bool& done, std::chrono::milliseconds longest, const char* what) {
    const auto end = std::chrono::steady_clock::now() + longest;
    while (!done) {
      io_.restart();
      io_.run_one_for(slice);
      if (done) break;
      if (auto may = may_wait(end, longest, what); !may) return may;
    }
    if (failed_) return problem(errc::io, fmt::format("{}: {}", what, failed_.message()));
    return {};
  }

  result<void> connect() {
    tcp::resolver names(io_);
    error_code unknown;
    const auto found = names.resolve(ask_.to.at.host, std::to_string(ask_.to.at.port),
                                     tcp::resolver::numeric_service, unknown);
    if (unknown) return problem(errc::io, unknown.message());
    tcp::socket socket(io_);
    bool done = false;
    asio::async_connect(socket, found, [&](const error_code& why, const tcp::endpoint&) {
      failed_ = why;
      done = true;
    });
    if (auto connected = wait(done, ask_.connect_time, "connecting"); !connected) return connected;
    return ask_.to.tls ? greet(std::move(socket)) : take(std::move(socket));
  }

  result<void> take(tcp::socket socket) {
    stream_ = http_detail::plain_stream(std::move(socket));
    return {};
  }

  result<void> greet(tcp::socket socket) {
    context_.emplace(asio::ssl::context::tls_client);
    error_code why;
    context_->set_verify_mode(asio::ssl::verify_peer, why);
    if (ask_.authority.empty())
      context_->set_default_verify_paths(why);
    else
      context_->load_verify_file(ask_.authority, why);
    if (why)
      return error{errc::malformed, fmt::format("{}: no certificates in PEM can be read ({})",
                                                ask_.authority, why.message())};
    stream_ = http_detail::dialled_tls_stream(std::move(socket), *context_, ask_.to.at.host);
    bool done = false;
    stream_->open([&](const error_code& told) {
      failed_ = told;
      done = true;
    });
    return wait(done, ask_.connect_time, "the handshake");
  }

  result<void> send() {
    auto text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", ask_.method,
                            ask_.to.path, ask_.path, to_string(ask_.to.at));
    for (const auto& [name, value] : ask_.fields) text += fmt::format("{}: {}\r\n", name, value);
    if (!ask_.body.empty()) text += fmt::format("Content-Length: {}\r\n", ask_.body.size());
    sent_ = text + "\r\n" + ask_.body;
    bool done = false;
    stream_->write(sent_, [&](const error_code& told, std::size_t) {
      failed_ = told;
      done = true;
    });
    return wait(done, ask_.silence, "sending the request");
  }

  /// Of the answer, at least a byte; 0 at the end of what the other end says.
  result<std::size_t> read(char* to, std::size_t most) {
    constexpr auto what = "waiting for the answer";
    const auto end = std::chrono::steady_clock::now() + ask_.silence;
    while (const auto had = stream_->read_within(to, most, slice)) {
      if (!had->problem) return had->bytes;
      if (had->problem == asio::error::eof) return std::size_t{0};
      if (had->problem != asio::error::try_again)
        return problem(errc::io, fmt::format("{}: {}", what, had->problem.message()));
      if (auto may = may_wait(end, ask_.silence, what); !may) return may.error();
    }
    bool done = false;
    std::size_t n = 0;
    stream_->read(to, most, [&](const error_code& told, std::size_t got) {
      failed_ = told;
      n = got;
      done = true;
    });
    auto came = wait(done, ask_.silence, what);
    if (!came && done && failed_ == asio::error::eof) return std::size_t{0};
    if (!came) return came.error();
    return n;
  }

  result<http_reply> hear() {
    http::response_parser<http::string_body> parser;
    parser.eager(true);
    // Boost 1.74 takes no limit for one that every stated length exceeds.
    parser.body_limit(std::numeric_limits<std::uint64_t>::max());
    boost::beast::flat_buffer in;
    http_reply reply;
    while (!parser.is_done()) {
      const auto to = in.prepare(read_bytes);
      const auto n = read(static_cast<char*>(to.data()), to.size());
      if (!n) return n.error();
      in.commit(*n);
      // Boost would take that for an answer without a head.
      if (*n == 0 && !parser.got_some())
        return problem(errc::io, "the connection was closed without an answer");
      error_code why;
      if (*n == 0) parser.put_eof(why);
      while (in.size() > 0 && !parser.is_done() && !why) in.consume(parser.put(in.data(), why));
      if (why && why != http::error::need_more)
        return problem(errc::malformed,
                       fmt::format("the answer is no HTTP/1.1: {}", why.message()));
      if (parser.is_header_done()) hand_out(parser, reply);
    }
    return reply;
  }

  void hand_out(http::response_parser<http::string_body>& parser, http_reply& reply) {
    reply.status = static_cast<int>(parser.get().result_int());
    const auto text = std::exchange(parser.get().body(), {});
    if (text.empty()) return;
    if (part_ && reply.status == 200)
      part_(text);
    else
      reply.body += text;
  }

  const http_ask& ask_;
  const std::function<void(std::string_view)>& part_;
  const std::function<bool()>& paused_;
  std::optional<asio::ssl::context> context_;
  std::string sent_;
  error_code failed_;
  // Its handlers refer to what is above.
  asio::io_context io_{1};
  std::unique_ptr<http_detail::byte_stream> stream_;
};

}  // namespace

result<http_url> parse_url(std::string_view text) {
  const auto wrong = [&] {
    return error{errc::malformed,
                 fmt::format("found '{}', expected something like http://127.0.0.1:8080", text)};
  };
  http_url made;
  auto rest = text;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    made.tls = true;
  } else if (rest.find("://") != std::string_view::npos) {
    return wrong();
  }
  const auto slash = std::min(rest.find('/'), rest.size());
  std::string place(rest.substr(0, slash));
  made.path = rest.substr(slash);
  while (made.path.ends_with('/')) made.path.pop_back();
  if (place.empty()) return wrong();
  const auto bracket = place.rfind(']');
  const auto colon = place.rfind(':');
  const bool has_port =
      colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
  if (!has_port) place += made.tls ? ":443" : ":80";
  auto at = parse_address(place);
  if (!at) return wrong();
  made.at = std::move(*at);
  for (const char c : made.path)
    if (static_cast<unsigned char>(c) <= ' ') return wrong();
  return made;
}

result<http_reply> http_fetch(const http_ask& ask,
                              const std::function<void(std::string_view)>& part,
                              const std::function<bool()>& paused) {
  return conversation(ask, part, paused).run();
}

}  // namespace ordermoe::net
