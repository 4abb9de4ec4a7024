#include "net/channel/address.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(address)

BOOST_AUTO_TEST_CASE(a_host_of_either_family_or_a_name_and_a_port) {
  const struct {
    const char* text;
    net::address where;
  } all[] = {{"127.0.0.1:7400", {"127.0.0.1", 7400}},
             {"0.0.0.0:0", {"0.0.0.0", 0}},
             {"[::1]:7400", {"::1", 7400}},
             {"[::]:1", {"::", 1}},
             {"[fe80::1%eth0]:65535", {"fe80::1%eth0", 65535}},
             {"berlin.lan:7400", {"berlin.lan", 7400}},
             {"localhost:80", {"localhost", 80}}};
  for (const auto& [text, where] : all) {
    const auto read = net::parse_address(text);
    BOOST_REQUIRE_MESSAGE(read.has_value(), text);
    BOOST_TEST((*read == where), text);
    BOOST_TEST(net::to_string(where) == text);
  }
}

BOOST_AUTO_TEST_CASE(a_port_with_zeros_before_it_is_read_and_written_without) {
  const auto read = net::parse_address("a:0080");
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(net::to_string(*read) == "a:80");
}

BOOST_AUTO_TEST_CASE(everything_else_is_refused_with_what_was_found_and_what_is_expected) {
  for (const char* bad : {"",
                          ":",
                          ":7400",
                          "berlin",
                          "berlin:",
                          "berlin:port",
                          "berlin:7400x",
                          "berlin: 7400",
                          "berlin:+7400",
                          "berlin:-1",
                          "berlin:65536",
                          "berlin:99999999999",
                          "::1:7400",
                          "::1",
                          "[::1]",
                          "[::1]:",
                          "[]:7400",
                          "[:7400",
                          "]:7400",
                          "[::1:7400",
                          "::1]:7400",
                          "[::1]7400",
                          "[berlin]:7400",
                          "[127.0.0.1]:7400",
                          "a:b:7400",
                          "a b:7400",
                          " a:7400",
                          "a\n:7400",
                          "[[::1]]:7400",
                          "a[:7400",
                          "http://a:7400",
                          "a/b:7400"}) {
    const auto read = net::parse_address(bad);
    BOOST_TEST(!read.has_value(), bad);
    if (read) continue;
    BOOST_TEST((read.error().code == errc::malformed), bad);
    BOOST_TEST(read.error().message.find("found '" + std::string(bad) + "'") != std::string::npos,
               read.error().message);
    BOOST_TEST(read.error().message.find("expected HOST:PORT") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(loopback_is_this_host_alone) {
  for (const char* own : {"localhost", "127.0.0.1", "127.1.2.3", "::1"})
    BOOST_TEST(net::is_loopback({own, 7400}), own);
  for (const char* open :
       {"0.0.0.0", "::", "10.0.0.7", "fd00::7", "berlin.lan", "127.berlin.lan",
        "localhost.berlin.lan", "127.0.0.1.berlin.lan", "128.0.0.1", "1270.0.0.1"})
    BOOST_TEST(!net::is_loopback({open, 7400}), open);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
