#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/checkpoint/random_model.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/forward.hpp"
#include "model/reference.hpp"
#include "test/model/fixture.hpp"
#include "test/support/devices.hpp"

// What sets the families apart: their config.json, their tensors, their gates and shared experts.

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::numbers;
using fixture::same_bits;
using nlohmann::json;
using ordermoe::errc;
using ordermoe::expert_id;
using ordermoe::layer_id;

constexpr om::family all_families[] = {om::family::mixtral, om::family::qwen2_moe,
                                       om::family::qwen3_moe, om::family::olmoe};

/// A small random checkpoint of the family, made once.
const std::filesystem::path& folder_of(om::family kind) {
  static const fixture::scratch_folder place;
  static std::map<om::family, std::filesystem::path> made;
  auto& folder = made[kind];
  if (folder.empty()) {
    folder = place.path() / om::to_string(kind);
    fixture::need(om::write_random_model(folder, fixture::small_model(kind, 7)));
  }
  return folder;
}

std::shared_ptr<const om::transformer> model_of(om::family kind,
                                                const om::load_options& options = {}) {
  return fixture::need(om::transformer::load(folder_of(kind), options));
}

json content_of(om::family kind) {
  return json::parse(fixture::need(ordermoe::read_file(folder_of(kind) / "config.json")));
}

ordermoe::result<om::model_config> read(const json& content) {
  const fixture::scratch_folder folder;
  folder.write("config.json", content.dump());
  return om::read_model_config(folder.path());
}

ordermoe::result<om::model_config> read_with(om::family kind, const std::string& field,
                                             const json& value) {
  json content = content_of(kind);
  content[field] = value;
  return read(content);
}

