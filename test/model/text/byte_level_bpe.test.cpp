#include "model/text/byte_level_bpe.hpp"

#include <unicode/uchar.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "model/text/split_pattern.hpp"
#include "model/text/utf8.hpp"
#include "test/model/fixture.hpp"

/// Ids are compared with a second implementation that shares nothing with the first: its own byte
/// alphabet, scanners written by hand for the two expressions with categories from ICU, and a merge
/// loop that looks at all pairs every time.
namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using nlohmann::json;
using ordermoe::errc;
using std::string;

const string qwen_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The 256 characters of the byte alphabet as one JSON string, in the order of the bytes.
std::vector<string> alphabet() {
  std::vector<string> letters(256);
  int others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const bool as_is = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int code = as_is ? byte : 256 + others;
    if (!as_is) ++others;
    if (code < 128)
      letters[static_cast<std::size_t>(byte)] = string(1, static_cast<char>(code));
    else
      letters[static_cast<std::size_t>(byte)] = {static_cast<char>(0xc0 + code / 64),
                                                 static_cast<char>(0x80 + code % 64)};
  }
  return letters;
}

string written(const string& bytes) {
  static const auto letters = alphabet();
  string text;
  for (const char c : bytes) text += letters[static_cast<unsigned char>(c)];
  return text;
}

using pair = std::pair<string, string>;

/// In an order in which greedy and ranked merging differ ("abc" is a + bc, "hello" meets "he" and
/// "ll" first), with pieces of characters of two, three and four bytes.
const std::vector<pair> merge_list = {
    {"t", "h"},           {"l", "l"},           {"h", "e"},
    {"b", "c"},           {"th", "e"},          {" ", "the"},
    {"a", "b"},           {"ab", "c"},          {"a", "bc"},
    {"he", "ll"},         {"hell", "o"},        {" ", "hello"},
    {"'", "ll"},          {"'", "s"},           {" ", " "},
    {"  ", "  "},         {"\r", "\n"},         {"\n", "\n"},
    {"\r\n", "\r\n"},     {"1", "2"},           {"12", "3"},
    {"\xc3", "\xa9"},     {"e", "\xcc"},        {"e\xcc", "\x81"},
    {"\xf0", "\x9f"},     {"\xf0\x9f", "\x91"}, {"\xf0\x9f\x91", "\xa9"},
    {"\xe2", "\x80"},     {"\xe2\x80", "\x8d"}, {"\xe6", "\xbc"},
    {"\xe6\xbc", "\xa2"}, {"a", "a"},           {"aa", "aa"},
    {".", "."},           {"..", "."},
};

json added(const string& content, int id, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

/// The vocabulary: the bytes, backwards so that no id is its byte, then what merges make.
json vocabulary() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[written(string(1, static_cast<char>(byte)))] = 255 - byte;
  for (const auto& [left, right] : merge_list) {
    const string joined = written(left + right);
    if (!vocab.contains(joined)) vocab[joined] = vocab.size();
  }
  return vocab;
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

/// The shape of Qwen's files, and a few added tokens.
json qwen_file() {
  json file;
  const json vocab = vocabulary();
  const int n = static_cast<int>(vocab.size());
  file["version"] = "1.0";
  file["truncation"] = nullptr;
  file["padding"] = nullptr;
  file["added_tokens"] = {added("<|end|>", n, true), added("<|end|>>", n + 1, true),
                          added("<tool>", n + 2, false)};
  file["normalizer"] = {{"type", "NFC"}};
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", qwen_expression}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             byte_level(false)}}};
  file["post_processor"] = byte_level(false);
  file["decoder"] = byte_level(false);
  json merges = json::array();
  for (const auto& [left, right] : merge_list)
    merges.push_back(written(left) + " " + written(right));
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", ""},
                   {"end_of_word_suffix", ""},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", vocab},
                   {"merges", merges}};
  return file;
}

