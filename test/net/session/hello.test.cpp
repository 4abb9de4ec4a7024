#include "net/session/hello.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

namespace ordermoe {

namespace {

/// As version 0.1.0 says it, byte for byte: what it says is understood as long as this test is not changed.
const std::string of_0_1 =
    R"({"protocol_min":1,"protocol_max":1,"cluster":"edge8","node":"a","boot":3,"generation":1,)"
    R"("life":77,"peer_boot":2,"peer_generation":0,"peer_life":5,"stream":"fast",)"
    R"("expected":[1,2,3,4,5],"agreed":{"model":"abc"}})";

net::hello mine() {
  net::hello made;
  made.cluster = "edge8";
  made.node = "b";
  made.agreed = {{"model", "abc"}};
  return made;
}

std::string with(std::string text, const std::string& part, const std::string& instead) {
  return text.replace(text.find(part), part.size(), instead);
}

/// What a node of this version says of one that says this; "": they work together.
std::string answer_to(const std::string& text) {
  const auto theirs = net::parse_hello(text);
  if (!theirs) return theirs.error().message;
  const auto why = net::disagreement(mine(), *theirs, "a");
  return why ? why->message : "";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hello)

BOOST_AUTO_TEST_CASE(a_node_of_the_version_before_is_understood) {
  const auto theirs = net::parse_hello(of_0_1);
  BOOST_REQUIRE(theirs.has_value());
  BOOST_TEST(theirs->self.boot == 3u);
  BOOST_TEST(theirs->other_life == 5u);
  BOOST_TEST(theirs->expected[4] == 5u);
  BOOST_TEST(net::hello_text(*theirs) == of_0_1);
  BOOST_TEST(answer_to(of_0_1) == "");
}

BOOST_AUTO_TEST_CASE(what_differs_between_versions_is_refused_by_its_field) {
  const auto says = [](const std::string& text, const char* part) {
    const auto answer = answer_to(text);
    BOOST_TEST(answer.find(part) != std::string::npos, answer);
  };
  says(with(of_0_1, R"("protocol_min":1,"protocol_max":1)", R"("protocol_min":3,"protocol_max":4)"),
       "hello.protocol: found 3 to 4, expected 1 to 2");
  says(with(of_0_1, R"("life":77,)", ""), "life");
  says(with(of_0_1, R"("life":77,)", R"("life":77,"colour":"red",)"), "colour");
  says(with(of_0_1, R"({"model":"abc"})", R"({"model":"abc","rounding":"up"})"),
       "hello.rounding: found up, expected nothing");
}

BOOST_AUTO_TEST_CASE(what_is_of_one_kind_of_device_is_compared_where_both_ends_say_it) {
  auto here = mine(), there = *net::parse_hello(of_0_1);
  const auto why = [&] {
    const auto found = net::disagreement(here, there, "a");
    return found ? found->message : "";
  };
  here.agreed.emplace_back("arithmetic[libtorch:cpu]", "one");
  BOOST_TEST(why() == "");
  there.agreed.emplace_back("arithmetic[libtorch:cuda]", "two");
  BOOST_TEST(why() == "");
  there.agreed.emplace_back("arithmetic[libtorch:cpu]", "three");
  BOOST_TEST(why() == "hello.arithmetic[libtorch:cpu]: found three, expected one");
}

BOOST_AUTO_TEST_CASE(one_that_speaks_several_protocols_works_with_the_one_before) {
  const auto later = with(of_0_1, R"("protocol_max":1)", R"("protocol_max":3)");
  BOOST_TEST(answer_to(later) == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
