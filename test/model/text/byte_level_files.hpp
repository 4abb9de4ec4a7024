#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "model/text/byte_level_bpe.hpp"
#include "test/model/fixture.hpp"

/// tokenizer.json of a small vocabulary, in the shapes of Qwen's and GPT-NeoX's.
namespace ordermoe::test::byte_level {

namespace om = ordermoe::model;
using fixture::check_error;
using nlohmann::json;
using ordermoe::errc;
using std::string;

const string qwen_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The 256 characters of the byte alphabet as one JSON string, in the order of the bytes.
inline std::vector<string> alphabet() {
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

inline string written(const string& bytes) {
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

inline json added(const string& content, int id, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

/// The vocabulary: the bytes, backwards so that no id is its byte, then what merges make.
inline json vocabulary() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[written(string(1, static_cast<char>(byte)))] = 255 - byte;
  for (const auto& [left, right] : merge_list) {
    const string joined = written(left + right);
    if (!vocab.contains(joined)) vocab[joined] = vocab.size();
  }
  return vocab;
}

inline json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", use_regex}};
}

/// The shape of Qwen's files, and a few added tokens.
inline json qwen_file() {
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
inline json neox_file() {
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

inline json without_normalizer(json file) {
  file["normalizer"] = nullptr;
  return file;
}

inline ordermoe::result<std::shared_ptr<const om::tokenizer>> load(const string& bytes) {
  const fixture::scratch_folder folder;
  folder.write("tokenizer.json", bytes);
  return om::tokenizer::load(folder.path());
}

inline std::shared_ptr<const om::tokenizer> tokenizer_of(const json& file) {
  return fixture::need(load(file.dump()));
}

}  // namespace ordermoe::test::byte_level
