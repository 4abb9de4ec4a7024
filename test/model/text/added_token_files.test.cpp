#include "model/text/added_token_files.hpp"

#include <nlohmann/json.hpp>

#include "model/text/chat_template.hpp"
#include "model/text/tokenizer.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using nlohmann::json;
using ordermoe::errc;
using ids = std::vector<std::int32_t>;

const fixture::fs::path mixtral = fixture::fs::path(ORDERMOE_TEST_DATA) / "tokenizer-mixtral";
const fixture::fs::path unigram = fixture::fs::path(ORDERMOE_TEST_DATA) / "tokenizer-unigram";

/// A folder with a SentencePiece model and more files.
struct folder_of {
  fixture::scratch_folder place;

  explicit folder_of(const fixture::fs::path& from = mixtral) {
    const char* name = from == unigram ? "spiece.model" : "tokenizer.model";
    fixture::fs::copy_file(from / name, place.path() / name);
  }
  void add(const std::string& name, const json& content) const {
    place.write(name, content.dump());
  }
  ordermoe::result<std::shared_ptr<const om::tokenizer>> load() const {
    return om::tokenizer::load(place.path());
  }
};

json token(const std::string& text, std::size_t id, bool special = true) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

/// The ids of a text, without what belongs before and after it.
ids inside(const om::tokenizer& tokens, std::string_view text) {
  return tokens.encode_inside(text);
}

ids joined(std::initializer_list<ids> parts) {
  ids made;
  for (const auto& part : parts) made.insert(made.end(), part.begin(), part.end());
  return made;
}

std::size_t n_pieces(const fixture::fs::path& from = mixtral) {
  return fixture::need(om::tokenizer::load(from))->vocab_size();
}

