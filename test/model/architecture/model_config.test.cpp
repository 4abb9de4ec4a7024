#include "model/architecture/model_config.hpp"

#include <nlohmann/json.hpp>

#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using nlohmann::json;
namespace fs = std::filesystem;
using ordermoe::errc;

json good() {
  return json::parse(fixture::need(ordermoe::read_file(fixture::tiny / "config.json")));
}

ordermoe::result<om::model_config> read(const json& content) {
  const fixture::scratch_folder folder;
  folder.write("config.json", content.dump());
  return om::read_model_config(folder.path());
}

ordermoe::result<om::model_config> read_with(const std::string& field, const json& value) {
  json content = good();
  content[field] = value;
  return read(content);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(model_config)

BOOST_AUTO_TEST_CASE(the_fields_of_a_good_file_are_read) {
  const auto config = fixture::need(read(good()));
  BOOST_TEST(config.hidden_size == 40u);
  BOOST_TEST(config.intermediate_size == 36u);
  BOOST_TEST(config.n_layers == 3u);
  BOOST_TEST(config.n_heads == 4u);
  BOOST_TEST(config.n_kv_heads == 2u);
  BOOST_TEST(config.head_dim == 10u);
  BOOST_TEST(config.n_experts == 6u);
  BOOST_TEST(config.top_k == 2u);
  BOOST_TEST(config.vocab_size == 320u);
  BOOST_TEST(config.max_context == 64u);
  BOOST_TEST(config.rope_theta == 10000.0);
  BOOST_TEST(config.bos_id == 1);
  BOOST_TEST(config.eos_id == 2);
  BOOST_TEST(!config.tied_embeddings);
}

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  auto config = fixture::need(read(good()));
  config.rope_theta = 1e6;
  config.tied_embeddings = true;
  config.eos_id = 5;
  const auto back = fixture::need(read(json::parse(om::model_config_json(config))));
  BOOST_TEST(om::model_config_json(back) == om::model_config_json(config));
  BOOST_TEST(back.rope_theta == 1e6);
  BOOST_TEST(back.tied_embeddings);
}

BOOST_AUTO_TEST_CASE(a_missing_or_broken_file_is_refused) {
  const fixture::scratch_folder folder;
  check_error(om::read_model_config(folder.path()), errc::not_found, {"config.json"});
  for (const char* text : {"", "{", "[]", "null", "{\"a\":}"}) {
    folder.write("config.json", text);
    check_error(om::read_model_config(folder.path()), errc::malformed, {"config.json"});
  }
}

BOOST_AUTO_TEST_CASE(another_architecture_is_refused) {
  check_error(read_with("architectures", json::array({"LlamaForCausalLM"})), errc::unsupported,
              {"config.json", "architectures", "LlamaForCausalLM", "MixtralForCausalLM"});
  check_error(read_with("architectures", nullptr), errc::unsupported, {"architectures"});
}

BOOST_AUTO_TEST_CASE(fields_that_change_the_computation_are_refused_by_name) {
  const std::pair<const char*, json> fields[] = {
      {"hidden_act", "gelu"},
      {"sliding_window", 63},
      {"sliding_window", "no"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 10000.0}}},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"partial_rotary_factor", 0.5},
      {"quantization_config", {{"bits", 4}}},
      {"final_logit_softcapping", 30.0},
      {"num_shared_experts", 1},
      {"norm_topk_prob", false},
      {"model_type", "qwen2_moe"},
  };
  for (const auto& [field, value] : fields)
    check_error(read_with(field, value), errc::unsupported, {"config.json", field});
}

BOOST_AUTO_TEST_CASE(a_text_may_end_with_any_of_several_ids) {
  const auto config = fixture::need(read_with("eos_token_id", {7, 2, 7, 9}));
  BOOST_TEST(config.eos_id == 7);
  for (int id = 0; id < 320; ++id)
    BOOST_TEST(config.ends_text(id) == (id == 2 || id == 7 || id == 9));
  const auto back = fixture::need(read(json::parse(om::model_config_json(config))));
  BOOST_TEST(back.other_eos_ids == config.other_eos_ids, boost::test_tools::per_element());
  check_error(read_with("eos_token_id", {2, 320}), errc::out_of_range, {"eos_token_id", "320"});
  check_error(read_with("eos_token_id", {2, -1}), errc::out_of_range, {"eos_token_id", "-1"});
  check_error(read_with("eos_token_id", {"2"}), errc::malformed, {"eos_token_id", "\"2\""});
  check_error(read_with("eos_token_id", json::array()), errc::malformed, {"eos_token_id", "empty"});
  check_error(read_with("bos_token_id", {1, 2}), errc::unsupported, {"bos_token_id"});
}

