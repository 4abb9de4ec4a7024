#include "model/text/tokenizer.hpp"

#include <unicode/normalizer2.h>
#include <unicode/unistr.h>

#include <nlohmann/json.hpp>

#include "model/text/utf8.hpp"
#include "test/model/fixture.hpp"

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
  std::vector<std::int32_t> encode_inside(std::string_view text) const override {
    return encode(text);
  }
  std::optional<std::int32_t> special_id(std::string_view) const override { return std::nullopt; }
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

const std::filesystem::path data = ORDERMOE_TEST_DATA;
const std::vector<std::string> all_kinds = {"mixtral-tiny",    "tokenizer-mixtral",
                                            "tokenizer-other", "tokenizer-unigram",
                                            "tokenizer-qwen",  "tokenizer-neox"};

std::shared_ptr<const om::tokenizer> load(const std::string& folder) {
  return fixture::need(om::tokenizer::load(data / folder));
}

/// Up to `most` characters: white space of all kinds, marks, joiners, what tokenizers treat
/// specially, and any others but surrogates.
std::string random_text(ordermoe::random_stream& random, std::size_t most) {
  static const std::u32string favourites =
      U"  \t\n\r\u00a0\u3000\u2028\u0085'sStTreLlD019.,<|end|>\u00e9\u0301\u017f\u6f22\u3042\u05d0"
      U"\u0966\u00bd\u200d\U0001f469\U0001f3fd\ufb01\ufffd";
  std::string text;
  for (auto n = random.below(most + 1); n > 0; --n) {
    char32_t c = favourites[random.below(favourites.size())];
    if (random.below(3) == 0)
      c = static_cast<char32_t>(random.below(random.below(2) == 0 ? 0x110000 : 0x3000));
    if (c < 0xd800 || c > 0xdfff) om::append_utf8(text, c);
  }
  return text;
}

/// A field of a protobuf message.
std::string bytes_field(int number, const std::string& content) {
  std::string made(1, static_cast<char>((number << 3) | 2));
  auto n = content.size();
  for (; n >= 0x80; n >>= 7) made += static_cast<char>((n & 0x7f) | 0x80);
  return made + static_cast<char>(n) + content;
}

std::string without(std::string text, std::string_view part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at))
    text.erase(at, part.size());
  return text;
}

/// The text in Unicode's normal form C.
std::string composed(const std::string& text) {
  UErrorCode status = U_ZERO_ERROR;
  const auto* form = icu::Normalizer2::getNFCInstance(status);
  const auto made = form->normalize(icu::UnicodeString::fromUTF8(text), status);
  BOOST_REQUIRE(U_SUCCESS(status));
  std::string bytes;
  made.toUTF8String(bytes);
  return bytes;
}

