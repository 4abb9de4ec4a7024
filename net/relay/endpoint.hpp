#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/error.hpp"

namespace ordermoe::net {

/// An address and a port of TCP.
struct endpoint {
  std::string address = "127.0.0.1";  ///< A literal of IPv4 or IPv6, without brackets.
  std::uint16_t port = 0;
  friend bool operator==(const endpoint&, const endpoint&) = default;
};

/// "127.0.0.1:7000", "[::1]:7000". Error: usage, for what is no literal, such as a name.
result<endpoint> parse_endpoint(std::string_view text);
std::string to_string(const endpoint& of);
/// Whether only this host can reach it. The address must be a literal.
bool is_loopback(const endpoint& of);

}  // namespace ordermoe::net
