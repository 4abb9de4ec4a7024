#include <functional>
#include <set>

#include "model/architecture/model_config.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/text/sentencepiece_model.hpp"
#include "model/text/tokenizer_json.hpp"
#include "test/model/fixture.hpp"

/// Every file of test/data/regressions was accepted wrongly, crashed a reader, or stands for a
/// class of damage; here is what each is refused with. scripts/make_regressions.py writes them.
namespace {

namespace om = ordermoe::model;
using enum ordermoe::errc;
using ordermoe::errc;

struct damage {
  std::string name;
  errc code;
  std::vector<std::string> words;
};

const auto files = std::filesystem::path(ORDERMOE_TEST_DATA) / "regressions";

/// Reads every file of a folder and expects the one error that is listed for it.
template <class Read>
void check_folder(const std::string& folder, const std::string& ending,
                  const std::vector<damage>& expected, const Read& read) {
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(files / folder))
    left.insert(entry.path().filename().string());
  for (const auto& [name, code, words] : expected) BOOST_TEST_CONTEXT(folder << "/" << name) {
      BOOST_REQUIRE(left.erase(name + ending) == 1u);
      fixture::check_error(read(files / folder / (name + ending)), code, words);
    }
  for (const auto& name : left) BOOST_ERROR(folder << "/" << name << ": nothing expects it");
}

