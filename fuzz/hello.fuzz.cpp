#include "net/session/hello.hpp"

#include "fuzz/support.hpp"

/// The bytes are a hello. What is accepted is the same when it is written and read again.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace om = ordermoe::net;
  const auto read = om::parse_hello(fuzz::text_of(data, size));
  if (!read) {
    ORDERMOE_CHECK(read.error().message.find("hello") != std::string::npos, "no place is named");
    return 0;
  }
  const auto again = om::parse_hello(om::hello_text(*read));
  ORDERMOE_CHECK(again.has_value(), "what was written is refused");
  ORDERMOE_CHECK(*again == *read, "what was written reads differently");
  ORDERMOE_CHECK(!om::disagreement(*read, *again, read->node) ||
                     read->protocol_min > read->protocol_max || !read->agreed.empty(),
                 "a hello that disagrees with itself");
  return 0;
}
