#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "net/channel/address.hpp"
#include "net/http/message.hpp"

/// Answers HTTP requests, on one thread of its own.
namespace ordermoe::net {

struct http_limits {
  std::size_t header_bytes = 16u << 10;
  std::size_t body_bytes = 4u << 20;
  std::chrono::milliseconds header_time{
      10'000};  ///< From the first byte of a request; of the first one, from the connection.
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds idle_time{75'000};  ///< Between requests.
  std::chrono::milliseconds write_time{
      30'000};                          ///< That the peer may take to read anything at all.
  std::size_t unsent_bytes = 4u << 20;  ///< That may wait for the peer to read them.
  /// Fewer where few files may be open (open_files.hpp).
  std::size_t connections = 1024;
};

struct http_tls_files {
  /// PEM; the certificate's file may hold a chain, the key's is nothing that everybody may read.
  std::string certificate, key;
};

struct http_server_options {
  address listen{"127.0.0.1", 0};  ///< Port 0: any that is free.
  /// Without it, an address that other hosts may reach is refused.
  bool allows_remote = false;
  std::optional<http_tls_files> tls;
  http_limits limits;
  /// The body of an answer that the server gives by itself (400, 408, 413, 431, 501, 503), and its type.
  std::function<std::string(int status, std::string_view what)> problem_body;
  std::string problem_type = "text/plain";
  /// How many bytes of a request's body are read, by its method, path, query and fields, on the server's thread; limits.body_bytes at
  /// most. 0: none are, it is answered without its body and the connection ends behind the answer. Empty: limits.body_bytes.
  std::function<std::size_t(const http_request& head)> most_body;
};

/// One request and its answer: respond() once, or begin_stream(), write() as often as wanted and end(). Only on the
/// server's thread, but for write(). Where it is destroyed without an answer, the connection is closed.
class http_exchange {
 public:
  virtual ~http_exchange() = default;
  virtual const http_request& request() const = 0;
  virtual void respond(int status, const http_fields& fields, std::string_view body) = 0;
  virtual void begin_stream(int status, const http_fields& fields) = 0;
  /// Nothing where the peer is gone, and but for between begin_stream() and end(). On any thread: parts stand in the order of the
  /// calls, and whoever has one writes it, where there is room, so that no other thread is woken for it.
  virtual void write(std::string_view part) = 0;
  virtual void end() = 0;
  /// The peer went away before the answer was written, or does not read it. Called once at most, and never after the answer is
  /// written; at once where that has happened already.
  virtual void on_gone(std::function<void()> told) = 0;
};

using http_handler = std::function<void(std::shared_ptr<http_exchange>)>;

struct http_figures {
  std::size_t connections = 0;
  std::uint64_t accepted = 0, requests = 0, refused = 0;  ///< Refused: by the server itself.
};

/// What http_server::start() would refuse, for whoever has other work to do before: TLS's files, and the address, which is
/// listened on for a moment. Errors: those of http_server::start().
result<void> check_listen(const http_server_options& options);

class http_server {
 public:
  /// Errors: io where it cannot listen there, usage where others could reach it and may not, malformed for files of TLS, mismatch for a
  /// key that everybody can read.
  static result<std::unique_ptr<http_server>> start(http_server_options options,
                                                    http_handler handler);
  /// stop().
  ~http_server();
  address listens_at() const;
  /// Does something on the server's thread, from any thread, in the order of the calls; nothing after stop().
  void post(std::function<void()> what);
  /// What the calling thread writes between these two waits for the end, so that what belongs together is one write. What is
  /// posted is done within such a turn.
  void begin_turn();
  void end_turn();
  http_figures figures() const;  ///< Of the server's thread.
  /// Cuts all connections, whose exchanges are told that their peers are gone. Not on its own thread.
  void stop();

 private:
  class content;
  explicit http_server(std::unique_ptr<content> made);
  std::unique_ptr<content> content_;
};

}  // namespace ordermoe::net
