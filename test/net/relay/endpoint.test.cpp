#include "net/relay/endpoint.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(endpoint)

BOOST_AUTO_TEST_CASE(literals_of_both_versions_read_back) {
  for (const char* text : {"127.0.0.1:7000", "[::1]:0", "0.0.0.0:65535", "[fd00::7]:80"}) {
    const auto read = net::parse_endpoint(text);
    BOOST_REQUIRE(read.has_value());
    BOOST_TEST(net::to_string(*read) == text);
  }
  BOOST_TEST(net::parse_endpoint("[::1]:7100")->address == "::1");
  BOOST_TEST(net::parse_endpoint("[::1]:7100")->port == 7100);
}

BOOST_AUTO_TEST_CASE(what_is_no_literal_is_refused_with_what_was_expected) {
  for (const char* text : {"", ":", "7000", "localhost:7000", "127.0.0.1", "127.0.0.1:", "::1:7000",
                           "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:7000 ", "[127.0.0.1]:7000",
                           "[::1]7000", "[]:7000", "127.0.0.1:+7", "::1"}) {
    const auto refused = net::parse_endpoint(text);
    BOOST_TEST_CONTEXT(text) {
      BOOST_REQUIRE(!refused.has_value());
      BOOST_TEST(refused.error().message.find("expected an address and a port") !=
                 std::string::npos);
      BOOST_TEST(exit_code(refused.error().code) == 2);
    }
  }
}

BOOST_AUTO_TEST_CASE(loopback_is_told_from_what_others_reach) {
  BOOST_TEST(net::is_loopback({"127.0.0.1", 1}));
  BOOST_TEST(net::is_loopback({"127.9.9.9", 1}));
  BOOST_TEST(net::is_loopback({"::1", 1}));
  BOOST_TEST(!net::is_loopback({"0.0.0.0", 1}));
  BOOST_TEST(!net::is_loopback({"::", 1}));
  BOOST_TEST(!net::is_loopback({"10.0.0.7", 1}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
