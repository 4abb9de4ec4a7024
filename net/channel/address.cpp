#include "net/channel/address.hpp"

#include <fmt/format.h>

#include <charconv>

namespace ordermoe::net {

std::string to_string(const address& where) {
  const bool is_v6 = where.host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("[{}]:{}", where.host, where.port)
               : fmt::format("{}:{}", where.host, where.port);
}

result<address> parse_address(std::string_view text) {
  const auto problem =
      error{errc::malformed, fmt::format("found '{}', expected HOST:PORT, as in 192.168.1.10:7400, "
                                         "[fe80::1]:7400 or berlin.lan:7400",
                                         text)};
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return problem;
  auto host = text.substr(0, colon);
  const auto port = text.substr(colon + 1);
  const bool in_brackets = host.front() == '[' && host.back() == ']';
  if (in_brackets) host = host.substr(1, host.size() - 2);
  if (host.empty() || in_brackets != (host.find(':') != std::string_view::npos)) return problem;
  address found{std::string(host), 0};
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), found.port);
  if (parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()) return problem;
  return found;
}

bool is_loopback(const address& where) {
  return where.host == "localhost" || where.host == "::1" || where.host.starts_with("127.");
}

}  // namespace ordermoe::net