std::string bytes_of(const std::filesystem::path& path) {
  return fixture::need(ordermoe::read_file(path));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(regressions)

BOOST_AUTO_TEST_CASE(damaged_safetensors_are_refused_by_tensor_and_reason) {
  const std::vector<damage> expected = {
      {"empty-file", malformed, {"0 bytes long"}},
      {"length-cut-short", malformed, {"5 bytes long"}},
      {"header-longer-than-the-file", malformed, {"header", "only", "cut short"}},
      {"header-of-2-to-the-63", malformed, {"header of 9223372036854775808 bytes"}},
      {"header-cut-short", malformed, {"header", "only 32 follow"}},
      {"header-no-json", malformed, {"does not begin with '{'"}},
      {"header-no-utf8", malformed, {"header", "not valid JSON", "UTF-8"}},
      {"header-nested-too-deep", malformed, {"header", "nesting"}},
      {"data-cut-short", malformed, {"'b'", "[8, 16]", "beyond the 15 bytes"}},
      {"data-after-the-last-tensor", malformed, {"17 bytes of data", "take 16"}},
      {"shape-product-overflows", malformed, {"'a'", "product", "64 bits"}},
      {"shape-product-overflows-to-zero", malformed, {"'a'", "product", "64 bits"}},
      {"shape-negative", malformed, {"'a'", "shape", "natural number"}},
      {"shape-of-text", malformed, {"'a'", "shape", "natural number"}},
      {"shape-of-another-size", malformed, {"'a'", "span 16 bytes", "[3]", "takes 12"}},
      {"end-before-begin", malformed, {"'a'", "[16, 0]", "end before"}},
      {"end-beyond-the-data", malformed, {"'a'", "[0, 32]", "beyond the 16 bytes"}},
      {"offset-negative", malformed, {"'a'", "data_offsets", "natural numbers"}},
      {"offset-fractional", malformed, {"'a'", "data_offsets", "natural numbers"}},
      {"offsets-overlap", malformed, {"'b'", "[8, 16]", "overlap"}},
      {"offsets-leave-a-gap", malformed, {"'b'", "bytes 4 to 8 unused"}},
      {"tensor-twice", malformed, {"'a' comes twice"}},
      {"type-unknown", unsupported, {"'a'", "I32", "BF16"}},
      {"type-missing", malformed, {"'a'", "dtype"}},
      {"field-unknown", malformed, {"'a'", "'stride'"}},
      {"metadata-no-strings", malformed, {"__metadata__", "'format'"}},
  };
  check_folder("safetensors", ".safetensors", expected,
               [](const auto& path) { return om::checkpoint::open_file(path); });
}

BOOST_AUTO_TEST_CASE(damaged_indices_are_refused_by_tensor_and_shard) {
  const fixture::scratch_folder folder;
  const auto shard = [&](const char* name, const std::vector<std::string>& tensors) {
    std::vector<om::tensor_data> content;
    for (const auto& tensor : tensors)
      content.push_back({tensor, om::tensor_type::f32, {1}, std::string(4, '\0')});
    BOOST_REQUIRE(om::write_safetensors(folder.path() / name, content).has_value());
  };
  shard("one.safetensors", {"a", "b"});
  shard("two.safetensors", {"c"});
  const std::vector<damage> expected = {
      {"cut-short", malformed, {"not valid JSON"}},
      {"no-weight-map", malformed, {"weight_map"}},
      {"weight-map-no-object", malformed, {"weight_map"}},
      {"not-an-object", malformed, {"found array", "object"}},
      {"nested-too-deep", malformed, {"nesting"}},
      {"file-no-text", malformed, {"'a'", "no string"}},
      {"file-outside-the-folder", malformed, {"'a'", "'../one.safetensors'", "plain name"}},
      {"file-absolute", malformed, {"'a'", "'/etc/passwd'", "plain name"}},
      {"file-with-a-nul", malformed, {"'a'", "plain name"}},
      {"file-without-a-name", malformed, {"'a'", "''", "plain name"}},
      {"shard-missing", not_found, {"'a'", "three.safetensors", "missing shard"}},
      {"shards-swapped", mismatch, {"'a'", "one.safetensors", "two.safetensors"}},
      {"tensor-in-no-shard", mismatch, {"'d'", "in no shard", "two.safetensors"}},
      {"tensor-missing", mismatch, {"'b'", "not in the index", "one.safetensors"}},
      {"tensor-twice", malformed, {"'c' comes twice"}},
  };
  check_folder("shard_index", ".json", expected, [&](const auto& path) {
    folder.write("model.safetensors.index.json", bytes_of(path));
    return om::checkpoint::open_folder(folder.path());
  });
}

BOOST_AUTO_TEST_CASE(damaged_configurations_are_refused_by_field) {
  const std::vector<damage> expected = {
      {"cut-short", malformed, {"JSON"}},
      {"not-an-object", malformed, {"found array", "object"}},
      {"nested-too-deep", malformed, {"64 levels of nesting"}},
      {"nested-too-deep-in-rope-parameters", malformed, {"64 levels of nesting"}},
      {"field-twice", malformed, {"'hidden_size' twice"}},
      {"number-beyond-a-double", malformed, {"1e400"}},
      {"hidden-size-negative", out_of_range, {"hidden_size", "-40", "allowed are 1 to"}},
      {"hidden-size-zero", out_of_range, {"hidden_size", "found 0", "allowed are 1 to"}},
      {"hidden-size-huge", out_of_range, {"hidden_size", "1099511627776", "allowed"}},
      {"hidden-size-fractional", malformed, {"hidden_size", "40.5", "integer"}},
      {"hidden-size-of-text", malformed, {"hidden_size", "\"40\"", "integer"}},
      {"hidden-size-missing", malformed, {"hidden_size", "absent", "integer"}},
      {"layers-zero", out_of_range, {"num_hidden_layers", "found 0", "allowed"}},
      {"layers-huge", out_of_range, {"num_hidden_layers", "2147483648", "allowed"}},
      {"heads-zero", out_of_range, {"num_attention_heads", "found 0", "allowed"}},
      {"heads-no-multiple-of-kv-heads", out_of_range, {"num_key_value_heads", "3", "divide", "4"}},
      {"hidden-size-no-multiple-of-heads", out_of_range, {"hidden_size", "42", "head_dim"}},
      {"head-size-odd", out_of_range, {"head_dim", "9 is odd"}},
      {"experts-zero", out_of_range, {"num_local_experts", "found 0", "allowed"}},
      {"experts-negative", out_of_range, {"num_local_experts", "found -8", "allowed"}},
      {"more-experts-chosen-than-there-are", out_of_range, {"num_experts_per_tok", "7", "6"}},
      {"experts-chosen-zero", out_of_range, {"num_experts_per_tok", "found 0", "allowed"}},
      {"vocabulary-huge", out_of_range, {"vocab_size", "9223372036854775808", "allowed"}},
      {"context-zero", out_of_range, {"max_position_embeddings", "found 0", "allowed"}},
      {"end-of-text-beyond-the-vocabulary", out_of_range, {"eos_token_id", "320"}},
      {"end-of-text-negative", out_of_range, {"eos_token_id", "-1"}},
      {"norm-epsilon-negative", out_of_range, {"rms_norm_eps", "more than 0"}},
      {"rope-base-zero", out_of_range, {"rope_theta", "more than 0"}},
      {"rope-scaled", unsupported, {"rope_scaling", "yarn", "null"}},
      {"architecture-unknown", unsupported, {"LlamaForCausalLM", "MixtralForCausalLM"}},
      {"architecture-of-another-model-type", unsupported, {"model_type", "olmoe", "mixtral"}},
      {"quantised", unsupported, {"quantization_config", "bits"}},
      {"activation-unknown", unsupported, {"hidden_act", "gelu", "silu"}},
      {"shared-expert-negative", out_of_range, {"shared_expert_intermediate_size", "-1"}},
      {"dense-layer-beyond-the-model", out_of_range, {"mlp_only_layers", "99"}},
      {"capacity-zero", out_of_range, {"expert_capacity", "found 0", "allowed"}},
      {"distance-buckets-odd", unsupported, {"relative_attention_num_buckets", "31"}},
      {"end-of-text-list-empty", malformed, {"eos_token_id", "empty list"}},
      {"end-of-text-list-beyond-the-vocabulary", out_of_range, {"eos_token_id", "320"}},
  };
  check_folder("config_json", ".json", expected, [](const auto& path) {
    return om::parse_model_config(bytes_of(path), "config.json");
  });
}

BOOST_AUTO_TEST_CASE(damaged_tokenizer_json_files_are_refused_by_path) {
  const std::vector<damage> expected = {
      {"cut-short", malformed, {"tokenizer.json:1:"}},
      {"not-an-object", malformed, {"an array", "an object"}},
      {"nested-too-deep", malformed, {"64 levels of nesting"}},
      {"normalizers-nested-too-deep", malformed, {"64 levels of nesting"}},
      {"member-twice", malformed, {"'version' twice"}},
      {"id-beyond-the-vocabulary", out_of_range, {"model.vocab.he", "100000"}},
      {"id-beyond-64-bits", malformed, {"model.vocab.he"}},
      {"id-negative", out_of_range, {"model.vocab.he", "-1"}},
      {"id-fractional", malformed, {"model.vocab.he", "256.5"}},
      {"id-twice", malformed, {"model.vocab.", "the id 257", "an id of its own"}},
      {"token-empty", out_of_range, {"model.vocab", "0 bytes"}},
      {"byte-without-a-token", malformed, {"model.vocab", "'z'", "0x7a"}},
      {"merge-of-an-unknown-token", mismatch, {"model.merges[4]", "'qq'"}},
      {"merge-to-an-unknown-token", mismatch, {"model.merges[4]", "'qz'"}},
      {"merge-without-a-space", malformed, {"model.merges[4]", "'he'", "one space"}},
      {"merge-of-three", mismatch, {"model.merges[4]", "3"}},
      {"merge-twice", malformed, {"model.merges[4]", "'h' and 'e'", "merge 0"}},
      {"added-token-beyond-the-vocabulary", out_of_range, {"added_tokens[0].id", "4000"}},
      {"added-token-negative", out_of_range, {"added_tokens[0].id", "-1"}},
      {"added-token-at-anothers-id", malformed, {"added_tokens[0].id", "5", "an id of its own"}},
      {"added-token-empty", out_of_range, {"added_tokens[0].content", "0 bytes"}},
      {"pre-tokenizer-unknown", unsupported, {"pre_tokenizer.type", "'Whitespace'"}},
      {"model-unknown", unsupported, {"model.type", "'WordPiece'", "BPE"}},
      {"expression-not-closed", malformed, {"pretokenizers[0].pattern.Regex", "'('"}},
      {"expression-of-unknown-syntax", unsupported, {"pretokenizers[0].pattern.Regex", "\\w"}},
      {"expression-that-matches-nothing", unsupported, {"pattern.Regex", "empty text"}},
      {"expression-nested-too-deep", unsupported, {"pattern.Regex", "64 groups"}},
  };
  check_folder("tokenizer_json", ".json", expected, [](const auto& path) {
    return om::parse_tokenizer_json(bytes_of(path), "tokenizer.json");
  });
}

BOOST_AUTO_TEST_CASE(damaged_sentencepiece_models_are_refused_by_piece) {
  const std::vector<damage> expected = {
      {"empty-file", malformed, {"no pieces"}},
      {"length-beyond-the-end", malformed, {"the file is cut short"}},
      {"length-of-2-to-the-63", malformed, {"the file is cut short"}},
      {"varint-cut-short", malformed, {"the file is cut short"}},
      {"varint-of-eleven-bytes", malformed, {"the file is cut short or no protobuf"}},
      {"float-cut-short", malformed, {"the file is cut short"}},
      {"field-number-zero", malformed, {"no protobuf message"}},
      {"group", malformed, {"no protobuf message"}},
      {"piece-cut-short", malformed, {"a piece is cut short"}},
      {"piece-type-zero", malformed, {"piece 7", "unknown type 0"}},
      {"piece-type-seven", malformed, {"piece 7", "unknown type 7"}},
      {"piece-empty", malformed, {"piece 7 has no text"}},
      {"piece-twice", malformed, {"piece 7 comes a second time"}},
      {"piece-no-utf8", malformed, {"piece 7 is no UTF-8"}},
      {"score-not-a-number", malformed, {"piece 7 has no finite score"}},
      {"byte-with-a-sign", malformed, {"piece 262", "<0xAB>"}},
      {"byte-of-one-digit", malformed, {"piece 262", "<0xAB>"}},
      {"byte-missing", malformed, {"falls back to bytes", "<0xFF>"}},
      {"no-pieces", malformed, {"no pieces"}},
      {"neither-beginning-nor-end", malformed, {"'<s>'"}},
      {"no-unknown-piece", malformed, {"no unknown piece"}},
      {"second-unknown-piece", malformed, {"piece 7 is a second unknown piece"}},
      {"unknown-surface-no-utf8", malformed, {"unknown piece decodes to is no UTF-8"}},
      {"model-of-words", unsupported, {"model type 3"}},
      {"character-map-cut-short", malformed, {"character map"}},
      {"character-map-beyond-the-end", malformed, {"character map"}},
      {"character-map-without-units", malformed, {"character map"}},
      {"character-map-of-half-units", malformed, {"character map"}},
  };
  check_folder("tokenizer_model", ".model", expected,
               [](const auto& path) { return om::sentencepiece_model::parse(bytes_of(path)); });
}

BOOST_AUTO_TEST_SUITE_END()