BOOST_AUTO_TEST_CASE(a_generation_config_adds_ids_that_end_a_text) {
  const fixture::scratch_folder folder;
  const auto with = [&](const json& generation, const json& config) {
    folder.write("config.json", config.dump());
    folder.write("generation_config.json", generation.dump());
    return om::read_model_config(folder.path());
  };
  const std::vector<std::int32_t> expected = {5, 9};
  for (const json& ids : {json({5, 2, 9}), json({2, 5, 9}), json({5, 9})})
    BOOST_TEST(fixture::need(with({{"eos_token_id", ids}}, good())).other_eos_ids == expected,
               boost::test_tools::per_element());
  BOOST_TEST(fixture::need(with({{"eos_token_id", 2}}, good())).other_eos_ids.empty());
  BOOST_TEST(fixture::need(with({{"top_p", 0.9}}, good())).other_eos_ids.empty());
  // Qwen's files of base models may state none in config.json.
  auto none = json::parse(fixture::need(
      ordermoe::read_file(fs::path(ORDERMOE_TEST_DATA) / "golden/qwen2-moe/config.json")));
  none.erase("eos_token_id");
  BOOST_TEST(fixture::need(with({{"eos_token_id", {4, 6}}}, none)).eos_id == 4);
  check_error(with({{"eos_token_id", 320}}, good()), errc::out_of_range,
              {"generation_config.json", "eos_token_id", "320"});
  check_error(with(json::array(), good()), errc::malformed, {"generation_config.json", "array"});
}

BOOST_AUTO_TEST_CASE(fields_that_change_nothing_are_accepted) {
  const std::pair<const char*, json> fields[] = {
      {"sliding_window", 64},
      {"sliding_window", 4096},
      {"attention_dropout", 0.1},
      {"use_cache", true},
      {"router_aux_loss_coef", 0.02},
      {"rope_scaling", nullptr},
      {"attention_bias", false},
      {"partial_rotary_factor", 1.0},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  for (const auto& [field, value] : fields) {
    const auto config = read_with(field, value);
    BOOST_TEST_CONTEXT(field) BOOST_TEST(config.has_value());
  }
}

BOOST_AUTO_TEST_CASE(rope_parameters_alone_state_the_base) {
  json content = good();
  content.erase("rope_theta");
  content["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  BOOST_TEST(fixture::need(read(content)).rope_theta == 5e5);
}

BOOST_AUTO_TEST_CASE(an_absent_head_size_follows_from_hidden_size) {
  json content = good();
  content.erase("head_dim");
  BOOST_TEST(fixture::need(read(content)).head_dim == 10u);
  content["hidden_size"] = 42;
  check_error(read(content), errc::out_of_range, {"hidden_size", "head_dim"});
}

BOOST_AUTO_TEST_CASE(values_out_of_range_are_refused_with_what_is_allowed) {
  const std::pair<const char*, json> fields[] = {{"hidden_size", 0},
                                                 {"hidden_size", -1},
                                                 {"hidden_size", 1ull << 40},
                                                 {"num_hidden_layers", 0},
                                                 {"num_attention_heads", 0},
                                                 {"num_key_value_heads", 3},
                                                 {"head_dim", 9},
                                                 {"num_local_experts", 0},
                                                 {"num_experts_per_tok", 7},
                                                 {"num_experts_per_tok", 0},
                                                 {"vocab_size", 0},
                                                 {"max_position_embeddings", 0},
                                                 {"rms_norm_eps", 0.0},
                                                 {"rms_norm_eps", -1e-5},
                                                 {"rope_theta", 0.0},
                                                 {"bos_token_id", 320},
                                                 {"eos_token_id", -1},
                                                 {"max_position_embeddings", ~0ull}};
  for (const auto& [field, value] : fields)
    check_error(read_with(field, value), errc::out_of_range, {"config.json", field});
}

BOOST_AUTO_TEST_CASE(more_experts_in_all_layers_than_models_have_are_refused) {
  json content = good();
  content["num_local_experts"] = 4096;
  content["num_hidden_layers"] = 64;
  BOOST_TEST(fixture::need(read(content)).n_layers == 64u);
  content["num_hidden_layers"] = 65;
  check_error(read(content), errc::out_of_range,
              {"config.json", "num_local_experts", "num_hidden_layers", "266240", "262144"});
}

BOOST_AUTO_TEST_CASE(values_of_another_type_are_refused) {
  const std::pair<const char*, json> fields[] = {{"hidden_size", "40"},
                                                 {"hidden_size", 40.5},
                                                 {"num_hidden_layers", nullptr},
                                                 {"rms_norm_eps", "small"},
                                                 {"tie_word_embeddings", 1}};
  for (const auto& [field, value] : fields)
    check_error(read_with(field, value), errc::malformed, {"config.json", field});
}

BOOST_AUTO_TEST_SUITE_END()