/// The checkpoint without one tensor.
ordermoe::result<std::shared_ptr<const om::transformer>> load_without(om::family kind,
                                                                      const std::string& name) {
  const fixture::scratch_folder folder;
  std::filesystem::copy_file(folder_of(kind) / "config.json", folder.path() / "config.json");
  const auto source = fixture::need(om::checkpoint::open_folder(folder_of(kind)));
  std::vector<om::tensor_data> tensors;
  for (const auto& [each, view] : source->tensors())
    if (each != name)
      tensors.push_back({each, view.type, view.shape, om::to_bytes(view.to_fp32(), view.type)});
  BOOST_REQUIRE_EQUAL(tensors.size() + 1, source->tensors().size());
  const auto written = om::write_safetensors(folder.path() / "model.safetensors", tensors);
  if (!written) BOOST_FAIL(written.error().message);
  return om::transformer::load(folder.path());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(families)

BOOST_AUTO_TEST_CASE(every_family_states_itself_in_its_file) {
  for (const auto kind : all_families) {
    const auto config = fixture::need(read(content_of(kind)));
    const auto expected = om::small_shape(kind);
    BOOST_TEST((config.kind == kind));
    BOOST_TEST(config.intermediate_size == expected.intermediate_size);
    BOOST_TEST(config.n_experts == expected.n_experts);
    BOOST_TEST(config.head_dim == expected.head_dim);
    BOOST_TEST(config.rms_norm_eps == expected.rms_norm_eps);
    BOOST_TEST(config.rope_theta == expected.rope_theta);
    BOOST_TEST((config.gates == expected.gates));
    BOOST_TEST((config.qk_norm == expected.qk_norm));
    BOOST_TEST(config.query_key_value_bias == expected.query_key_value_bias);
    BOOST_TEST(config.shared_intermediate_size == expected.shared_intermediate_size);
    BOOST_TEST(om::model_config_json(config) == om::model_config_json(expected));
  }
}

BOOST_AUTO_TEST_CASE(the_published_qwen_file_is_read) {
  // The fields of Qwen1.5-MoE-A2.7B's config.json that concern the computation.
  const auto config = fixture::need(read(json::parse(R"({
    "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
    "max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
    "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})")));
  auto expected = om::published_shape(om::family::qwen2_moe);
  expected.bos_id = expected.eos_id = 151643;
  BOOST_TEST(om::model_config_json(config) == om::model_config_json(expected));
}

BOOST_AUTO_TEST_CASE(the_published_olmoe_file_is_read_though_it_names_no_beginning_of_text) {
  const auto config = fixture::need(read(json::parse(R"({
    "architectures": ["OlmoeForCausalLM"], "attention_bias": false, "clip_qkv": null,
    "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 1024,
    "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
    "num_hidden_layers": 16, "num_key_value_heads": 16, "pad_token_id": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "vocab_size": 50304})")));
  BOOST_TEST(config.bos_id == -1);
  BOOST_TEST(config.eos_id == 50279);
  BOOST_TEST(config.head_dim == 128u);
  BOOST_TEST((config.gates == om::gate_rule::probabilities));
}

BOOST_AUTO_TEST_CASE(fields_that_change_the_computation_are_refused_by_name) {
  using enum om::family;
  const std::tuple<om::family, const char*, json> fields[] = {
      {qwen2_moe, "decoder_sparse_step", 2},
      {qwen2_moe, "mlp_only_layers", {0, 2}},
      {qwen2_moe, "use_sliding_window", true},
      {qwen2_moe, "rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}},
      {qwen2_moe, "hidden_act", "gelu"},
      {qwen2_moe, "attention_bias", true},
      {qwen2_moe, "use_qk_norm", true},
      {qwen2_moe, "model_type", "qwen3_moe"},
      {qwen2_moe, "quantization_config", {{"bits", 4}}},
      {qwen2_moe, "layer_types", {"full_attention", "sliding_attention", "full_attention"}},
      {qwen3_moe, "attention_bias", true},
      {qwen3_moe, "qkv_bias", true},
      {qwen3_moe, "mlp_only_layers", {1, 2}},
      {qwen3_moe, "decoder_sparse_step", 2},
      {qwen3_moe, "shared_expert_intermediate_size", 64},
      {qwen3_moe, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {qwen3_moe, "use_qk_norm", false},
      {qwen3_moe, "dual_chunk_attention_config", {{"chunk_size", 262144}, {"local_size", 8192}}},
      {olmoe, "clip_qkv", 8.0},
      {olmoe, "attention_bias", true},
      {olmoe, "head_dim", 32},
      {olmoe, "sliding_window", 128},
      {olmoe, "rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}}},
      {mixtral, "clip_qkv", 8.0},
      {mixtral, "qkv_bias", true},
      {mixtral, "shared_expert_intermediate_size", 64}};
  for (const auto& [kind, field, value] : fields)
    BOOST_TEST_CONTEXT(om::to_string(kind) << " " << field) {
      check_error(read_with(kind, field, value), errc::unsupported,
                  {"config.json", field, "found"});
    }
}

BOOST_AUTO_TEST_CASE(an_unknown_architecture_is_refused_with_those_that_are_known) {
  for (const char* name : {"DeepseekV3ForCausalLM", "Qwen2ForCausalLM", "qwen2_moe"})
    check_error(read_with(om::family::qwen2_moe, "architectures", json::array({name})),
                errc::unsupported,
                {"architectures", name, "MixtralForCausalLM", "Qwen2MoeForCausalLM",
                 "Qwen3MoeForCausalLM", "OlmoeForCausalLM"});
}

BOOST_AUTO_TEST_CASE(fields_that_a_family_cannot_do_without_are_asked_for) {
  using enum om::family;
  const std::pair<om::family, const char*> fields[] = {
      {qwen2_moe, "shared_expert_intermediate_size"},
      {qwen2_moe, "moe_intermediate_size"},
      {qwen2_moe, "num_experts"},
      {qwen2_moe, "num_key_value_heads"},
      {qwen3_moe, "head_dim"},
      {qwen3_moe, "num_key_value_heads"},
      {olmoe, "intermediate_size"},
      {olmoe, "num_experts"}};
  for (const auto& [kind, field] : fields) {
    json content = content_of(kind);
    content.erase(field);
    check_error(read(content), errc::malformed, {"config.json", field, "is absent"});
  }
}

BOOST_AUTO_TEST_CASE(qwen3_may_name_its_number_of_experts_as_mixtral_does) {
  const auto golden = std::filesystem::path(ORDERMOE_TEST_DATA) / "golden/qwen3-moe";
  auto content = json::parse(fixture::need(ordermoe::read_file(golden / "config.json")));
  const auto before = om::model_config_json(fixture::need(read(content)));
  const std::size_t n = content.at("num_experts");
  content["num_local_experts"] = n;
  BOOST_TEST(om::model_config_json(fixture::need(read(content))) == before);
  content.erase("num_experts");
  BOOST_TEST(om::model_config_json(fixture::need(read(content))) == before);
  content["num_experts"] = n + 1;
  check_error(read(content), errc::mismatch,
              {"config.json", "num_local_experts", std::to_string(n), std::to_string(n + 1)});
  // Of Qwen2's files the name is not known.
  auto other = content_of(om::family::qwen2_moe);
  other["num_local_experts"] = other.at("num_experts");
  other.erase("num_experts");
  check_error(read(other), errc::malformed, {"num_experts", "is absent"});
}

BOOST_AUTO_TEST_CASE(fields_that_change_nothing_are_accepted) {
  using enum om::family;
  const std::tuple<om::family, const char*, json> fields[] = {
      {qwen2_moe, "sliding_window", 64},
      {qwen2_moe, "max_window_layers", 1},
      {qwen2_moe, "intermediate_size", 5632},
      {qwen2_moe, "layer_types", {"full_attention", "full_attention", "full_attention"}},
      {qwen3_moe, "mlp_only_layers", json::array()},
      {qwen3_moe, "eos_token_id", nullptr},
      {olmoe, "clip_qkv", nullptr},
      {olmoe, "pad_token_id", 1}};
  for (const auto& [kind, field, value] : fields)
    BOOST_TEST_CONTEXT(field) BOOST_TEST(read_with(kind, field, value).has_value());
}

BOOST_AUTO_TEST_CASE(renormalisation_is_what_norm_topk_prob_says_and_off_where_it_says_nothing) {
  for (const auto kind : {om::family::qwen2_moe, om::family::qwen3_moe, om::family::olmoe}) {
    const auto on = fixture::need(read_with(kind, "norm_topk_prob", true));
    const auto off = fixture::need(read_with(kind, "norm_topk_prob", false));
    json content = content_of(kind);
    content.erase("norm_topk_prob");
    BOOST_TEST((on.gates == om::gate_rule::renormalised));
    BOOST_TEST((off.gates == om::gate_rule::probabilities));
    BOOST_TEST((fixture::need(read(content)).gates == om::gate_rule::probabilities));
  }
}

BOOST_AUTO_TEST_CASE(an_absent_tensor_of_a_family_is_named) {
  using enum om::family;
  const std::pair<om::family, const char*> tensors[] = {
      {qwen2_moe, "model.layers.1.self_attn.k_proj.bias"},
      {qwen2_moe, "model.layers.2.mlp.shared_expert.down_proj.weight"},
      {qwen2_moe, "model.layers.0.mlp.shared_expert_gate.weight"},
      {qwen2_moe, "model.layers.0.mlp.experts.5.up_proj.weight"},
      {qwen3_moe, "model.layers.1.self_attn.q_norm.weight"},
      {olmoe, "model.layers.2.self_attn.k_norm.weight"},
      {olmoe, "model.layers.2.mlp.gate.weight"}};
  for (const auto& [kind, name] : tensors)
    check_error(load_without(kind, name), errc::mismatch, {name, "absent"});
}

BOOST_AUTO_TEST_CASE(a_bias_that_config_denies_is_refused) {
  const fixture::scratch_folder folder;
  std::filesystem::copy_file(folder_of(om::family::qwen2_moe) / "model.safetensors",
                             folder.path() / "model.safetensors");
  json content = content_of(om::family::qwen2_moe);
  content["qkv_bias"] = false;
  folder.write("config.json", content.dump());
  check_error(om::transformer::load(folder.path()), errc::mismatch, {"_proj.bias", "no place"});
}

BOOST_AUTO_TEST_CASE(gates_that_are_not_renormalised_are_the_probabilities_among_all_experts) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto logits = numbers(12, seed, 4.0);
    double total = 0;
    for (const float x : logits) total += std::exp(static_cast<double>(x));
    const auto plain = om::choose_experts(logits, 4, om::gate_rule::probabilities);
    const auto scaled = om::choose_experts(logits, 4, om::gate_rule::renormalised);
    float sum = 0;
    for (const auto& slot : plain) sum += slot.gate;
    BOOST_TEST(sum < 1.0f);
    for (std::size_t j = 0; j < 4; ++j) {
      BOOST_TEST((plain[j].expert == scaled[j].expert));
      BOOST_TEST(std::abs(plain[j].gate -
                          std::exp(static_cast<double>(logits[plain[j].expert.index()])) / total) <
                 1e-6);
      BOOST_TEST(std::abs(plain[j].gate / sum - scaled[j].gate) < 1e-6f);
    }
    // What replaces one slot leaves the gates of the others as they are.
    std::vector<expert_id> executed;
    for (const auto& slot : plain) executed.push_back(slot.expert);
    const auto all = om::choose_experts(logits, 12, om::gate_rule::probabilities);
    executed[2] = all[9].expert;
    const auto gates = om::gates_of(logits, executed, om::gate_rule::probabilities);
    for (std::size_t j = 0; j < 4; ++j)
      BOOST_TEST(same_bits(&gates[j], j == 2 ? &all[9].gate : &plain[j].gate, 1));
  }
}

BOOST_AUTO_TEST_CASE(the_shared_expert_is_added_once_weighed_by_its_gate) {
  const auto kind = om::family::qwen2_moe;
  const auto model = model_of(kind);
  const auto& config = model->config();
  const std::size_t width = config.hidden_size, inner = config.shared_intermediate_size;
  const auto source = fixture::need(om::checkpoint::open_folder(folder_of(kind)));
  const auto tensor = [&](const std::string& name) {
    return source->find("model.layers.1.mlp." + name)->to_fp32();
  };
  const auto gate = tensor("shared_expert.gate_proj.weight"),
             up = tensor("shared_expert.up_proj.weight"),
             down = tensor("shared_expert.down_proj.weight"),
             weigh = tensor("shared_expert_gate.weight");
  const auto before = numbers(5 * width, 11);
  auto hidden = before;
  std::vector<float> normed(hidden.size()), logits(5 * config.n_experts);
  model->route(layer_id{1u}, hidden, normed, logits);
  const auto product = [](const float* row, const float* input, std::size_t n) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(row[i]) * input[i];
    return sum;
  };
  double moved = 0;
  for (std::size_t r = 0; r < 5; ++r) {
    const float* x = &normed[r * width];
    std::vector<float> middle(inner);
    for (std::size_t i = 0; i < inner; ++i) {
      const double g = product(&gate[i * width], x, width);
      middle[i] = static_cast<float>(g / (1 + std::exp(-g)) * product(&up[i * width], x, width));
    }
    const double share = 1 / (1 + std::exp(-product(weigh.data(), x, width)));
    for (std::size_t k = 0; k < width; ++k) {
      const double expected =
          before[r * width + k] + share * product(&down[k * inner], middle.data(), inner);
      BOOST_TEST(std::abs(hidden[r * width + k] - expected) < 1e-5);
      moved += std::abs(expected - before[r * width + k]);
    }
  }
  BOOST_TEST(moved > 1.0);
}

BOOST_AUTO_TEST_CASE(families_without_a_shared_expert_leave_the_hidden_state_to_the_slots) {
  for (const auto kind : {om::family::mixtral, om::family::qwen3_moe, om::family::olmoe}) {
    const auto model = model_of(kind);
    const auto& config = model->config();
    const auto before = numbers(3 * config.hidden_size, 12);
    auto hidden = before;
    std::vector<float> normed(hidden.size()), logits(3 * config.n_experts);
    model->route(layer_id{0u}, hidden, normed, logits);
    BOOST_TEST(same_bits(before.data(), hidden.data(), hidden.size()));
  }
}

BOOST_AUTO_TEST_CASE(every_piece_gives_a_row_the_same_bits_alone_and_in_batches) {
  for (const auto kind : all_families)
    for (const auto& device : ordermoe::test::both_devices())
      BOOST_TEST_CONTEXT(om::to_string(kind)) {
        const auto model = model_of(kind, {.device = device});
        const auto& config = model->config();
        const std::size_t width = config.hidden_size, n_experts = config.n_experts;
        constexpr std::size_t most = 40, context = 9;
        std::vector<om::kv_cache> caches;
        for (std::size_t i = 0; i < most; ++i) {
          caches.emplace_back(context + 1, config.kv_row_size());
          for (std::size_t p = 0; p < context; ++p)
            caches[i].put(p, numbers(config.kv_row_size(), 1000 * i + p));
        }
        const auto rows = numbers(most * width, 2);
        const auto pass = [&](std::size_t first, std::size_t n) {
          std::vector<om::attention_row> batch;
          for (std::size_t i = first; i < first + n; ++i)
            batch.push_back({&caches[i], i % context});
          std::vector<float> hidden(&rows[first * width], &rows[first * width] + n * width);
          std::vector<float> normed(n * width), logits(n * n_experts), output(n * width);
          model->attend(layer_id{1u}, batch, hidden);
          model->route(layer_id{1u}, hidden, normed, logits);
          model->run_expert(layer_id{1u}, expert_id{3u}, normed, output);
          for (const auto* more : {&normed, &output})
            hidden.insert(hidden.end(), more->begin(), more->end());
          hidden.insert(hidden.end(), logits.begin(), logits.end());
          return hidden;
        };
        std::vector<std::vector<float>> alone;
        for (std::size_t i = 0; i < most; ++i) alone.push_back(pass(i, 1));
        for (const std::size_t n : {2u, 3u, 7u, 16u, 33u, 40u}) {
          const auto together = pass(0, n);
          for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t part = 0; part < 3; ++part)
              BOOST_REQUIRE(
                  same_bits(&together[(part * n + i) * width], &alone[i][part * width], width));
            BOOST_REQUIRE(same_bits(&together[3 * n * width + i * n_experts], &alone[i][3 * width],
                                    n_experts));
          }
        }
      }
}

