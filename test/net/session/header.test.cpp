#include "net/session/header.hpp"

#include <boost/test/unit_test.hpp>

#include "net/session/hello.hpp"

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(header)

BOOST_AUTO_TEST_CASE(every_field_has_its_place) {
  const net::frame_header header{0x04030201,
                                 5,
                                 6,
                                 net::lane::kv,
                                 net::session_word::pulse,
                                 0x0f0e0d0c0b0a0908,
                                 0x1716151413121110,
                                 0x1b1a1918,
                                 0x1f1e1d1c,
                                 0x2726252423222120};
  std::string bytes;
  net::put(header, bytes);
  BOOST_REQUIRE_EQUAL(bytes.size(), net::header_bytes);
  const std::string expected(
      "\x01\x02\x03\x04\x05\x06\x02\x02\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
      "\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
      "\x20\x21\x22\x23\x24\x25\x26\x27",
      40);
  BOOST_TEST(bytes == expected);
  BOOST_TEST((net::get_header(bytes) == header));
}

BOOST_AUTO_TEST_CASE(a_hello_reads_back_and_a_bad_one_names_its_field) {
  net::hello said;
  said.cluster = "edge \"8\"";
  said.node = "n1";
  said.self = {~0ull, 3};
  said.other = {5, 6};
  said.which = net::stream::bulk;
  said.expected = {1, 2, 3, 4, ~0ull};
  said.agreed = {{"kv", "bf16"}, {"model", "abc"}};
  const auto text = net::hello_text(said);
  const auto read = net::parse_hello(text);
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST((*read == said));
  const auto problem = [](const std::string& bad) {
    const auto refused = net::parse_hello(bad);
    BOOST_REQUIRE(!refused.has_value());
    return refused.error().message;
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    auto changed = text;
    const auto at = changed.find(from);
    BOOST_REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    return problem(changed);
  };
  BOOST_TEST(with("\"boot\":18446744073709551615", "\"boot\":-1").find("boot") !=
             std::string::npos);
  BOOST_TEST(with("\"bulk\"", "\"slow\"").find("stream") != std::string::npos);
  BOOST_TEST(with("[1,2,3,4,", "[1,2,3,").find("expected") != std::string::npos);
  BOOST_TEST(with("\"abc\"", "7").find("agreed.model") != std::string::npos);
  BOOST_TEST(with("\"node\"", "\"knot\"").find("knot") != std::string::npos);
  BOOST_TEST(problem("").find("hello") != std::string::npos);
  BOOST_TEST(problem(std::string(20000, ' ')).find("expected at most 16384") != std::string::npos);
  for (std::size_t n = 0; n < text.size(); ++n)
    BOOST_TEST(!net::parse_hello(text.substr(0, n)).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
