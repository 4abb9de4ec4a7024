#include "model/text/byte_level_bpe.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "test/model/fixture.hpp"
#include "test/model/text/slow_byte_level_bpe.hpp"

/// Ids are compared with those of a second implementation (slow_byte_level_bpe.hpp).
using namespace ordermoe::test::byte_level;

BOOST_AUTO_TEST_SUITE(byte_level_bpe)

BOOST_AUTO_TEST_CASE(hard_cases_have_the_ids_of_a_slow_second_implementation) {
  const json qwen = without_normalizer(qwen_file());
  const json neox = without_normalizer(neox_file());
  const auto qwen_tokens = tokenizer_of(qwen);
  const auto neox_tokens = tokenizer_of(neox);
  for (const auto& text : hard_cases) {
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(shown(qwen_tokens->encode(text)) == shown(encode_slowly(qwen, next_qwen, text)));
      BOOST_TEST(shown(neox_tokens->encode(text)) == shown(encode_slowly(neox, next_gpt2, text)));
    }
  }
}

BOOST_AUTO_TEST_CASE(ten_thousand_random_texts_have_those_ids_and_come_back_unchanged) {
  const json qwen = without_normalizer(qwen_file());
  const json neox = without_normalizer(neox_file());
  auto shown_specials = qwen;
  for (auto& token : shown_specials["added_tokens"]) token["special"] = false;
  const auto qwen_tokens = tokenizer_of(shown_specials);
  const auto neox_tokens = tokenizer_of(neox);
  ordermoe::random_stream random(7);
  for (int round = 0; round < 10000; ++round) {
    const string text = random_text(random);
    const auto ids = qwen_tokens->encode(text);
    BOOST_REQUIRE_EQUAL(qwen_tokens->decode(ids), text);
    BOOST_REQUIRE_EQUAL(shown(ids), shown(encode_slowly(qwen, next_qwen, text)));
    const auto other = neox_tokens->encode(text);
    BOOST_REQUIRE_EQUAL(neox_tokens->decode(other), text);
    BOOST_REQUIRE_EQUAL(shown(other), shown(encode_slowly(neox, next_gpt2, text)));
  }
}

BOOST_AUTO_TEST_CASE(pieces_are_those_that_the_expression_says) {
  using list = std::vector<string>;
  const auto check = [](const string& text, const list& expected) {
    BOOST_TEST(pieces_of(qwen_expression, text) == expected, boost::test_tools::per_element());
  };
  check("I'LL go", {"I", "'LL", " go"});
  check("it's 2024!", {"it", "'s", " ", "2", "0", "2", "4", "!"});
  check("a  b", {"a", " ", " b"});
  check("a \n\n b", {"a", " \n\n", " b"});
  check("x...\r\n\r\ny", {"x", "...\r\n\r\n", "y"});
  check("\tif", {"\tif"});
  check("  ", {"  "});
  check(
      "a\xc2\xa0\xc2\xa0"
      "b",
      {"a", "\xc2\xa0",
       "\xc2\xa0"
       "b"});
  // U+180E is no white space: it goes with a space as any sign does, and ends a run of spaces.
  check(
      "  \xe1\xa0\x8e"
      "b",
      {" ", " \xe1\xa0\x8e", "b"});
}