/// The shape of GPT-NeoX's and OLMoE's files: merges as pairs, runs of spaces as added tokens that
/// are looked for in the normalised text, a template that ends the text.
json neox_file() {
  json file = qwen_file();
  const int n = static_cast<int>(file["model"]["vocab"].size());
  file["added_tokens"] = {added("<|endoftext|>", n, true), added("      ", n + 1, false),
                          added("        ", n + 2, false)};
  file["added_tokens"][1]["normalized"] = true;
  file["added_tokens"][2]["normalized"] = true;
  file["pre_tokenizer"] = byte_level(true);
  json& model = file["model"];
  model.erase("byte_fallback");
  model.erase("ignore_merges");
  json merges = json::array();
  for (const auto& [left, right] : merge_list)
    merges.push_back(json::array({written(left), written(right)}));
  model["merges"] = merges;
  return file;
}

json without_normalizer(json file) {
  file["normalizer"] = nullptr;
  return file;
}

ordermoe::result<std::shared_ptr<const om::tokenizer>> load(const string& bytes) {
  const fixture::scratch_folder folder;
  folder.write("tokenizer.json", bytes);
  return om::tokenizer::load(folder.path());
}

std::shared_ptr<const om::tokenizer> tokenizer_of(const json& file) {
  return fixture::need(load(file.dump()));
}

// The second implementation.

std::u32string code_points(const string& text) {
  std::u32string found;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const int n = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    char32_t c = n == 1 ? byte : byte & (0x7f >> n);
    for (int k = 1; k < n; ++k)
      c = c * 64 + (static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]) & 63);
    found += c;
    i += static_cast<std::size_t>(n);
  }
  return found;
}

string utf8(const std::u32string& text) {
  string bytes;
  for (const char32_t c : text) {
    if (c < 0x80)
      bytes += static_cast<char>(c);
    else if (c < 0x800)
      bytes += {static_cast<char>(0xc0 + c / 64), static_cast<char>(0x80 + c % 64)};
    else if (c < 0x10000)
      bytes += {static_cast<char>(0xe0 + c / 4096), static_cast<char>(0x80 + c / 64 % 64),
                static_cast<char>(0x80 + c % 64)};
    else
      bytes += {static_cast<char>(0xf0 + c / 262144), static_cast<char>(0x80 + c / 4096 % 64),
                static_cast<char>(0x80 + c / 64 % 64), static_cast<char>(0x80 + c % 64)};
  }
  return bytes;
}

bool is_letter(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}
bool is_number(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}
bool is_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}
bool is_newline(char32_t c) {
  return c == U'\r' || c == U'\n';
}
bool is_sign(char32_t c) {
  return !is_space(c) && !is_letter(c) && !is_number(c);
}

using test_of = bool (*)(char32_t);
std::size_t run_of(const std::u32string& text, std::size_t at, test_of test) {
  std::size_t n = 0;
  while (at + n < text.size() && test(text[at + n])) ++n;
  return n;
}

std::size_t contraction(const std::u32string& text, std::size_t at, bool any_case) {
  if (at >= text.size() || text[at] != U'\'') return 0;
  for (const std::u32string ending : {U"s", U"t", U"re", U"ve", U"m", U"ll", U"d"}) {
    if (at + 1 + ending.size() > text.size()) continue;
    bool equal = true;
    for (std::size_t k = 0; k < ending.size(); ++k) {
      char32_t c = text[at + 1 + k];
      // U+017F is a lower-case long s; a case-insensitive s takes it.
      if (any_case) c = c == U'\u017f' ? U's' : c < 128 ? c | 32 : c;
      equal = equal && c == ending[k];
    }
    if (equal) return 1 + ending.size();
  }
  return 0;
}

/// Length of the white space at `at`, without its last character where a sign or a letter follows
/// and something is left.
std::size_t trailing_space(const std::u32string& text, std::size_t at) {
  const std::size_t n = run_of(text, at, is_space);
  return at + n < text.size() && n > 1 ? n - 1 : n;
}

std::size_t next_qwen(const std::u32string& text, std::size_t at) {
  if (const auto n = contraction(text, at, true)) return n;
  const char32_t c = text[at];
  const bool lead = !is_newline(c) && !is_letter(c) && !is_number(c);
  if (const auto n = run_of(text, at + (lead ? 1 : 0), is_letter)) return n + (lead ? 1 : 0);
  if (is_number(c)) return 1;
  const std::size_t space = c == U' ' ? 1 : 0;
  if (const auto n = run_of(text, at + space, is_sign))
    return space + n + run_of(text, at + space + n, is_newline);
  const std::size_t spaces = run_of(text, at, is_space);
  for (std::size_t n = spaces; n > 0; --n)
    if (is_newline(text[at + n - 1])) return n;
  return trailing_space(text, at);
}

