#include "net/wire/codec.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "config/random.hpp"

namespace ordermoe {

namespace {

using namespace wire;

constexpr wire_shape shape{4, 6};

token_state some_token() {
  token_state state;
  state.terms = {7, 1, 3, 5, 64, 5, 21, 99, 0.5, 1, 0, 0};
  state.first = 4;
  state.layer = 2;
  state.ids = {11, 12};
  state.forced = {12, 7};
  state.pool = 1'000'000'007;
  state.allowance = {5, 6};
  state.spent = 13;
  state.hidden = {1.5f,
                  -0.0f,
                  std::numeric_limits<float>::max(),
                  std::numeric_limits<float>::denorm_min(),
                  0,
                  1,
                  2,
                  3};
  state.slots_of_row = {1, 2};
  state.slots = {{1, 2, 0.25f}, {0, 1, 0.5f}, {3, 0, 0.5f}};
  return state;
}

token_state some_choosing_token() {
  auto state = some_token();
  state.sampling = sampling_rules{0.9, 40, -0.5, 1.5, 6, {3, 17}, {-100.0f, 0.25f}, {5, 5, 9}};
  state.ran = {1, 2, 3, 4};
  return state;
}

expert_call some_call() {
  return {{7, 1, 2, 4},
          2,
          3,
          {0, 1},
          {1, 0},
          {{0, 0, 5, 0.5f}, {0, 1, 6, 0.5f}, {1, 0, 5, 1.0f}},
          {1, 2, 3, 4, 5, 6, 7, 8}};
}

expert_output some_output() {
  return {{7, 1, 2, 4}, 2, {{0, whole_row}, {1, 0}}, {1, 2, 3, 4, 5, 6, 7, 8}, 0, ""};
}

expert_output some_failed_output() {
  return {{7, 1, 2, 4}, 2, {{0, whole_row}, {1, 0}}, {}, 9, "no memory"};
}

kv_rows some_rows() {
  return {3, {{7, 0, 2, 1, {1, 2, 3, 4, 5, 6}}, {8, 0, 0, 2, std::vector<std::uint8_t>(12, 7)}}};
}

progress_report some_progress() {
  return {7, 1, 2, 9, 42, 1, 100, 50, {0.25}, {1, 2, 3, 4}};
}
progress_report some_telling_progress() {
  auto report = some_progress();
  report.logprobs = {{42, -0.5}, {41, -0.25}};
  report.ran = {4, 3, 2, 1};
  return report;
}
reservation some_reservation() {
  return {7, 0, 3, reserve_step::wait, 3, 1, 4096, 1'000'000};
}
load_report some_load() {
  return {3, 123, 456, {1, 2, 3}};
}
link_report some_links() {
  return {3, 123, {{5, 1e9}, {}, {7, 0}}};
}
failure_report some_failure() {
  return {7, 1, 3, 9, "no memory"};
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

template <class Message, class Decode>
void check_round_trip(const Message& message, Decode decode) {
  const auto content = encode(message);
  const auto back = decode(content);
  BOOST_REQUIRE_MESSAGE(back.has_value(), (back ? "" : back.error().message));
  BOOST_TEST((*back == message));
  check_hostile(content, decode);
}

/// A message that contradicts itself is refused with these words.
template <class Message, class Decode>
void check_refused(Message message, Decode decode, const std::function<void(Message&)>& change,
                   const std::string& words) {
  change(message);
  const auto outcome = decode(encode(message));
  BOOST_REQUIRE_MESSAGE(!outcome.has_value(), "not refused: " + words);
  BOOST_TEST((outcome.error().code == errc::malformed));
  BOOST_TEST(outcome.error().message.find(words) != std::string::npos, outcome.error().message);
}

const auto read_token = [](const frame& f) { return decode_token(f, shape); };
const auto read_call = [](const frame& f) { return decode_call(f, shape); };
const auto read_output = [](const frame& f) { return decode_output(f, shape); };
const auto read_kv = [](const frame& f) { return decode_kv(f, shape); };

}  // namespace

BOOST_AUTO_TEST_SUITE(codec)

BOOST_AUTO_TEST_CASE(a_token_keeps_every_bit_and_counts_its_rows) {
  const auto content = encode(some_token());
  BOOST_TEST(content.hidden_rows == 2u);
  BOOST_TEST(content.value_bytes == 8 * 4);
  check_round_trip(some_token(), read_token);
  BOOST_TEST(std::signbit(read_token(content)->hidden[1]));
}

BOOST_AUTO_TEST_CASE(what_few_requests_ask_for_costs_the_others_no_byte) {
  check_round_trip(some_choosing_token(), read_token);
  const auto read_progress = [](const frame& f) { return decode_progress(f); };
  check_round_trip(some_telling_progress(), read_progress);
  for (const std::uint8_t flag : {0, 1}) {
    auto state = some_choosing_token();
    state.terms.ignore_end_of_text = flag;
    check_round_trip(state, read_token);
    const auto with_all = encode(state).bytes;
    state.ran.reset();
    check_round_trip(state, read_token);
    BOOST_TEST(encode(state).bytes.size() == with_all.size() - 16);
    state.sampling.reset();
    const auto plain = encode(state).bytes;
    // The last byte of the terms says what follows the rest.
    constexpr std::size_t flags_at = 54;
    BOOST_TEST(plain[flags_at] == static_cast<char>(flag));
    BOOST_TEST(plain.substr(0, flags_at) == with_all.substr(0, flags_at));
    const auto rest = plain.substr(flags_at + 1);
    BOOST_TEST(rest == with_all.substr(flags_at + 1, rest.size()));
    BOOST_TEST(plain.size() == with_all.size() - 16 - (8 + 4 + 8 + 8 + 4 + 3 * 4 + 8 + 8 + 12));
    auto report = some_telling_progress();
    report.last = flag;
    report.ran.reset();
    check_round_trip(report, read_progress);
    report.logprobs.clear();
    check_round_trip(report, read_progress);
  }
}

BOOST_AUTO_TEST_CASE(what_a_row_chose_before_travels_where_it_is_there) {
  auto state = some_token();
  state.ids = {11};
  state.allowance = {5};
  state.hidden.resize(4);
  state.slots_of_row = {3};
  const auto without = encode(state).bytes;
  BOOST_TEST(encode(state).uncharged_bytes == 0);
  for (const bool tells_more : {false, true}) {
    if (tells_more) state.ran = {1, 2, 3, 4};
    state.chosen = {0, 7, 65'535};
    check_round_trip(state, read_token);
    BOOST_TEST(encode(state).uncharged_bytes == 4 + 3 * 2);
    if (!tells_more) BOOST_TEST(encode(state).bytes.size() == without.size() + 4 + 3 * 2);
  }
  const auto refused = [&](const char* words, const std::function<void(token_state&)>& change) {
    check_refused<token_state>(state, read_token, change, words);
  };
  refused("choices in another order", [](token_state& s) { s.chosen = {7, 0}; });
  refused("choices in another order", [](token_state& s) { s.chosen = {7, 7}; });
  refused("choices of several rows", [](token_state& s) {
    s = some_token();
    s.chosen = {1, 2};
  });
}

BOOST_AUTO_TEST_CASE(rules_that_contradict_themselves_are_refused) {
  const auto nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](const char* words, const std::function<void(token_state&)>& change) {
    check_refused<token_state>(some_choosing_token(), read_token, change, words);
  };
  refused("biases and their ids", [](token_state& s) { s.sampling->bias.pop_back(); });
  refused("not finite",
          [](token_state& s) { s.sampling->bias[0] = std::numeric_limits<float>::infinity(); });
  refused("not finite", [=](token_state& s) { s.sampling->top_p = nan; });
  refused("not finite", [=](token_state& s) { s.sampling->presence_penalty = nan; });
  refused("not finite", [=](token_state& s) { s.sampling->frequency_penalty = nan; });
  check_refused<progress_report>(
      some_telling_progress(), [](const frame& f) { return decode_progress(f); },
      [=](progress_report& report) { report.logprobs[1].logprob = nan; }, "not finite");
}

BOOST_AUTO_TEST_CASE(calls_outputs_and_kv_rows_round_trip) {
  check_round_trip(some_call(), read_call);
  check_round_trip(some_output(), read_output);
  check_round_trip(some_failed_output(), read_output);
  check_round_trip(some_rows(), read_kv);
  BOOST_TEST(encode(some_rows()).kv_rows == 3u);
}

BOOST_AUTO_TEST_CASE(small_messages_round_trip) {
  check_round_trip(some_progress(), [](const frame& f) { return decode_progress(f); });
  check_round_trip(some_reservation(), [](const frame& f) { return decode_reservation(f); });
  check_round_trip(some_load(), [](const frame& f) { return decode_load(f); });
  check_round_trip(some_links(), [](const frame& f) { return decode_links(f); });
  check_round_trip(some_failure(), [](const frame& f) { return decode_failure(f); });
}

BOOST_AUTO_TEST_CASE(a_size_beyond_the_frame_is_refused_before_anything_is_allocated) {
  auto content = encode(some_call());
  const std::uint32_t huge = 0xfffffff0u;
  content.bytes.replace(8 + 4 + 4 + 4 + 4 + 4, 4, reinterpret_cast<const char*>(&huge), 4);
  const auto outcome = decode_call(content, shape);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::malformed));
}

