#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "config/error.hpp"
#include "net/channel/address.hpp"
#include "net/http/message.hpp"

/// Asks an HTTP server, one request at a time, on the calling thread.
namespace ordermoe::net {

struct http_url {
  bool tls = false;
  address at;
  std::string path;  ///< Without a slash at the end; may be empty.
};
/// "http://127.0.0.1:8080", "https://api.example/v1". Error: malformed.
result<http_url> parse_url(std::string_view text);

struct http_ask {
  http_url to;
  std::string method = "GET", path;  ///< The path is put behind the url's.
  http_fields fields;
  std::string body;
  /// PEM: who may have signed the server's certificate; empty: whoever the system trusts.
  std::string authority;
  std::chrono::milliseconds connect_time{5'000};
  std::chrono::milliseconds silence{120'000};  ///< That the server may keep.
};

struct http_reply {
  int status = 0;
  std::string body;  ///< What `part` was not given.
};

/// `part`, where there is one, is told the body of an answer with status 200 as it comes. `paused`, asked ten times a second,
/// gives it up. Errors: io, timed_out, malformed, interrupted, naming the address.
result<http_reply> http_fetch(const http_ask& ask,
                              const std::function<void(std::string_view)>& part = {},
                              const std::function<bool()>& paused = {});

}  // namespace ordermoe::net