BOOST_AUTO_TEST_CASE(composed_characters_are_made_before_anything_is_merged) {
  const auto tokens = tokenizer_of(qwen_file());
  const auto plain = tokenizer_of(without_normalizer(qwen_file()));
  const std::vector<std::pair<string, string>> cases = {
      {"cafe\xcc\x81", "caf\xc3\xa9"},                           // e, acute
      {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"},  // Hangul
      {"\xe2\x84\xab \xe2\x84\xa6", "\xc3\x85 \xce\xa9"},        // Angstrom, ohm
      {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},                // order of marks
      {"\xe0\xa4\x95\xe0\xa4\xbc", "\xe0\xa4\x95\xe0\xa4\xbc"},  // excluded
      {"\xef\xac\x81 \xc2\xbd \xe2\x91\xa0", "\xef\xac\x81 \xc2\xbd \xe2\x91\xa0"},  // compatible
      {"e<tool>\xcc\x81", "e<tool>\xcc\x81"},  // Nothing is composed across a token.
  };
  for (const auto& [given, composed] : cases) BOOST_TEST_CONTEXT(given) {
      BOOST_TEST(shown(tokens->encode(given)) == shown(plain->encode(composed)));
      BOOST_TEST(tokens->decode(tokens->encode(given)) == composed);
    }
}

BOOST_AUTO_TEST_CASE(flags_of_added_tokens_are_honoured) {
  json file = without_normalizer(qwen_file());
  const int n = static_cast<int>(file["model"]["vocab"].size());
  const auto ids = [&](const json& token, const string& text) {
    file["added_tokens"] = json::array({token});
    return tokenizer_of(file)->encode(text);
  };
  const auto piece = [&](const string& text) {
    return file["model"]["vocab"].at(written(text)).get<int>();
  };
  using list = std::vector<std::int32_t>;
  const auto same = [&](const list& found, const list& expected) {
    BOOST_TEST(found == expected, boost::test_tools::per_element());
  };
  json token = added("<m>", n, true);
  same(ids(token, "x <m> y"), {piece("x"), piece(" "), n, piece(" "), piece("y")});
  token["lstrip"] = true;
  same(ids(token, "x \xc2\xa0\n<m> y"), {piece("x"), n, piece(" "), piece("y")});
  same(ids(token, "<m> <m>"), {n, n});
  token["rstrip"] = true;
  same(ids(token, "x <m>\t\xe3\x80\x80y <m> "), {piece("x"), n, piece("y"), n});
  token = added("fox", n, false);
  token["single_word"] = true;
  same(ids(token, "fox"), {n});
  same(ids(token, "(fox)"), {piece("("), n, piece(")")});
  for (const string text : {"fox1", "fox_", "xfox", "fox\xcc\x81",
                            "\xc3\xa9"
                            "fox",
                            "fox\xe2\x80\x8d"})
    BOOST_TEST(std::ranges::count(ids(token, text), n) == 0, text);
  // In the normalised text only: here e and acute are two characters, there one.
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  token = added("f\xc3\xa9", n, false);
  same(ids(token, "f\xc3\xa9"), {n});
  BOOST_TEST(std::ranges::count(ids(token, "fe\xcc\x81"), n) == 0);
  token["normalized"] = true;
  same(ids(token, "fe\xcc\x81"), {n});
}

BOOST_AUTO_TEST_CASE(special_tokens_are_not_shown_and_others_are_shown_as_written) {
  const json file = qwen_file();
  const auto tokens = tokenizer_of(file);
  BOOST_TEST(tokens->decode(tokens->encode("a<|end|>b<tool>c")) == "ab<tool>c");
  BOOST_TEST(tokens->vocab_size() == file["model"]["vocab"].size() + 3);
  const std::int32_t beyond[] = {static_cast<std::int32_t>(tokens->vocab_size()), -1};
  BOOST_TEST(tokens->decode(beyond) == "\xef\xbf\xbd\xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(a_template_puts_its_tokens_around_the_text) {
  json file = qwen_file();
  const int n = static_cast<int>(file["model"]["vocab"].size());
  const json special = {{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {byte_level(false),
        {{"type", "TemplateProcessing"},
         {"single", {special, text, special, special}},
         {"pair", json::array()},
         {"special_tokens",
          {{"<|end|>", {{"id", "<|end|>"}, {"ids", {n}}, {"tokens", {"<|end|>"}}}}}}}}}};
  const std::vector<std::int32_t> expected = {n, 255 - 'x', n, n};
  BOOST_TEST(tokenizer_of(file)->encode("x") == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_space_goes_before_every_part_where_the_file_asks_for_it) {
  json file = without_normalizer(neox_file());
  const auto plain = tokenizer_of(file);
  file["pre_tokenizer"]["add_prefix_space"] = true;
  const auto spaced = tokenizer_of(file);
  BOOST_TEST(shown(spaced->encode("hello the")) == shown(plain->encode(" hello the")));
  BOOST_TEST(shown(spaced->encode(" hello the")) == shown(plain->encode(" hello the")));
  BOOST_TEST(shown(spaced->encode("the<|endoftext|>the")) ==
             shown(plain->encode(" the<|endoftext|> the")));
  BOOST_TEST(spaced->encode("").empty());
}

BOOST_AUTO_TEST_CASE(whole_tokens_go_before_merges_where_the_file_says_so) {
  json file = without_normalizer(qwen_file());
  // No merge makes it.
  file["model"]["vocab"]["xyz"] = file["model"]["vocab"].size() + 3;
  const auto by_merges = tokenizer_of(file)->encode("xyz");
  BOOST_TEST(by_merges.size() == 3u);
  file["model"]["ignore_merges"] = true;
  const auto whole = tokenizer_of(file)->encode("xyz");
  BOOST_REQUIRE(whole.size() == 1u);
  BOOST_TEST(whole[0] == file["model"]["vocab"]["xyz"].get<int>());
}

BOOST_AUTO_TEST_CASE(ill_formed_utf8_is_encoded_as_replacement_characters) {
  const auto tokens = tokenizer_of(qwen_file());
  const auto back = [&](const string& text) { return tokens->decode(tokens->encode(text)); };
  const string r = "\xef\xbf\xbd";
  BOOST_TEST(back("a\xff\xc3(") == "a" + r + r + "(");
  BOOST_TEST(back("\xf0\x9f\x91") == r);
  BOOST_TEST(back("\xed\xa0\x80") == r + r + r);  // A surrogate.
  BOOST_TEST(back("\xc0\xaf\xf4\x90\x80\x80") == r + r + r + r + r + r);
}

BOOST_AUTO_TEST_CASE(long_pieces_take_no_quadratic_time) {
  const auto tokens = tokenizer_of(without_normalizer(qwen_file()));
  const string letters(std::size_t{1} << 20, 'a');
  BOOST_TEST(tokens->encode(letters).size() == letters.size() / 4);
  const string spaces(std::size_t{1} << 20, ' ');
  BOOST_TEST(tokens->encode(spaces + "x").size() == (spaces.size() - 4) / 4 + 1 + 1 + 1 + 1);
}

BOOST_AUTO_TEST_CASE(streaming_hands_out_whole_characters_only) {
  const auto tokens = tokenizer_of(without_normalizer(qwen_file()));
  for (const auto& text : hard_cases) {
    om::streaming_decoder decoder(tokens);
    string together;
    for (const auto id : tokens->encode(text)) {
      const string part = decoder.push(id);
      BOOST_TEST(om::replace_ill_formed(part) == part);
      BOOST_TEST(part.find("\xef\xbf\xbd") == string::npos);
      together += part;
    }
    BOOST_TEST(decoder.finish() == "");
    BOOST_TEST(together == tokens->decode(tokens->encode(text)));
  }
  ordermoe::random_stream random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int32_t> ids(200);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(tokens->vocab_size() + 1));
    om::streaming_decoder decoder(tokens);
    string together;
    for (const auto id : ids) {
      const string part = decoder.push(id);
      BOOST_REQUIRE_EQUAL(om::replace_ill_formed(part), part);
      together += part;
    }
    together += decoder.finish();
    BOOST_REQUIRE_EQUAL(together, tokens->decode(ids));
  }
}

BOOST_AUTO_TEST_CASE(a_sentencepiece_model_is_preferred_and_none_at_all_is_not_found) {
  const fixture::scratch_folder folder;
  check_error(om::tokenizer::load(folder.path()), errc::not_found,
              {"tokenizer.model", "tokenizer.json"});
  folder.write("tokenizer.json", qwen_file().dump());
  BOOST_TEST(fixture::need(om::tokenizer::load(folder.path()))->encode("").empty());
  folder.write("tokenizer.model",
               fixture::need(ordermoe::read_file(fixture::tiny / "tokenizer.model")));
  // Of one model the two say the same.
  check_error(om::tokenizer::load(folder.path()), errc::mismatch, {"tokenizer.json", "'<|end|>'"});
  auto alike = qwen_file();
  alike.erase("added_tokens");
  folder.write("tokenizer.json", alike.dump());
  BOOST_TEST(fixture::need(om::tokenizer::load(folder.path()))->encode("").size() == 1u);
}

BOOST_AUTO_TEST_CASE(expressions_that_may_mean_something_else_are_refused_by_name) {
  const auto refused = [](const string& expression, errc code, const string& word) {
    BOOST_TEST_CONTEXT(expression) {
      check_error(om::split_pattern::compile(expression), code, {"found", word, "expected"});
    }
  };
  for (const string found : {"^", "$"}) refused("a" + found, errc::unsupported, "'" + found + "'");
  for (const string found :
       {"\\w", "\\b", "\\h", "\\R", "\\X", "\\K", "\\1", "\\A", "\\z", "\\Q", "\\C", "\\u"})
    refused("a" + found, errc::unsupported, "'" + found + "'");
  refused("\\p{Greek}", errc::unsupported, "\\p{Greek}");
  refused("\\p{^L}", errc::unsupported, "\\p{^L}");
  refused("\\pL", errc::unsupported, "\\pL");
  refused("[a[bc]]", errc::unsupported, "'['");
  refused("[a&&b]", errc::unsupported, "'&&'");
  refused("[^\\S]", errc::unsupported, "\\S");
  refused("[\\p{L}-z]", errc::unsupported, "'-'");
  refused("(?i)a", errc::unsupported, "'(?i'");
  refused("(?<name>a)", errc::unsupported, "'(?<'");
  refused("(*ACCEPT)", errc::unsupported, "'(*'");
  refused("(?i:'st)", errc::unsupported, "'st'");
  refused("(?i:\xc3\xa9)", errc::unsupported, "\xc3\xa9");
  refused("(?i:[a-z])", errc::unsupported, "'['");
  refused("a{2}?", errc::unsupported, "'?'");
  refused("a{,2}", errc::unsupported, "'{'");
  refused("a{2000}", errc::unsupported, "'{'");
  refused("a**", errc::unsupported, "'*'");
  refused("(?=a)+a", errc::unsupported, "'+'");
  refused("a*", errc::unsupported, "empty text");
  refused("", errc::malformed, "empty");
  refused("(a", errc::malformed, "'('");
  refused("a)", errc::malformed, "')'");
  refused("[a", errc::malformed, "'['");
  refused("*a", errc::malformed, "'*'");
  refused("(?<=a+)b", errc::malformed, "PCRE2");
  refused("\xff", errc::malformed, "UTF-8");
  refused(string(100, '(') + "a" + string(100, ')'), errc::unsupported, "'('");
  refused(string(100000, 'a'), errc::out_of_range, "100000 bytes");
}

BOOST_AUTO_TEST_CASE(a_search_that_gives_up_leaves_one_piece_and_no_text_is_lost) {
  const string text = string(60, 'a') + "b c";
  const auto pieces = pieces_of("(?:a+)+(?:a+)+(?:a+)+(?:a+)+(?:a+)+x|c", text);
  string together;
  for (const auto& piece : pieces) together += piece;
  BOOST_TEST(together == text);
}

BOOST_AUTO_TEST_SUITE_END()
