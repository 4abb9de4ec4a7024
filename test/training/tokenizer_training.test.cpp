#include "model/training/tokenizer_training.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

#include "model/text/sentencepiece_model.hpp"

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(tokenizer_training)

namespace {
std::vector<std::string> some_lines() {
  std::vector<std::string> lines;
  for (int i = 0; i < 200; ++i)
    lines.push_back("The quick brown fox number " + std::to_string(i) +
                    " jumps over    the lazy dog, \"na\xc3\xafve\" as ever.");
  return lines;
}
}  // namespace

BOOST_AUTO_TEST_CASE(any_text_survives_there_and_back) {
  const auto bytes = train_tokenizer(some_lines(), {320});
  BOOST_TEST_REQUIRE(bytes.has_value());
  const auto model = model::sentencepiece_model::parse(*bytes);
  BOOST_TEST_REQUIRE(model.has_value());
  BOOST_TEST(model->bos_id() == 1);
  for (const std::string text : {"The quick brown fox.", " leading and  double spaces ",
                                 "line\nbreak\tand tab", "\xe4\xbd\xa0\xe5\xa5\xbd 42"})
    BOOST_TEST(model->decode(model->encode(text)) == text);
}

BOOST_AUTO_TEST_CASE(frequent_words_become_one_piece_and_digits_stay_single) {
  const auto bytes = train_tokenizer(some_lines(), {400});
  BOOST_TEST_REQUIRE(bytes.has_value());
  const auto model = model::sentencepiece_model::parse(*bytes);
  BOOST_TEST_REQUIRE(model.has_value());
  BOOST_TEST(model->encode(" quick").size() == 1u);
  BOOST_TEST(model->encode("123").size() == 3u);
  BOOST_TEST(model->encode(" 7").size() == 2u);
}

BOOST_AUTO_TEST_CASE(the_same_text_gives_the_same_bytes) {
  const auto once = train_tokenizer(some_lines(), {400}),
             again = train_tokenizer(some_lines(), {400});
  BOOST_TEST_REQUIRE((once.has_value() && again.has_value()));
  BOOST_TEST((*once == *again));
}

BOOST_AUTO_TEST_CASE(a_short_text_gets_as_many_pieces_as_it_supports) {
  const auto bytes = train_tokenizer({"ab ab"}, {768});
  BOOST_TEST_REQUIRE(bytes.has_value());
  const auto model = model::sentencepiece_model::parse(*bytes);
  BOOST_TEST_REQUIRE(model.has_value());
  // Control and byte pieces, three characters; "ab" occurs twice, with and without a space in
  // front.
  BOOST_TEST(model->size() == 259u + 3u + 1u);
}

BOOST_AUTO_TEST_CASE(an_empty_text_is_refused) {
  const auto bytes = train_tokenizer({"", ""});
  BOOST_TEST_REQUIRE(!bytes.has_value());
  BOOST_TEST((bytes.error().code == errc::out_of_range));
}

BOOST_AUTO_TEST_SUITE_END()