std::size_t next_gpt2(const std::u32string& text, std::size_t at) {
  if (const auto n = contraction(text, at, false)) return n;
  const std::size_t space = text[at] == U' ' ? 1 : 0;
  for (const test_of test : {is_letter, is_number, is_sign})
    if (const auto n = run_of(text, at + space, test)) return space + n;
  return trailing_space(text, at);
}

using scanner = std::size_t (*)(const std::u32string&, std::size_t);

std::vector<string> pieces_by(scanner next, const string& text) {
  std::vector<string> pieces;
  const auto points = code_points(text);
  for (std::size_t at = 0; at < points.size();) {
    const std::size_t n = next(points, at);
    BOOST_REQUIRE(n > 0);
    pieces.push_back(utf8(points.substr(at, n)));
    at += n;
  }
  return pieces;
}

void merge_slowly(const json& vocab, const string& piece, std::vector<std::int32_t>& ids) {
  std::vector<string> symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  for (;;) {
    std::size_t best_rank = merge_list.size();
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      for (std::size_t rank = 0; rank < best_rank; ++rank)
        if (merge_list[rank] == pair(symbols[i], symbols[i + 1])) {
          best_rank = rank;
          best_at = i;
        }
    if (best_rank == merge_list.size()) break;
    symbols[best_at] += symbols[best_at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  for (const auto& symbol : symbols) ids.push_back(vocab.at(written(symbol)).get<std::int32_t>());
}

/// Text without a normaliser; added tokens without flags, the longest at each place.
std::vector<std::int32_t> encode_slowly(const json& file, scanner next, const string& text) {
  std::vector<std::int32_t> ids;
  string between;
  const auto flush = [&] {
    for (const auto& piece : pieces_by(next, between))
      merge_slowly(file["model"]["vocab"], piece, ids);
    between.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    string longest;
    int id = -1;
    for (const auto& token : file["added_tokens"]) {
      const auto content = token["content"].get<string>();
      if (content.size() > longest.size() && text.compare(at, content.size(), content) == 0) {
        longest = content;
        id = token["id"].get<int>();
      }
    }
    if (id < 0) {
      between += text[at++];
      continue;
    }
    flush();
    ids.push_back(id);
    at += longest.size();
  }
  flush();
  return ids;
}

const std::vector<string> hard_cases = {
    "",
    "hello",
    "hello hello the the",
    "abc abcabc aabc aaaaaaa",
    "I'll you'LL he's HE'S we've 'tis don't can''t 'S'\xc5\xbf 're",
    "'",
    "''s'",
    "12345 1a2b 3.14 \xc2\xbd\xe2\x85\xa7\xd9\xa3\xe0\xa5\xaa",
    "tabs\t\tand\tnewlines\n\n\nand\r\n\r\nCRLF\r\n",
    " leading",
    "   three leading",
    "trailing ",
    "trailing     ",
    "     ",
    "\n",
    " \n ",
    "  \n  \n  x",
    "x \r\n\t y\r",
    "nbsp\xc2\xa0here\xc2\xa0\xc2\xa0there\xc2\xa0",
    "ideographic\xe3\x80\x80space \xe3\x80\x80 x",
    "line\xe2\x80\xa8separator\xe2\x80\xa9paragraph",
    "next\xc2\x85line\x0b\x0c",
    "mongolian\xe1\xa0\x8e vowel \xe1\xa0\x8e separator",
    "zero\xe2\x80\x8bwidth\xef\xbb\xbf"
    "bom",
    "caf\xc3\xa9 cafe\xcc\x81 e\xcc\x81\xcc\x82",
    "\xcc\x81 starts with a mark",
    "\xe6\xbc\xa2\xe5\xad\x97 and \xe3\x81\x8b\xe3\x81\xaa"
    "abc123\xed\x95\x9c\xea\xb8\x80",
    "\xd9\x85\xd8\xb1\xd8\xad\xd8\xa8\xd8\xa7 \xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d",
    "\xe0\xa4\xb9\xe0\xa4\xbf\xe0\xa4\xa8\xe0\xa5\x8d\xe0\xa4\xa6\xe0\xa5\x80",
    "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 family",
    "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd!",
    "code: if (a[0] != b->c) { return x...; } // ok\n",
    "snake_case __init__ $var @user #tag 100%",
    "....  ... .",
    "a\n b\n  c\n\n   d",
    "<|end|>",
    "a<|end|>b <|end|>> c<|end|<|end|>>>",
    " <tool> the <tool>hello",
    "<|en d|> <|end|",
    string("nul\0inside", 10),
    "\xf0\x9d\x94\xb8\xf0\x9d\x95\x93\xf0\x9d\x9f\x99",
    "\xc7\x85\xca\xb0\xe2\x93\x90\xe2\x85\xb0",
};

/// Characters that tell the alternatives of the expressions apart, and any others.
string random_text(ordermoe::random_stream& random) {
  static const std::u32string favourites =
      U" \t\n\r\u00a0\u3000\u2028\u180e\u0085'sStTrevVmMlLdD019.,!<|>end\u00e9\u0301\u017f\u212a"
      U"\u6f22\u3042\u05d0\u0966\u00bd\u200d\U0001f469\U0001f3fd\u0130\u00df";
  std::u32string text;
  const auto n = random.below(40);
  while (text.size() < n) {
    if (random.below(4) != 0) {
      text += favourites[random.below(favourites.size())];
      continue;
    }
    const auto c = static_cast<char32_t>(random.below(random.below(2) == 0 ? 0x110000 : 0x3000));
    UVersionInfo age;
    u_charAge(static_cast<UChar32>(c), age);
    // Surrogates are no characters; what came after Unicode 14 is unknown to PCRE2 10.42.
    if ((c < 0xd800 || c > 0xdfff) && age[0] <= 14) text += c;
  }
  return utf8(text);
}

string shown(const std::vector<std::int32_t>& ids) {
  return json(ids).dump();
}

std::vector<string> pieces_of(const string& expression, const string& text) {
  const auto pattern = fixture::need(om::split_pattern::compile(expression));
  std::vector<std::string_view> pieces;
  pattern.split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

}  // namespace

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

BOOST_AUTO_TEST_CASE(a_damaged_or_foreign_file_is_refused_with_the_field_named) {
  struct bad {
    std::function<void(json&)> damage;
    errc code;
    std::vector<string> words;
  };
  const string first_merge = written("t") + " " + written("h");
  const std::vector<bad> cases = {
      {[](json& f) { f["model"].erase("vocab"); }, errc::malformed, {"model", "vocab"}},
      {[](json& f) { f["model"].erase("merges"); }, errc::malformed, {"model", "merges"}},
      {[](json& f) { f.erase("pre_tokenizer"); }, errc::malformed, {"pre_tokenizer"}},
      {[](json& f) { f["pre_tokenizer"] = nullptr; }, errc::malformed, {"pre_tokenizer"}},
      {[](json& f) { f.erase("decoder"); }, errc::malformed, {"decoder"}},
      {[](json& f) { f = json::array(); }, errc::malformed, {"an array"}},
      {[](json& f) { f["extra"] = 1; }, errc::malformed, {"'extra'"}},
      {[](json& f) { f["version"] = "2.0"; }, errc::out_of_range, {"version", "2.0"}},
      {[](json& f) {
         f["truncation"] = {{"max_length", 5}};
       },
       errc::unsupported,
       {"truncation"}},
      {[](json& f) {
         f["padding"] = {{"pad_id", 5}};
       },
       errc::unsupported,
       {"padding"}},
      {[](json& f) { f["model"]["type"] = "Unigram"; },
       errc::unsupported,
       {"model.type", "Unigram"}},
      {[](json& f) { f["model"]["dropout"] = 0.1; }, errc::unsupported, {"model.dropout"}},
      {[](json& f) { f["model"]["byte_fallback"] = true; },
       errc::unsupported,
       {"model.byte_fallback"}},
      {[](json& f) { f["model"]["continuing_subword_prefix"] = "##"; },
       errc::unsupported,
       {"model.continuing_subword_prefix", "##"}},
      {[](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; },
       errc::unsupported,
       {"model.end_of_word_suffix", "</w>"}},
      {[](json& f) { f["model"]["unk_token"] = 3; }, errc::malformed, {"model.unk_token"}},
      {[](json& f) { f["model"]["surprise"] = 3; }, errc::malformed, {"model", "surprise"}},
      {[](json& f) { f["model"]["vocab"] = json::array({1}); }, errc::malformed, {"model.vocab"}},
      {[](json& f) { f["model"]["vocab"]["!"] = "x"; }, errc::malformed, {"model.vocab.!"}},
      {[](json& f) { f["model"]["vocab"]["!"] = -1; }, errc::out_of_range, {"model.vocab.!"}},
      {[](json& f) { f["model"]["vocab"]["!"] = 1.5; }, errc::malformed, {"model.vocab.!"}},
      {[](json& f) { f["model"]["vocab"]["!"] = 99999999999ull; },
       errc::out_of_range,
       {"model.vocab.!"}},
      {[](json& f) { f["model"]["vocab"]["!"] = f["model"]["vocab"]["a"]; },
       errc::malformed,
       {"model.vocab.", "id of its own"}},
      {[](json& f) { f["model"]["vocab"]["new"] = f["model"]["vocab"].size() + 10; },
       errc::out_of_range,
       {"model.vocab.new"}},
      {[](json& f) { f["model"]["vocab"][""] = f["model"]["vocab"].size() + 3; },
       errc::out_of_range,
       {"model.vocab", "0 bytes"}},
      {[](json& f) { f["added_tokens"].erase(1); }, errc::out_of_range, {"added_tokens[1].id"}},
      {[](json& f) { f["added_tokens"][1]["id"] = 5; }, errc::malformed, {"added_tokens[1].id"}},
      {[](json& f) { f["added_tokens"][1]["content"] = "!"; },
       errc::mismatch,
       {"added_tokens[1].id", "model.vocab"}},
      {[](json& f) { f["added_tokens"][1]["content"] = ""; },
       errc::out_of_range,
       {"added_tokens[1].content"}},
      {[](json& f) { f["added_tokens"][1]["content"] = string(5000, 'x'); },
       errc::out_of_range,
       {"added_tokens[1].content"}},
      {[](json& f) { f["added_tokens"][1] = f["added_tokens"][0]; },
       errc::malformed,
       {"added_tokens[1].content", "again"}},
      {[](json& f) { f["added_tokens"][1]["lstrip"] = 1; },
       errc::malformed,
       {"added_tokens[1].lstrip"}},
      {[](json& f) { f["added_tokens"][1].erase("special"); },
       errc::malformed,
       {"added_tokens[1]", "special"}},
      {[](json& f) { f["added_tokens"] = "x"; }, errc::malformed, {"added_tokens"}},
      {[](json& f) { f["model"]["merges"] = "x"; }, errc::malformed, {"model.merges"}},
      {[](json& f) { f["model"]["merges"][3] = 7; }, errc::malformed, {"model.merges[3]"}},
      {[](json& f) { f["model"]["merges"][3] = "ab"; }, errc::malformed, {"model.merges[3]"}},
      {[](json& f) { f["model"]["merges"][3] = "a b c"; }, errc::malformed, {"model.merges[3]"}},
      {[](json& f) { f["model"]["merges"][3] = "a "; }, errc::malformed, {"model.merges[3]"}},
      {[](json& f) { f["model"]["merges"][3] = {"a"}; }, errc::mismatch, {"model.merges[3]"}},
      {[](json& f) {
         f["model"]["merges"][3] = {"a", 1};
       },
       errc::malformed,
       {"model.merges[3][1]"}},
      {[](json& f) { f["model"]["merges"][3] = "qq a"; },
       errc::mismatch,
       {"model.merges[3]", "'qq'"}},
      {[](json& f) { f["model"]["merges"][3] = "q q"; },
       errc::mismatch,
       {"model.merges[3]", "'qq'"}},
      {[&](json& f) { f["model"]["merges"][3] = first_merge; },
       errc::malformed,
       {"model.merges[3]", "merge 0"}},
      {[](json& f) {
         f["model"]["vocab"]["not a letter"] = f["model"]["vocab"]["q"];
         f["model"]["vocab"].erase("q");
       },
       errc::malformed,
       {"model.vocab", "0x71"}},
      {[](json& f) {
         f["normalizer"] = {{"type", "Lowercase"}};
       },
       errc::unsupported,
       {"normalizer.type", "Lowercase"}},
      {[](json& f) {
         f["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
       },
       errc::unsupported,
       {"normalizer.normalizers[0].type", "NFKC"}},
      {[](json& f) { f["normalizer"]["form"] = "x"; }, errc::malformed, {"normalizer", "form"}},
      {[](json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}};
       },
       errc::unsupported,
       {"pre_tokenizer.type", "Metaspace"}},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"].erase(1); },
       errc::unsupported,
       {"pre_tokenizer.pretokenizers[0].type", "Split"}},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"] = json::array(); },
       errc::unsupported,
       {"pre_tokenizer.pretokenizers"}},
      {[](json& f) {
         f["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Digits"}};
       },
       errc::unsupported,
       {"pre_tokenizer.pretokenizers[0].type", "Digits"}},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
       errc::unsupported,
       {"pretokenizers[0].behavior", "Removed"}},
      {[](json& f) {
         f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "x"}};
       },
       errc::malformed,
       {"pretokenizers[0].pattern", "String"}},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
       errc::malformed,
       {"pretokenizers[0].pattern.Regex", "'('"}},
      {[](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; },
       errc::unsupported,
       {"pretokenizers[0].pattern.Regex", "\\w"}},
      {[](json& f) {
         const json split = f["pre_tokenizer"]["pretokenizers"][0];
         for (int i = 0; i < 20; ++i)
           f["pre_tokenizer"]["pretokenizers"].insert(f["pre_tokenizer"]["pretokenizers"].begin(),
                                                      split);
       },
       errc::out_of_range,
       {"pre_tokenizer.pretokenizers[16]"}},
      {[](json& f) {
         f["decoder"] = {{"type", "Metaspace"}};
       },
       errc::unsupported,
       {"decoder.type", "Metaspace"}},
      {[](json& f) {
         f["post_processor"] = {{"type", "RobertaProcessing"}};
       },
       errc::unsupported,
       {"post_processor.type", "RobertaProcessing"}},
      {[](json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                                {"pair", json::array()},
                                {"special_tokens", json::object()}};
       },
       errc::malformed,
       {"post_processor.special_tokens", "<s>"}},
      {[](json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", json::array()},
                                {"pair", json::array()},
                                {"special_tokens", json::object()}};
       },
       errc::unsupported,
       {"post_processor.single", "no text"}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) BOOST_TEST_CONTEXT("case " << i) {
      json file = qwen_file();
      cases[i].damage(file);
      auto words = cases[i].words;
      for (const string word : {"tokenizer.json", "found", "expected", ";"}) words.push_back(word);
      check_error(load(file.dump()), cases[i].code, words);
    }
}