std::int32_t beyond(std::size_t i, const fixture::fs::path& from = mixtral) {
  return static_cast<std::int32_t>(n_pieces(from) + i);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(added_token_files)

BOOST_AUTO_TEST_CASE(
    markers_beside_a_sentencepiece_model_are_one_token_each_whatever_file_has_them) {
  const auto n = n_pieces();
  const auto plain = fixture::need(om::tokenizer::load(mixtral));
  folder_of whole, by_id, by_text;
  whole.add(
      "tokenizer.json",
      {{"added_tokens", {token("<s>", 1), token("<|im_end|>", n), token("<|im_start|>", n + 1)}}});
  // Files behind the first that has them are not asked.
  whole.add("added_tokens.json", {{"<|other|>", n}});
  by_id.add("tokenizer_config.json",
            {{"added_tokens_decoder",
              {{"1", {{"content", "<s>"}, {"special", true}}},
               {std::to_string(n), {{"content", "<|im_end|>"}, {"special", true}}},
               {std::to_string(n + 1), {{"content", "<|im_start|>"}, {"special", true}}}}}});
  by_text.add("added_tokens.json", {{"<|im_end|>", n}, {"<|im_start|>", n + 1}, {"<s>", 1}});
  by_text.add("tokenizer_config.json", {{"eos_token", "<|im_end|>"}});
  by_text.add("special_tokens_map.json",
              {{"additional_special_tokens", {{{"content", "<|im_start|>"}}}}});
  const std::string text = "<|im_start|>user\nHi <s>!<|im_end|>\n<|im_start|>assistant\n";
  const auto expected = joined({{beyond(1)},
                                inside(*plain, "user\nHi <s>!"),
                                {beyond(0)},
                                inside(*plain, "\n"),
                                {beyond(1)},
                                inside(*plain, "assistant\n")});
  for (const auto* folder : {&whole, &by_id, &by_text}) {
    const auto tokens = fixture::need(folder->load());
    BOOST_TEST(tokens->vocab_size() == n + 2);
    BOOST_TEST(tokens->special_id("<|im_end|>").value() == beyond(0));
    BOOST_TEST(tokens->special_id("<s>").value() == 1);
    BOOST_TEST(inside(*tokens, text) == expected, boost::test_tools::per_element());
    BOOST_TEST(tokens->encode(text) == joined({{1}, expected}), boost::test_tools::per_element());
    BOOST_TEST(tokens->decode(ids{beyond(1), beyond(0)}) == "");
    BOOST_TEST(tokens->decode(ids{beyond(2)}) == "\xef\xbf\xbd");
    // Without markers nothing is otherwise.
    BOOST_TEST(tokens->encode("A plain text.") == plain->encode("A plain text."),
               boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(added_tokens_are_hidden_where_special_and_shown_where_not) {
  folder_of folder;
  folder.add("tokenizer.json",
             {{"added_tokens",
               {token("<|im_end|>", n_pieces()), token("<tool>", n_pieces() + 3, false)}}});
  const auto tokens = fixture::need(folder.load());
  BOOST_TEST(tokens->vocab_size() == n_pieces() + 4);
  BOOST_TEST(tokens->decode(tokens->encode("Call <tool>a saw<|im_end|>")) == "Call <tool>a saw");
  BOOST_TEST(tokens->decode(tokens->encode("one<|im_end|>two")) == "one two");
  // Of an id between them no token is known.
  BOOST_TEST(tokens->decode(ids{beyond(1)}) == "\xef\xbf\xbd");
  // A stream of them is the same text, with the prompt before it or without.
  const auto prompt = tokens->encode("We call <tool>");
  const auto answer = inside(*tokens, "a saw<tool>is it<|im_end|> so <tool>");
  for (const auto& before : {ids(), ids{1}, prompt, tokens->encode("We")}) {
    om::streaming_decoder decoder(tokens, before);
    std::string text;
    for (const auto id : answer) text += decoder.push(id);
    text += decoder.finish();
    BOOST_TEST(tokens->decode(before) + text == tokens->decode(joined({before, answer})));
  }
}

BOOST_AUTO_TEST_CASE(sentinels_of_t5_are_one_token_each_counted_from_the_end) {
  const auto n = n_pieces(unigram);
  const auto plain = fixture::need(om::tokenizer::load(unigram));
  folder_of stated(unigram), named(unigram), whole(unigram), none(unigram);
  stated.add("tokenizer_config.json", {{"extra_ids", 3}});
  named.add("tokenizer_config.json",
            {{"additional_special_tokens", {"<extra_id_0>", "<extra_id_1>", "<extra_id_2>"}}});
  whole.add(
      "tokenizer.json",
      {{"added_tokens",
        {token("<extra_id_2>", n), token("<extra_id_1>", n + 1), token("<extra_id_0>", n + 2)}}});
  whole.add("tokenizer_config.json", {{"extra_ids", 3}});
  none.add("tokenizer_config.json", {{"extra_ids", 0}});
  const std::string text = "The <extra_id_0> sat on<extra_id_1>";
  const auto expected = joined({inside(*plain, "The"),
                                {beyond(2, unigram)},
                                inside(*plain, "sat on"),
                                {beyond(1, unigram)},
                                {1}});
  for (const auto* folder : {&stated, &named, &whole}) {
    const auto tokens = fixture::need(folder->load());
    BOOST_TEST(tokens->vocab_size() == n + 3);
    BOOST_TEST(tokens->encode(text) == expected, boost::test_tools::per_element());
    BOOST_TEST(tokens->decode(expected) == plain->decode(plain->encode("The sat on")));
  }
  BOOST_TEST(fixture::need(none.load())->encode(text) == plain->encode(text),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(added_tokens_that_contradict_the_pieces_or_each_other_are_refused) {
  const auto n = n_pieces();
  const auto refused = [](const char* name, const json& content, errc code,
                          std::vector<std::string> words) {
    folder_of folder;
    folder.add(name, content);
    words.emplace_back(name);
    check_error(folder.load(), code, words);
  };
  refused("added_tokens.json", {{"<a>", n}, {"<b>", n}}, errc::malformed, {"'<a>'", "'<b>'"});
  refused("added_tokens.json", {{"<a>", 5}}, errc::mismatch, {"'<a>'", "the id 5"});
  refused("added_tokens.json", {{"</s>", n}}, errc::mismatch, {"'</s>'", "expected 2"});
  refused("added_tokens.json", {{"<a>", n + (1 << 16)}}, errc::out_of_range, {"'<a>'"});
  refused("added_tokens.json", {{"<a>", std::uint64_t{1} << 63}}, errc::out_of_range, {"'<a>'"});
  refused("added_tokens.json", {{"<a>", -1}}, errc::out_of_range, {"<a>"});
  refused("added_tokens.json", {{"<a>", "x"}}, errc::malformed, {"<a>"});
  refused("added_tokens.json", {{"", n}}, errc::out_of_range, {"0 bytes"});
  refused("tokenizer.json", {{"added_tokens", {token("<a>", n), token("<a>", n + 1)}}},
          errc::malformed, {"'<a>' again"});
  refused("tokenizer.json", {{"added_tokens", 7}}, errc::malformed, {"added_tokens"});
  refused("tokenizer_config.json", {{"added_tokens_decoder", {{"12x", {{"content", "<a>"}}}}}},
          errc::malformed, {"12x"});
  refused("tokenizer_config.json", {{"extra_ids", 1 << 20}}, errc::out_of_range, {"extra_ids"});
  folder_of broken;
  broken.place.write("added_tokens.json", "{");
  check_error(broken.load(), errc::malformed, {"added_tokens.json"});
}

BOOST_AUTO_TEST_CASE(conversations_in_chatml_need_their_markers_as_tokens) {
  const auto chat = fixture::need(om::chat_template::recognise(
      "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
      "{{ '<|im_start|>assistant\n' }}",
      "<s>", "<|im_end|>", "tokenizer_config.json"));
  const std::vector<om::chat_message> messages = {{om::chat_role::user, "Hi."}};
  folder_of folder;
  const auto without = fixture::need(folder.load());
  check_error(chat.encode(*without, messages), errc::mismatch,
              {"'<|im_start|>'", "added_tokens.json", "leave --chat out"});
  folder.add("added_tokens.json", {{"<|im_start|>", n_pieces()}});
  check_error(chat.encode(*fixture::need(folder.load()), messages), errc::mismatch,
              {"'<|im_end|>'"});
  folder.add("added_tokens.json", {{"<|im_end|>", n_pieces()}, {"<|im_start|>", n_pieces() + 1}});
  const auto tokens = fixture::need(folder.load());
  BOOST_TEST(
      fixture::need(chat.encode(*tokens, messages)) == joined({{beyond(1)},
                                                               inside(*without, "user\nHi."),
                                                               {beyond(0)},
                                                               inside(*without, "\n"),
                                                               {beyond(1)},
                                                               inside(*without, "assistant\n")}),
      boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