BOOST_AUTO_TEST_CASE(as_many_blocks_as_a_frame_has_bytes_are_refused) {
  // A block takes 24 bytes at least, so a count of a block a byte cannot be true.
  frame content;
  content.kind = frame_kind::kv;
  content.bytes.assign(1u << 16, '\0');
  const std::uint32_t n = (1u << 16) - 8;
  content.bytes.replace(4, 4, reinterpret_cast<const char*>(&n), 4);
  const auto outcome = decode_kv(content, shape);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST(outcome.error().message.find("at byte 8") != std::string::npos,
             outcome.error().message);
}

BOOST_AUTO_TEST_CASE(tokens_that_contradict_themselves_are_refused) {
  using change = std::function<void(token_state&)>;
  const std::pair<std::string, change> cases[] = {
      {"no rows", [](auto& t) { t.ids.clear(); }},
      {"hidden state and rows", [](auto& t) { t.hidden.pop_back(); }},
      {"not finite", [](auto& t) { t.hidden[3] = std::nanf(""); }},
      {"not finite", [](auto& t) { t.hidden[0] = -INFINITY; }},
      {"allowances and rows", [](auto& t) { t.allowance.pop_back(); }},
      {"executed slots and rows", [](auto& t) { t.slots_of_row[0] = 2; }},
      {"executed slots and rows", [](auto& t) { t.slots_of_row.push_back(0); }},
      {"executed slots and rows",
       [](auto& t) {
         t.slots_of_row = {0xffffffffu, 4};
       }},
      {"executed slots and rows", [](auto& t) { t.slots.clear(); }},
      {"without a hidden state", [](auto& t) { t.hidden.clear(); }},
      {"gate that is not finite", [](auto& t) { t.slots[1].gate = INFINITY; }}};
  for (const auto& [words, make] : cases)
    check_refused<token_state>(some_token(), read_token, make, words);
}

