#include "net/channel/address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace ordermoe::net {

namespace {

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// What may stand in a name or an address; whether there is such a host the resolver says.
bool is_host(std::string_view text, std::string_view besides) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return is_letter_or_digit(c) || besides.find(c) != std::string_view::npos;
  });
}

/// 127, and three more numbers.
bool is_v4_loopback(std::string_view host) {
  return host.starts_with("127.") && std::ranges::count(host, '.') == 3 &&
         host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace

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
  if (in_brackets != (host.find(':') != std::string_view::npos)) return problem;
  // An address of the sixth version may name an interface behind a percent sign.
  if (!is_host(host, in_brackets ? ":.%-_" : ".-_")) return problem;
  address found{std::string(host), 0};
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), found.port);
  if (parsed.ec != std::errc{} || parsed.ptr != port.data() + port.size()) return problem;
  return found;
}

bool is_loopback(const address& where) {
  return where.host == "localhost" || where.host == "::1" || is_v4_loopback(where.host);
}

error cannot_listen(const address& where, const std::string& why) {
  return {errc::io, fmt::format("cannot listen at {}: {}; choose an address of this host "
                                "and a port that is free",
                                to_string(where), why)};
}

}  // namespace ordermoe::net
