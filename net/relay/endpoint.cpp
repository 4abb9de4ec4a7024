#include "net/relay/endpoint.hpp"

#include <fmt/format.h>

#include <boost/asio/ip/address.hpp>
#include <charconv>

namespace ordermoe::net {

namespace ip = boost::asio::ip;

result<endpoint> parse_endpoint(std::string_view text) {
  const error problem{
      errc::usage,
      fmt::format("found '{}', expected an address and a port such as 127.0.0.1:7000 or "
                  "[::1]:7000; names are not looked up",
                  text)};
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return problem;
  auto address = text.substr(0, colon);
  const auto digits = text.substr(colon + 1);
  const bool in_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  if (in_brackets) address = address.substr(1, address.size() - 2);

  endpoint found{std::string(address), 0};
  boost::system::error_code bad;
  const auto read = ip::make_address(found.address, bad);
  if (bad || read.is_v6() != in_brackets) return problem;
  const auto* end = digits.data() + digits.size();
  const auto number = std::from_chars(digits.data(), end, found.port);
  if (number.ec != std::errc{} || number.ptr != end) return problem;
  return found;
}

std::string to_string(const endpoint& of) {
  const bool v6 = of.address.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", of.address, of.port)
            : fmt::format("{}:{}", of.address, of.port);
}

bool is_loopback(const endpoint& of) {
  boost::system::error_code bad;
  const auto address = ip::make_address(of.address, bad);
  ORDERMOE_CHECK(!bad, "no literal address: " + of.address);
  return address.is_loopback();
}

}  // namespace ordermoe::net