BOOST_AUTO_TEST_CASE(calls_and_outputs_that_contradict_themselves_are_refused) {
  using change = std::function<void(expert_call&)>;
  const std::pair<std::string, change> cases[] = {
      {"rows and hidden states", [](auto& c) { c.rows.clear(); }},
      {"rows and hidden states", [](auto& c) { c.x.pop_back(); }},
      {"rows and hidden states", [](auto& c) { c.whole.pop_back(); }},
      {"rows out of order",
       [](auto& c) {
         c.rows = {1, 1};
       }},
      {"neither whole nor in parts", [](auto& c) { c.whole[0] = 2; }},
      {"items", [](auto& c) { c.items.clear(); }},
      {"items", [](auto& c) { c.items[2].x_row = 2; }},
      {"items", [](auto& c) { std::swap(c.items[0], c.items[2]); }},
      {"items", [](auto& c) { std::swap(c.items[0], c.items[1]); }},
      {"items", [](auto& c) { c.items.pop_back(); }},
      {"gate that is not finite", [](auto& c) { c.items[0].gate = std::nanf(""); }},
      {"not finite", [](auto& c) { c.x[7] = INFINITY; }}};
  for (const auto& [words, make] : cases)
    check_refused<expert_call>(some_call(), read_call, make, words);
  check_refused<expert_output>(
      some_output(), read_output,
      [](auto& o) {
        o.rows.clear();
        o.y.clear();
      },
      "rows and outputs");
  check_refused<expert_output>(
      some_output(), read_output, [](auto& o) { o.y[0] = std::nanf(""); }, "not finite");
  check_refused<expert_output>(
      some_output(), read_output, [](auto& o) { o.problem = "values and a problem"; }, "disagree");
  check_refused<kv_rows>(
      some_rows(), read_kv, [](auto& r) { r.blocks[0].n = 2; }, "rows and their count");
  check_refused<kv_rows>(
      some_rows(), read_kv, [](auto& r) { r.blocks.clear(); }, "no rows");
}

BOOST_AUTO_TEST_CASE(what_is_kept_of_hidden_states_in_a_report_is_told_apart_from_its_other_bytes) {
  auto plain = some_progress();
  plain.hidden.clear();
  const auto with = encode(some_progress()), without = encode(plain);
  BOOST_TEST(with.bytes.size() - static_cast<std::size_t>(with.value_bytes) ==
             without.bytes.size());
  BOOST_TEST(with.hidden_rows == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
