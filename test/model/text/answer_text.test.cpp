#include "model/text/answer_text.hpp"

#include "config/random.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;

/// Every id is a text of its own.
class word_tokenizer final : public om::tokenizer {
 public:
  explicit word_tokenizer(std::vector<std::string> words) : words_(std::move(words)) {}
  std::size_t vocab_size() const override { return words_.size(); }
  std::vector<std::int32_t> encode(std::string_view) const override { return {}; }
  std::vector<std::int32_t> encode_inside(std::string_view) const override { return {}; }
  std::optional<std::int32_t> special_id(std::string_view) const override { return std::nullopt; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const auto id : ids) text += words_[static_cast<std::size_t>(id)];
    return text;
  }

 private:
  std::vector<std::string> words_;
};

/// An answer of these words, ids 0, 1, 2, ...
om::answer_text answer_of(std::vector<std::string> words, std::vector<std::string> stops = {}) {
  return {std::make_shared<word_tokenizer>(std::move(words)), std::move(stops)};
}

/// The id of one byte in the tiny model's vocabulary.
std::int32_t byte_id(unsigned char byte) {
  return 3 + byte;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(answer_text)

BOOST_AUTO_TEST_CASE(text_is_handed_out_as_it_comes_where_nothing_stops_it) {
  auto answer = answer_of({"one ", "two ", "three"});
  BOOST_TEST(answer.push(0) == "one ");
  BOOST_TEST(answer.push(1) == "two ");
  BOOST_TEST(answer.push(2) == "three");
  BOOST_TEST(answer.finish() == "");
  BOOST_TEST(answer.text() == "one two three");
  BOOST_TEST(!answer.stopped());
}

BOOST_AUTO_TEST_CASE(without_a_tokenizer_there_is_no_text_and_nothing_stops) {
  om::answer_text answer(nullptr, {"x"});
  BOOST_TEST(answer.push(120) == "");
  BOOST_TEST(answer.finish() == "");
  BOOST_TEST(answer.text() == "");
  BOOST_TEST(!answer.stopped());
}

BOOST_AUTO_TEST_CASE(half_a_character_waits_for_the_rest) {
  const auto tokens = fixture::tiny_tokenizer();
  om::answer_text answer(tokens, {});
  answer.push(byte_id('a'));
  BOOST_TEST(answer.push(byte_id(0xc3)) == "");
  BOOST_TEST(answer.push(byte_id(0xa4)) == "\xc3\xa4");
  BOOST_TEST(answer.push(byte_id(0xe2)) == "");
  // What never became a character is shown as one that cannot be read.
  BOOST_TEST(answer.finish() == "\xef\xbf\xbd");
  BOOST_TEST(answer.text() == "a\xc3\xa4\xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(the_answer_ends_before_a_stop_string) {
  auto answer = answer_of({"say ", "stop", " now"}, {"stop"});
  BOOST_TEST(answer.push(0) == "say ");
  BOOST_TEST(answer.push(1) == "");
  BOOST_TEST(answer.stopped());
  BOOST_TEST(answer.push(2) == "");
  BOOST_TEST(answer.finish() == "");
  BOOST_TEST(answer.text() == "say ");
}

BOOST_AUTO_TEST_CASE(what_may_begin_a_stop_string_is_held_back_until_more_is_known) {
  auto answer = answer_of({"a s", "to", "ne", " st", "op it"}, {"stop"});
  BOOST_TEST(answer.push(0) == "a ");
  BOOST_TEST(answer.push(1) == "");
  BOOST_TEST(answer.push(2) == "stone");
  BOOST_TEST(answer.push(3) == " ");
  BOOST_TEST(answer.push(4) == "");
  BOOST_TEST(answer.stopped());
  BOOST_TEST(answer.text() == "a stone ");
}

BOOST_AUTO_TEST_CASE(what_was_held_back_comes_at_the_end) {
  auto answer = answer_of({"a sto"}, {"stop"});
  BOOST_TEST(answer.push(0) == "a ");
  BOOST_TEST(answer.text() == "a sto");
  BOOST_TEST(answer.finish() == "sto");
  BOOST_TEST(!answer.stopped());
  BOOST_TEST(answer.finish() == "");
}

BOOST_AUTO_TEST_CASE(the_first_of_several_stop_strings_counts) {
  auto answer = answer_of({"ab cd ef"}, {"ef", "cd", ""});
  BOOST_TEST(answer.push(0) == "ab ");
  BOOST_TEST(answer.stopped());
  BOOST_TEST(answer.text() == "ab ");
}

BOOST_AUTO_TEST_CASE(the_longest_beginning_is_held_back) {
  auto answer = answer_of({"xaab", "aab", "c"}, {"aabc", "b!"});
  BOOST_TEST(answer.push(0) == "x");
  // "aabaab": the second may still become the stop string, the first cannot.
  BOOST_TEST(answer.push(1) == "aab");
  BOOST_TEST(answer.push(2) == "");
  BOOST_TEST(answer.stopped());
  BOOST_TEST(answer.text() == "xaab");
}

BOOST_AUTO_TEST_CASE(a_stop_string_in_the_last_half_of_a_character_is_found_at_the_end) {
  const auto tokens = fixture::tiny_tokenizer();
  om::answer_text answer(tokens, {"\xef\xbf\xbd"});
  answer.push(byte_id('a'));
  answer.push(byte_id(0xe2));
  BOOST_TEST(answer.finish() == "");
  BOOST_TEST(answer.stopped());
  BOOST_TEST(answer.text() == "a");
}

BOOST_AUTO_TEST_CASE(
    whatever_comes_in_whatever_pieces_the_parts_are_the_text_up_to_the_first_stop) {
  std::size_t n_stopped = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    ordermoe::random_stream draws(seed);
    const auto drawn = [&](std::uint64_t longest) {
      std::string text;
      for (auto n = 1 + draws.below(longest); n > 0; --n)
        text += static_cast<char>('a' + draws.below(2));
      return text;
    };
    std::vector<std::string> words, stops;
    for (auto n = 1 + draws.below(8); n > 0; --n) words.push_back(drawn(3));
    for (auto n = draws.below(3); n > 0; --n) stops.push_back(drawn(3) + drawn(4));
    // The text that is left when everything is looked at once, word after word.
    std::string expected;
    bool stops_there = false;
    for (std::size_t i = 0; i < words.size() && !stops_there; ++i) {
      expected += words[i];
      auto first = std::string::npos;
      for (const auto& stop : stops) first = std::min(first, expected.find(stop));
      stops_there = first != std::string::npos;
      if (stops_there) expected.resize(first);
    }
    auto answer = answer_of(words, stops);
    std::string parts;
    for (std::size_t i = 0; i < words.size(); ++i) {
      parts += answer.push(static_cast<std::int32_t>(i));
      BOOST_TEST_REQUIRE(expected.starts_with(parts), "seed " << seed);
    }
    parts += answer.finish();
    BOOST_TEST_REQUIRE(parts == expected, "seed " << seed);
    BOOST_TEST_REQUIRE(answer.text() == expected);
    BOOST_TEST_REQUIRE(answer.stopped() == stops_there);
    n_stopped += stops_there;
  }
  BOOST_TEST(n_stopped > 50u);
  BOOST_TEST(n_stopped < 450u);
}

BOOST_AUTO_TEST_SUITE_END()
