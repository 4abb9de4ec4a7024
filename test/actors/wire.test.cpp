#include "actors/wire.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "config/random.hpp"

namespace ordermoe {

namespace {

using namespace actors;

constexpr wire_shape shape{4, 6};

token_state some_token() {
  token_state state;
  state.terms = {7, 1, 3, 5, 64, 99, 0.5, 1, 0, 0};
  state.first = 4;
  state.layer = 2;
  state.ids = {11, 12};
  state.forced = {12, 7};
  state.pool = 1'000'000'007;
  state.allowance = {5, -1};
  state.spent = 13;
  state.hidden = {1.5f,
                  -0.0f,
                  std::numeric_limits<float>::infinity(),
                  std::numeric_limits<float>::denorm_min(),
                  0,
                  1,
                  2,
                  3};
  state.calls_outstanding = 2;
  state.slots_of_row = {1, 2};
  state.slots = {{1, 2, 0.25f}, {0, 1, 0.5f}, {3, 0, 0.5f}};
  return state;
}

expert_call some_call() {
  return {{7, 1, 4},
          2,
          3,
          {0, 1},
          {1, 0},
          {{0, 0, 5, 0.5f}, {0, 1, 6, 0.5f}, {1, 0, 5, 1.0f}},
          {1, 2, 3, 4, 5, 6, 7, 8}};
}

/// Every prefix of a frame is refused, and random corruption never does worse than be refused or
/// read as other values.
template <class Decode>
void check_hostile(const frame& good, Decode decode) {
  for (std::size_t n = 0; n < good.bytes.size(); ++n) {
    auto cut = good;
    cut.bytes.resize(n);
    const auto outcome = decode(cut);
    BOOST_REQUIRE(!outcome.has_value());
    BOOST_TEST((outcome.error().code == errc::malformed));
  }
  auto longer = good;
  longer.bytes += '\0';
  BOOST_TEST(!decode(longer).has_value());
  random_stream draws(3);
  for (int i = 0; i < 2000; ++i) {
    auto changed = good;
    changed.bytes[draws.below(changed.bytes.size())] = static_cast<char>(draws.bits());
    const auto outcome = decode(changed);
    if (!outcome) BOOST_TEST((outcome.error().code == errc::malformed));
  }
  auto other = good;
  other.kind = good.kind == frame_kind::load ? frame_kind::token : frame_kind::load;
  BOOST_TEST(!decode(other).has_value());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(wire)

BOOST_AUTO_TEST_CASE(a_token_keeps_every_bit_and_counts_its_rows) {
  const auto content = encode(some_token());
  BOOST_TEST(content.hidden_rows == 2u);
  BOOST_TEST(content.value_bytes == 8 * 4);
  const auto back = decode_token(content, shape);
  BOOST_REQUIRE(back.has_value());
  BOOST_TEST((*back == some_token()));
  BOOST_TEST(std::signbit(back->hidden[1]));
  check_hostile(content, [](const frame& f) { return decode_token(f, shape); });
}

BOOST_AUTO_TEST_CASE(calls_outputs_and_kv_rows_round_trip) {
  const auto call = encode(some_call());
  BOOST_REQUIRE(decode_call(call, shape).has_value());
  BOOST_TEST((*decode_call(call, shape) == some_call()));
  check_hostile(call, [](const frame& f) { return decode_call(f, shape); });

  const expert_output output{{7, 1, 4}, 2, {{0, whole_row}, {1, 0}}, {1, 2, 3, 4, 5, 6, 7, 8}};
  BOOST_TEST((*decode_output(encode(output), shape) == output));
  check_hostile(encode(output), [](const frame& f) { return decode_output(f, shape); });

  const kv_rows rows{
      3, {{7, 0, 2, 1, {1, 2, 3, 4, 5, 6}}, {8, 0, 0, 2, std::vector<std::uint8_t>(12, 7)}}};
  BOOST_TEST((*decode_kv(encode(rows), shape) == rows));
  BOOST_TEST(encode(rows).kv_rows == 3u);
  check_hostile(encode(rows), [](const frame& f) { return decode_kv(f, shape); });
}

BOOST_AUTO_TEST_CASE(small_messages_round_trip) {
  const progress_report report{7, 1, 2, 9, 42, 1, 100, 50, {0.25, -0.0, 1e300}};
  BOOST_TEST((*decode_progress(encode(report)) == report));
  check_hostile(encode(report), [](const frame& f) { return decode_progress(f); });
  const reservation wish{7, 0, reserve_step::wait, 3, 1, 4096};
  BOOST_TEST((*decode_reservation(encode(wish)) == wish));
  check_hostile(encode(wish), [](const frame& f) { return decode_reservation(f); });
  const load_report load{3, 123, 456};
  BOOST_TEST((*decode_load(encode(load)) == load));
  check_hostile(encode(load), [](const frame& f) { return decode_load(f); });
}

BOOST_AUTO_TEST_CASE(a_size_beyond_the_frame_is_refused_before_anything_is_allocated) {
  auto content = encode(some_call());
  const std::uint32_t huge = 0xfffffff0u;
  content.bytes.replace(8 + 4 + 4 + 4 + 4, 4, reinterpret_cast<const char*>(&huge), 4);
  const auto outcome = decode_call(content, shape);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::malformed));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