BOOST_AUTO_TEST_CASE(a_file_that_is_cut_short_or_nested_too_deep_is_refused) {
  const string good = qwen_file().dump();
  for (std::size_t n = 0; n < good.size(); n += 97)
    check_error(load(good.substr(0, n)), errc::malformed, {"tokenizer.json"});
  check_error(load(string(100000, '[')), errc::malformed, {"tokenizer.json", "nesting"});
  string deep = "1";
  for (int i = 0; i < 200; ++i) deep = R"({"type":"Sequence","normalizers":[)" + deep + "]}";
  check_error(load(R"({"version":"1.0","normalizer":)" + deep + "}"), errc::malformed,
              {"tokenizer.json", "nesting"});
  // A name twice, which a tree of JSON could not hold.
  check_error(load(R"({"version":"1.0","version":"1.0"})"), errc::malformed, {"'version'"});
}

BOOST_AUTO_TEST_CASE(a_file_with_any_byte_changed_is_refused_or_still_works) {
  const string good = qwen_file().dump();
  ordermoe::random_stream random(11);
  for (int round = 0; round < 200; ++round) {
    auto bytes = good;
    bytes[random.below(bytes.size())] ^= static_cast<char>(1 << random.below(7));
    const auto tokens = load(bytes);
    if (!tokens) continue;
    for (const auto id : (*tokens)->encode("I'll the caf\xc3\xa9 <|end|> \xf0\x9f\x91\xa9"))
      BOOST_REQUIRE(static_cast<std::size_t>(id) < (*tokens)->vocab_size());
  }
}

BOOST_AUTO_TEST_SUITE_END()