/// Pushes the ids one by one. What was handed out so far is always whole characters of the text
/// that the ids so far decode to, and with what is left at that point all of it.
void check_stream(const std::shared_ptr<const om::tokenizer>& tokens,
                  std::span<const std::int32_t> ids) {
  om::streaming_decoder decoder(tokens);
  std::string together;
  for (std::size_t n = 1; n <= ids.size(); ++n) {
    const std::string part = decoder.push(ids[n - 1]);
    BOOST_REQUIRE(om::is_utf8(part));
    together += part;
    const std::string whole = tokens->decode(ids.first(n));
    BOOST_REQUIRE(whole.starts_with(together));
    auto stopped_here = decoder;
    BOOST_REQUIRE_EQUAL(together + stopped_here.finish(), whole);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokenizer)

BOOST_AUTO_TEST_CASE(hard_cases_have_the_ids_of_an_independent_implementation) {
  for (const auto& folder : all_kinds) {
    const auto tokens = load(folder);
    const auto hard =
        nlohmann::json::parse(fixture::need(ordermoe::read_file(data / folder / "hard.json")));
    BOOST_REQUIRE(hard["cases"].size() >= 250u);
    for (const auto& sample : hard["cases"]) {
      const auto text = sample["text"].get<std::string>();
      BOOST_TEST_CONTEXT(folder << ": " << sample["text"].dump())
      BOOST_TEST(tokens->encode(text) == sample["ids"].get<std::vector<std::int32_t>>(),
                 boost::test_tools::per_element());
    }
  }
}

BOOST_AUTO_TEST_CASE(ten_thousand_random_texts_come_back_from_sentencepiece_unchanged) {
  const auto plain = load("tokenizer-mixtral");
  const auto trimming = load("mixtral-tiny");
  ordermoe::random_stream random(31);
  for (int round = 0; round < 10000; ++round) {
    // The sign that stands for a space in the file's pieces is shown as one.
    const std::string text = without(random_text(random, 40), "\xe2\x96\x81");
    BOOST_REQUIRE_EQUAL(plain->decode(plain->encode(text)), text);
    std::string trimmed;
    for (const char c : text)
      if (c != ' ' || (!trimmed.empty() && trimmed.back() != ' ')) trimmed += c;
    if (trimmed.ends_with(' ')) trimmed.pop_back();
    BOOST_REQUIRE_EQUAL(trimming->decode(trimming->encode(text)), trimmed);
  }
}

/// T5's models have no pieces for single bytes: what they have no piece for is lost, and as one
/// sign for a run of such characters. The rest comes back with single spaces.
BOOST_AUTO_TEST_CASE(ten_thousand_random_texts_come_back_from_a_unigram_model_as_far_as_it_knows) {
  const auto tokens = load("tokenizer-unigram");
  const auto shown = [&](const std::string& text) { return tokens->decode(tokens->encode(text)); };
  std::vector<std::string> known, unknown;
  for (char32_t c = 0x21; c < 0x3100; ++c) {
    std::string one;
    om::append_utf8(one, c);
    const auto back = shown("a" + one + "a");
    if (back == "a" + one + "a")
      known.push_back(one);
    else if (back == "a \xe2\x81\x87 a")
      unknown.push_back(one);
  }
  BOOST_TEST(known.size() >= 26u);
  BOOST_TEST(unknown.size() >= 1000u);
  ordermoe::random_stream random(34);
  for (int round = 0; round < 10000; ++round) {
    std::string text, expected;
    bool in_unknown = false, space = false;
    for (auto n = random.below(41); n > 0; --n) {
      const auto kind = random.below(8);
      if (kind == 0) {
        text += ' ';
        space = true;
        continue;
      }
      const auto& from = kind == 1 ? unknown : known;
      const auto& c = from[random.below(from.size())];
      text += c;
      if (space && !expected.empty()) {
        expected += ' ';
        in_unknown = false;
      }
      space = false;
      if (kind != 1)
        expected += c;
      else if (!in_unknown)
        expected += " \xe2\x81\x87 ";
      in_unknown = kind == 1;
    }
    BOOST_REQUIRE_EQUAL(shown(text), expected);
  }
}

BOOST_AUTO_TEST_CASE(ten_thousand_random_texts_come_back_from_byte_level_bpe_composed) {
  for (const std::string folder : {"tokenizer-qwen", "tokenizer-neox"}) {
    const auto tokens = load(folder);
    ordermoe::random_stream random(32);
    for (int round = 0; round < 10000; ++round) {
      // The file's special token is not shown.
      const std::string text = without(random_text(random, 40), "<|end|>");
      BOOST_REQUIRE_EQUAL(tokens->decode(tokens->encode(text)), composed(text));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_stream_hands_out_whole_characters_at_every_prefix_of_any_text) {
  for (const auto& folder : all_kinds) {
    const auto tokens = load(folder);
    ordermoe::random_stream random(33);
    for (int round = 0; round < 300; ++round)
      check_stream(tokens, tokens->encode(random_text(random, 60)));
    std::vector<std::int32_t> ids(80);
    for (int round = 0; round < 100; ++round) {
      for (auto& id : ids) id = static_cast<std::int32_t>(random.below(tokens->vocab_size() + 1));
      check_stream(tokens, ids);
    }
  }
}

/// Of any ids, as an answer may have them.
BOOST_AUTO_TEST_CASE(what_goes_on_behind_a_prompt_keeps_the_space_that_it_begins_with) {
  for (const auto* folder : {"mixtral-tiny", "tokenizer-mixtral", "tokenizer-unigram"}) {
    const auto tokens = load(folder);
    const auto rest = [&](std::span<const std::int32_t> before, std::span<const std::int32_t> ids) {
      om::streaming_decoder decoder(tokens, before);
      std::string text;
      for (const auto id : ids) text += decoder.push(id);
      return text + decoder.finish();
    };
    const auto answer = tokens->encode_inside("sees a fox");
    BOOST_TEST(rest({}, answer) == tokens->decode(answer));
    BOOST_TEST(rest(tokens->encode("The cat"), answer) == " " + tokens->decode(answer));
    const auto space = tokens->encode_inside("a").front();
    for (const auto& before : {std::vector<std::int32_t>{}, {1}, {1, space}, {space}})
      BOOST_TEST(tokens->decode(before) + rest(before, answer) == [&] {
        auto all = before;
        all.insert(all.end(), answer.begin(), answer.end());
        return tokens->decode(all);
      }());
    ordermoe::random_stream random(35);
    for (int round = 0; round < 300; ++round) {
      // Half a character between the two would be neither's.
      std::vector<std::int32_t> ids(80);
      const auto n = random.below(4);
      for (auto& id : ids) do {
          id = static_cast<std::int32_t>(random.below(tokens->vocab_size()));
        } while (tokens->decode(std::span(&id, 1)).find("\xef\xbf\xbd") != std::string::npos);
      BOOST_REQUIRE_EQUAL(tokens->decode(std::span(ids).first(n)) +
                              rest(std::span(ids).first(n), std::span(ids).subspan(n)),
                          tokens->decode(ids));
    }
  }
}

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

BOOST_AUTO_TEST_CASE(pieces_and_replacements_longer_than_any_tokenizer_has_are_refused) {
  const auto good = fixture::need(ordermoe::read_file(fixture::tiny / "tokenizer.model"));
  const auto with = [&](const std::string& field) {
    return om::tokenizer::parse_sentencepiece(good + field, "tokenizer.model");
  };
  const auto with_piece = [&](std::size_t n) {
    return with(bytes_field(1, bytes_field(1, std::string(n, 'x'))));
  };
  BOOST_TEST(fixture::need(with_piece(4096))->vocab_size() == 321u);
  check_error(with_piece(4097), errc::out_of_range,
              {"tokenizer.model", "piece 320", "4097 bytes", "4096"});
  // A character map is the size of its trie, here one unit, the trie and the replacements.
  const auto with_replacement = [&](std::size_t n) {
    const std::string trie("\4\0\0\0\0\0\0\0", 8);
    const auto map = trie + "short" + '\0' + std::string(n, 'y') + '\0' + "last";
    return with(bytes_field(3, bytes_field(2, map)));
  };
  BOOST_TEST(with_replacement(256).has_value());
  check_error(with_replacement(257), errc::out_of_range,
              {"tokenizer.model", "character map", "257 bytes", "256"});
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
