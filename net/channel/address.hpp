#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/error.hpp"

namespace ordermoe::net {

/// Where a node listens or is reached: a host name or an address of either family, and a TCP port.
struct address {
  std::string host;
  std::uint16_t port = 0;
  friend bool operator==(const address&, const address&) = default;
};

/// "127.0.0.1:7400", "[::1]:7400", "berlin.lan:7400".
std::string to_string(const address& where);
/// Error: malformed, with what was found and what is expected.
result<address> parse_address(std::string_view text);
/// Whether it is of this host alone: 127.0.0.0/8, ::1 or localhost.
bool is_loopback(const address& where);
/// io: what keeps this host from listening there, and what to do.
error cannot_listen(const address& where, const std::string& why);

}  // namespace ordermoe::net
