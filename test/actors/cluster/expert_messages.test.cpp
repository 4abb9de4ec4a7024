#include "actors/cluster/expert_messages.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>

namespace ordermoe {

namespace {

using namespace actors;

expert_ask some_ask() {
  return {std::uint64_t{1} << 63, 3, 59, precision::int4, {1, -0.0f, 1e-45f, 3}};
}

expert_answer ran() {
  return {7, errc::failed, {}, {0.5f, -2}};
}

expert_answer did_not() {
  return {8, errc::io, "s1 is gone", {}};
}

/// Every beginning of it, and it with something behind.
template <class Decode>
void check_refused_unless_whole(const std::string& bytes, Decode decode) {
  BOOST_TEST(decode(bytes).has_value());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const auto read = decode(std::string_view(bytes).substr(0, n));
    BOOST_REQUIRE(!read.has_value());
    BOOST_TEST((read.error().code == errc::malformed));
  }
  BOOST_TEST(!decode(bytes + "x").has_value());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(expert_messages)

BOOST_AUTO_TEST_CASE(what_is_said_of_experts_arrives_as_it_was) {
  const auto ask = decode_expert_ask(encode(some_ask()));
  BOOST_REQUIRE(ask.has_value());
  BOOST_TEST(ask->ref == some_ask().ref);
  BOOST_TEST(ask->layer == 3u);
  BOOST_TEST(ask->expert == 59u);
  BOOST_TEST((ask->kept == precision::int4));
  BOOST_TEST(ask->rows == some_ask().rows);
  BOOST_TEST(std::signbit(ask->rows[1]));
  for (const auto& each : {ran(), did_not()}) {
    const auto answer = decode_expert_answer(encode(each));
    BOOST_REQUIRE(answer.has_value());
    BOOST_TEST(answer->ref == each.ref);
    BOOST_TEST((answer->code == each.code));
    BOOST_TEST(answer->problem == each.problem);
    BOOST_TEST(answer->rows == each.rows);
  }
}

BOOST_AUTO_TEST_CASE(what_is_cut_short_or_too_long_is_refused) {
  check_refused_unless_whole(encode(some_ask()),
                             [](auto bytes) { return decode_expert_ask(bytes); });
  for (const auto& each : {ran(), did_not()})
    check_refused_unless_whole(encode(each),
                               [](auto bytes) { return decode_expert_answer(bytes); });
}

BOOST_AUTO_TEST_CASE(what_makes_no_sense_is_refused) {
  auto ask = some_ask();
  ask.kept = static_cast<precision>(9);
  BOOST_TEST(!decode_expert_ask(encode(ask)).has_value());
  ask.kept = precision::bf16;  // No copy is measured so.
  BOOST_TEST(!decode_expert_ask(encode(ask)).has_value());
  ask = some_ask();
  ask.rows.clear();
  BOOST_TEST(!decode_expert_ask(encode(ask)).has_value());
  ask.rows.resize(most_row_bytes / sizeof(float) + 1);
  BOOST_TEST(!decode_expert_ask(encode(ask)).has_value());
  // A number of numbers that no memory is taken for.
  auto bytes = encode(some_ask());
  bytes[20] = bytes[21] = bytes[22] = bytes[23] = '\xff';
  BOOST_TEST(!decode_expert_ask(bytes).has_value());
  // Neither an output nor a problem, and both.
  BOOST_TEST(!decode_expert_answer(encode(expert_answer{})).has_value());
  auto both = did_not();
  both.rows = {1};
  BOOST_TEST(!decode_expert_answer(encode(both)).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