BOOST_AUTO_TEST_CASE(the_reference_is_its_pieces_in_any_chunks) {
  for (const auto kind : all_families) BOOST_TEST_CONTEXT(om::to_string(kind)) {
      const auto model = model_of(kind);
      const auto& config = model->config();
      const std::size_t width = config.hidden_size;
      std::vector<std::int32_t> ids(30);
      std::iota(ids.begin(), ids.end(), 40);
      const auto whole = fixture::need(om::logits(*model, ids));
      for (const std::size_t chunk : {1u, 4u, 29u}) {
        auto caches = om::make_caches(*model, ids.size());
        for (std::size_t first = 0; first < ids.size(); first += chunk) {
          const std::size_t n = std::min<std::size_t>(chunk, ids.size() - first);
          std::vector<float> hidden(n * width), normed(n * width), scores(n * config.n_experts);
          model->embed(std::span(ids).subspan(first, n), hidden);
          for (std::size_t l = 0; l < config.n_layers; ++l) {
            std::vector<om::attention_row> rows;
            for (std::size_t i = 0; i < n; ++i) rows.push_back({&caches[l], first + i});
            model->attend(layer_id{l}, rows, hidden);
            model->route(layer_id{l}, hidden, normed, scores);
            for (std::size_t i = 0; i < n; ++i) {
              const auto logits =
                  std::span<const float>(scores).subspan(i * config.n_experts, config.n_experts);
              std::vector<std::vector<float>> outputs;
              std::vector<const float*> parts;
              std::vector<float> gates;
              for (const auto& slot : om::choose_experts(logits, config.top_k, config.gates)) {
                outputs.emplace_back(width);
                model->run_expert(layer_id{l}, slot.expert,
                                  std::span<const float>(normed).subspan(i * width, width),
                                  outputs.back());
                gates.push_back(slot.gate);
              }
              for (const auto& output : outputs) parts.push_back(output.data());
              om::add_slots(std::span(hidden).subspan(i * width, width), gates, parts);
            }
          }
          std::vector<float> made(n * config.vocab_size);
          model->head(hidden, made);
          BOOST_REQUIRE(same_bits(&whole[first * config.vocab_size], made.data(), made.size()));
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(the_shared_expert_is_charged_with_what_every_row_takes) {
  const auto published = om::own_costs(om::published_shape(om::family::qwen2_moe));
  const auto named = fixture::need(ordermoe::named_cost_profile("qwen1.5-moe-a2.7b"));
  BOOST_TEST(published.attention_bytes == named.attention_bytes);
  BOOST_TEST(published.attention_flops == named.attention_flops);
  BOOST_TEST(published.expert_bytes == named.expert_bytes);
  const auto mixtral = om::own_costs(om::published_shape(om::family::mixtral));
  BOOST_TEST(mixtral.attention_bytes ==
             fixture::need(ordermoe::named_cost_profile("mixtral-8x7b")).attention_bytes);
}

BOOST_AUTO_TEST_SUITE_END()
