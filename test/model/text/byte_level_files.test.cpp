#include "test/model/text/byte_level_files.hpp"

#include <functional>
#include <nlohmann/json.hpp>

#include "config/random.hpp"
#include "test/model/fixture.hpp"

/// What of a tokenizer.json is refused.
using namespace ordermoe::test::byte_level;

BOOST_AUTO_TEST_SUITE(byte_level_files)

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
