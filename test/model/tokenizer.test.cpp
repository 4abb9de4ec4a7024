#include "model/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using ordermoe::errc;

/// A tokenizer whose ids are single bytes; decoding replaces what is no UTF-8, byte by byte.
class byte_tokenizer final : public om::tokenizer {
 public:
  std::size_t vocab_size() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    return {text.begin(), text.end()};
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<std::int32_t> pieces;
    // The tiny model's byte pieces are the ids 3 to 258.
    for (const auto id : ids) pieces.push_back(3 + id);
    return fixture::tiny_tokenizer()->decode(pieces);
  }
};

bool is_utf8(std::string_view text) {
  return !nlohmann::json(std::string(text))
              .dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore)
              .empty() &&
         nlohmann::json(std::string(text))
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore) ==
             nlohmann::json(std::string(text))
                 .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// `end`: the id that ends every text; negative: one begins it.
void check_pieces(const std::filesystem::path& folder, std::int32_t end = -1) {
  const auto tokens = fixture::need(om::tokenizer::load(folder));
  const auto samples =
      nlohmann::json::parse(fixture::need(ordermoe::read_file(folder / "pieces.json")));
  BOOST_REQUIRE(samples.size() >= 10u);
  for (const auto& sample : samples) {
    auto expected = sample["ids"].get<std::vector<std::int32_t>>();
    const auto text = sample["text"].get<std::string>();
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(tokens->decode(expected) == sample["decoded"].get<std::string>());
      const auto ids = tokens->encode(text);
      if (end < 0)
        expected.insert(expected.begin(), ids.at(0));
      else
        expected.push_back(end);
      BOOST_TEST(ids == expected, boost::test_tools::per_element());
      BOOST_TEST(tokens->decode(ids) == sample["decoded"].get<std::string>());
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer)

BOOST_AUTO_TEST_CASE(pieces_are_those_of_the_sentencepiece_programs) {
  check_pieces(fixture::tiny);
}

BOOST_AUTO_TEST_CASE(normalisation_rules_user_pieces_and_unknowns_are_those_of_the_programs) {
  check_pieces(fixture::other_tokenizer);
}

BOOST_AUTO_TEST_CASE(a_unigram_model_divides_texts_as_the_programs_do_and_ends_them) {
  check_pieces(std::filesystem::path(ORDERMOE_TEST_DATA) / "tokenizer-unigram", 1);
}

BOOST_AUTO_TEST_CASE(encoding_begins_with_the_beginning_of_text) {
  BOOST_TEST(fixture::tiny_tokenizer()->encode("").size() == 1u);
  BOOST_TEST(fixture::tiny_tokenizer()->encode("fox").at(0) == 1);
  BOOST_TEST(fixture::tiny_tokenizer()->vocab_size() == 320u);
}

BOOST_AUTO_TEST_CASE(invalid_utf8_is_encoded_as_replacement_characters) {
  const auto& tokens = *fixture::tiny_tokenizer();
  BOOST_TEST(tokens.decode(tokens.encode("a\xff\xc3(")) == "a\xef\xbf\xbd\xef\xbf\xbd(");
}

BOOST_AUTO_TEST_CASE(ids_beyond_the_vocabulary_decode_to_a_replacement_character) {
  const std::int32_t ids[] = {99999, -1};
  BOOST_TEST(fixture::tiny_tokenizer()->decode(ids) == "\xef\xbf\xbd\xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(streaming_never_hands_out_half_a_character) {
  const std::string text = "na\xc3\xafve \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x99\x82!";
  om::streaming_decoder decoder(std::make_shared<byte_tokenizer>());
  std::string together;
  for (const char byte : text) {
    const std::string part = decoder.push(static_cast<unsigned char>(byte));
    BOOST_TEST(is_utf8(part));
    BOOST_TEST(part.find("\xef\xbf\xbd") == std::string::npos);
    together += part;
  }
  BOOST_TEST(together == text);
  BOOST_TEST(decoder.finish() == "");
}

BOOST_AUTO_TEST_CASE(streaming_replaces_what_never_becomes_a_character) {
  om::streaming_decoder decoder(std::make_shared<byte_tokenizer>());
  std::string together;
  for (const int byte : {0x61, 0xe2, 0x82, 0x62, 0xf0, 0x9f}) together += decoder.push(byte);
  BOOST_TEST(together == "a\xef\xbf\xbd\xef\xbf\xbd\x62");
  BOOST_TEST(decoder.finish() == "\xef\xbf\xbd\xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(a_stream_adds_up_to_the_whole_text_however_long) {
  const auto tokens = fixture::tiny_tokenizer();
  ordermoe::random_stream random(21);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int32_t> ids(300);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(320));
    om::streaming_decoder decoder(tokens);
    std::string together;
    for (const auto id : ids) {
      const std::string part = decoder.push(id);
      BOOST_TEST(is_utf8(part));
      together += part;
    }
    together += decoder.finish();
    BOOST_REQUIRE_EQUAL(together, tokens->decode(ids));
  }
}

BOOST_AUTO_TEST_CASE(a_damaged_tokenizer_is_refused_by_name) {
  const fixture::scratch_folder folder;
  check_error(om::tokenizer::load(folder.path()), errc::not_found, {"tokenizer.model"});
  const auto good = fixture::need(ordermoe::read_file(fixture::tiny / "tokenizer.model"));
  for (const std::string& bytes :
       {std::string(), std::string("nonsense"), std::string(100, '\xff'), good.substr(0, 1000),
        good.substr(0, good.size() - 1), good + "\x0a"}) {
    folder.write("tokenizer.model", bytes);
    check_error(om::tokenizer::load(folder.path()), errc::malformed, {"tokenizer.model"});
  }
}

BOOST_AUTO_TEST_CASE(a_tokenizer_with_any_byte_changed_is_refused_or_still_works) {
  const fixture::scratch_folder folder;
  for (const auto& source : {fixture::tiny, fixture::other_tokenizer}) {
    const auto good = fixture::need(ordermoe::read_file(source / "tokenizer.model"));
    for (std::size_t at = 0; at < good.size(); at += 7) {
      auto bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
      folder.write("tokenizer.model", bytes);
      const auto tokens = om::tokenizer::load(folder.path());
      if (tokens)
        for (const auto id : (*tokens)->encode("The fox \xef\xac\x81 [end] \xf0\x9f\x99\x82"))
          BOOST_REQUIRE(static_cast<std::size_t>(id) < (*tokens)->vocab_size());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
