#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "model/checkpoint/random_model.hpp"
#include "model/forward.hpp"
#include "model/reference.hpp"
#include "model/sampling.hpp"
#include "test/model/fixture.hpp"
#include "test/support/devices.hpp"

// Switch Transformers: an encoder and a decoder whose rows run in the same pieces as a decoder's,
// and experts that take so many rows of a sequence. And the blocks without experts that a layer may
// have, in Qwen's models too.

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::need;
using fixture::numbers;
using fixture::same_bits;
using nlohmann::json;
using ordermoe::errc;
using ordermoe::layer_id;

std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(ORDERMOE_TEST_DATA) / "golden" / name;
}

/// A small random checkpoint whose experts take four rows each.
const std::filesystem::path& random_folder() {
  static const fixture::scratch_folder place;
  static const auto folder = [] {
    const auto options = fixture::small_model(om::family::switch_transformers, 7);
    need(om::write_random_model(place.path() / "model", options));
    return place.path() / "model";
  }();
  return folder;
}

std::shared_ptr<const om::transformer> random_switch(const om::load_options& options = {}) {
  return need(om::transformer::load(random_folder(), options));
}

json config_of(const std::filesystem::path& folder) {
  return json::parse(need(ordermoe::read_file(folder / "config.json")));
}

ordermoe::result<om::model_config> read(const json& content) {
  const fixture::scratch_folder folder;
  folder.write("config.json", content.dump());
  return om::read_model_config(folder.path());
}

ordermoe::result<om::model_config> read_with(const std::string& field, const json& value) {
  json content = config_of(random_folder());
  content[field] = value;
  return read(content);
}

std::vector<std::int32_t> ids_from(std::int32_t first, std::size_t n) {
  std::vector<std::int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

/// A sequence with its caches, whose rows are computed in parts.
struct sequence {
  std::vector<std::int32_t> prompt, decoded;
  std::vector<om::kv_cache> caches;

  sequence(const om::transformer& model, std::vector<std::int32_t> read,
           std::vector<std::int32_t> continued)
      : prompt(std::move(read)),
        decoded(std::move(continued)),
        caches(om::make_caches(model, prompt.size() + decoded.size())) {
    decoded.front() = model.config().encoder_decoder->decoder_start_id;
  }
};

/// Rows of a sequence from position `first` on, their hidden state and where they are.
struct rows_on_their_way {
  sequence* of;
  std::size_t first;
  std::vector<float> hidden;

  rows_on_their_way(const om::transformer& model, sequence& content, std::size_t from,
                    std::size_t n)
      : of(&content), first(from), hidden(n * model.config().hidden_size) {
    std::vector<std::int32_t> all = content.prompt;
    all.insert(all.end(), content.decoded.begin(), content.decoded.end());
    model.embed(std::span(all).subspan(from, n), hidden);
  }
};

/// One layer over rows of several sequences in one call of each piece; returns how many rows with
/// experts at this layer were left without slots.
std::size_t run_together(const om::transformer& model, layer_id layer,
                         std::span<rows_on_their_way* const> parts) {
  const auto& config = model.config();
  std::vector<om::attention_row> rows;
  std::vector<float> hidden;
  for (const auto* part : parts) {
    const auto here = om::rows_at(config, layer, part->of->caches[layer.index()],
                                  {part->first, part->of->prompt.size()},
                                  part->hidden.size() / config.hidden_size);
    rows.insert(rows.end(), here.begin(), here.end());
    hidden.insert(
        hidden.end(), part->hidden.begin(),
        part->hidden.begin() + static_cast<std::ptrdiff_t>(here.size() * config.hidden_size));
  }
  std::vector<float> normed(hidden.size()), logits(rows.size() * config.n_experts);
  model.attend(layer, rows, hidden);
  model.route(layer, rows, hidden, normed, logits);
  om::slot_table slots;
  std::size_t dropped = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    slots.push_back(om::routed_slots(
        std::span<const float>(logits).subspan(i * config.n_experts, config.n_experts), config));
    const auto kind =
        rows[i].position < rows[i].prompt ? om::row_kind::prompt : om::row_kind::decoded;
    if (!config.takes_slots(kind, layer)) BOOST_REQUIRE(slots.back().empty());
    if (config.takes_slots(kind, layer) && slots.back().empty()) ++dropped;
  }
  om::execute_slots(model, layer, normed, slots, hidden);
  auto from = hidden.begin();
  for (auto* part : parts) {
    const auto n = om::rows_at(config, layer, part->of->caches[layer.index()],
                               {part->first, part->of->prompt.size()},
                               part->hidden.size() / config.hidden_size)
                       .size() *
                   config.hidden_size;
    std::copy_n(from, n, part->hidden.begin());
    from += static_cast<std::ptrdiff_t>(n);
  }
  return dropped;
}

std::size_t run_alone(const om::transformer& model, rows_on_their_way& part) {
  std::size_t dropped = 0;
  rows_on_their_way* const parts[] = {&part};
  for (std::size_t l = 0; l < model.config().n_layers; ++l)
    dropped += run_together(model, layer_id{l}, parts);
  return dropped;
}

/// The whole sequence, prompt first, then every decoded row by itself; hidden states of the decoded
/// rows.
std::vector<float> row_by_row(const om::transformer& model, sequence& content,
                              std::size_t* dropped = nullptr) {
  rows_on_their_way prompt(model, content, 0, content.prompt.size());
  std::size_t lost = run_alone(model, prompt);
  std::vector<float> states;
  for (std::size_t i = 0; i < content.decoded.size(); ++i) {
    rows_on_their_way row(model, content, content.prompt.size() + i, 1);
    lost += run_alone(model, row);
    states.insert(states.end(), row.hidden.begin(), row.hidden.end());
  }
  if (dropped != nullptr) *dropped = lost;
  return states;
}

bool same_caches(const sequence& a, const sequence& b) {
  for (std::size_t l = 0; l < a.caches.size(); ++l) {
    const auto& first = a.caches[l];
    const auto& second = b.caches[l];
    if (first.contiguous() != second.contiguous()) return false;
    for (std::size_t p = 0; p < first.contiguous(); ++p)
      if (!same_bits(first.row(p).data(), second.row(p).data(), first.row_size())) return false;
  }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(encoder_decoder)

BOOST_AUTO_TEST_CASE(rows_have_the_same_bits_alone_and_beside_rows_of_other_sequences) {
  for (const auto& device : ordermoe::test::both_devices()) {
    const auto model = random_switch({.device = device});
    const auto& config = model->config();
    const auto fresh = [&] {
      std::vector<sequence> all;
      all.emplace_back(*model, ids_from(40, 5), ids_from(100, 12));
      all.emplace_back(*model, ids_from(200, 19), ids_from(300, 7));
      all.emplace_back(*model, ids_from(11, 1), ids_from(77, 20));
      return all;
    };
    auto alone = fresh();
    std::vector<std::vector<float>> expected;
    std::size_t dropped = 0;
    for (auto& each : alone) {
      std::size_t lost = 0;
      expected.push_back(row_by_row(*model, each, &lost));
      dropped += lost;
    }
    BOOST_TEST(dropped > 0u);

    // The first two prompts in one batch; then the first one's decoded rows beside the third
    // prompt, in one chunk; then all other decoded rows together.
    auto all = fresh();
    std::size_t lost = 0;
    rows_on_their_way first(*model, all[0], 0, 5), second(*model, all[1], 0, 19);
    rows_on_their_way* const prompts[] = {&first, &second};
    for (std::size_t l = 0; l < config.n_layers; ++l)
      lost += run_together(*model, layer_id{l}, prompts);
    rows_on_their_way third(*model, all[2], 0, 1), continued(*model, all[0], 5, 12);
    rows_on_their_way* const mixed[] = {&continued, &third};
    for (std::size_t l = 0; l < config.n_layers; ++l)
      lost += run_together(*model, layer_id{l}, mixed);
    rows_on_their_way rest(*model, all[2], 1, 20), other(*model, all[1], 19, 7);
    rows_on_their_way* const decoded[] = {&rest, &other};
    for (std::size_t l = 0; l < config.n_layers; ++l)
      lost += run_together(*model, layer_id{l}, decoded);

    BOOST_TEST(lost == dropped);
    BOOST_TEST(same_bits(expected[0].data(), continued.hidden.data(), expected[0].size()));
    BOOST_TEST(same_bits(expected[1].data(), other.hidden.data(), expected[1].size()));
    BOOST_TEST(same_bits(expected[2].data(), rest.hidden.data(), expected[2].size()));
    for (std::size_t i = 0; i < 3; ++i) BOOST_TEST(same_caches(alone[i], all[i]));
  }
}

BOOST_AUTO_TEST_CASE(the_rows_that_find_their_expert_full_are_the_independent_implementations) {
  for (const std::string name : {"switch", "switch-capacity"}) BOOST_TEST_CONTEXT(name) {
      const auto model = need(om::transformer::load(golden(name)));
      const auto& config = model->config();
      const auto content = json::parse(need(ordermoe::read_file(golden(name) / "golden.json")));
      const std::vector<std::int32_t> read = content["ids"], continued = content["decoder_ids"];
      std::vector<std::int32_t> all = read;
      all.insert(all.end(), continued.begin(), continued.end());
      std::vector<float> hidden(all.size() * config.hidden_size);
      model->embed(all, hidden);
      auto caches = om::make_caches(*model, all.size());
      std::size_t full = 0;
      for (std::size_t l = 0; l < config.n_layers; ++l) {
        const layer_id layer{l};
        const bool encoder = config.of_encoder(layer);
        const auto& routes = content[encoder ? "encoder_routes" : "decoder_routes"]
                                    [std::to_string(config.blocks_of(layer).end - 1)];
        const auto rows =
            om::rows_at(config, layer, caches[l], {.first = 0, .prompt = read.size()}, all.size());
        const auto states = std::span(hidden).first(rows.size() * config.hidden_size);
        std::vector<float> normed(states.size()), logits(rows.size() * config.n_experts);
        model->attend(layer, rows, states);
        model->route(layer, rows, states, normed, logits);
        om::slot_table slots;
        for (std::size_t i = 0; i < rows.size(); ++i)
          slots.push_back(om::routed_slots(
              std::span<const float>(logits).subspan(i * config.n_experts, config.n_experts),
              config));
        const std::size_t first = encoder ? 0 : read.size();
        for (std::size_t i = 0; i < first; ++i) BOOST_TEST(slots[i].empty());
        BOOST_REQUIRE_EQUAL(routes["experts"].size(), rows.size() - first);
        for (std::size_t i = first; i < rows.size(); ++i) {
          const bool dropped = routes["dropped"][i - first];
          full += dropped ? 1 : 0;
          BOOST_REQUIRE_EQUAL(slots[i].empty(), dropped);
          if (dropped) continue;
          BOOST_TEST(slots[i][0].expert.value == routes["experts"][i - first].get<unsigned>());
          BOOST_TEST(std::abs(slots[i][0].gate - routes["gates"][i - first].get<double>()) < 1e-5);
        }
        om::execute_slots(*model, layer, normed, slots, states);
      }
      BOOST_TEST((full > 0) == (name == "switch-capacity"));
    }
}

BOOST_AUTO_TEST_CASE(what_is_generated_is_the_likeliest_token_of_the_teacher_forced_logits) {
  const auto model = random_switch();
  const auto prompt = ids_from(30, 17);
  om::generation_options options;
  options.max_new_tokens = 24;
  const auto made = need(om::generate(*model, nullptr, prompt, options));
  BOOST_REQUIRE(made.token_ids.size() > 10u);
  std::vector<std::int32_t> read{model->config().encoder_decoder->decoder_start_id};
  read.insert(read.end(), made.token_ids.begin(), made.token_ids.end() - 1);
  const auto logits = need(om::logits(*model, prompt, read));
  const std::size_t vocabulary = model->config().vocab_size;
  BOOST_REQUIRE_EQUAL(logits.size(), read.size() * vocabulary);
  for (std::size_t i = 0; i < read.size(); ++i) {
    const auto row = std::span<const float>(logits).subspan(i * vocabulary, vocabulary);
    const auto likeliest = std::ranges::max_element(row) - row.begin();
    BOOST_TEST(likeliest == made.token_ids[i]);
  }
}

BOOST_AUTO_TEST_CASE(a_text_is_scored_as_what_follows_its_first_token) {
  const auto model = random_switch();
  const std::size_t vocabulary = model->config().vocab_size;
  const auto ids = ids_from(60, 21);
  const auto losses = need(om::token_losses(*model, ids));
  BOOST_REQUIRE_EQUAL(losses.size(), 20u);
  std::vector<std::int32_t> read{model->config().encoder_decoder->decoder_start_id};
  read.insert(read.end(), ids.begin() + 1, ids.end() - 1);
  const auto logits = need(om::logits(*model, std::span(ids).first(1), read));
  for (std::size_t i = 0; i < losses.size(); ++i)
    BOOST_TEST(losses[i] ==
               om::negative_log_likelihood(
                   std::span<const float>(logits).subspan(i * vocabulary, vocabulary), ids[i + 1]));
}

BOOST_AUTO_TEST_CASE(logits_without_a_decoder_input_are_those_of_copying_the_input) {
  const auto model = random_switch();
  const auto ids = ids_from(90, 9);
  std::vector<std::int32_t> read{model->config().encoder_decoder->decoder_start_id};
  read.insert(read.end(), ids.begin(), ids.end() - 1);
  const auto plain = need(om::logits(*model, ids));
  const auto stated = need(om::logits(*model, ids, read));
  BOOST_REQUIRE_EQUAL(plain.size(), stated.size());
  BOOST_TEST(same_bits(plain.data(), stated.data(), plain.size()));
  check_error(om::logits(*fixture::tiny_model(), ids, read), errc::usage, {"no encoder"});
  check_error(om::logits(*model, ids, std::vector<std::int32_t>{}), errc::out_of_range,
              {"decoder", "empty"});
  check_error(om::logits(*model, ids_from(0, 300), ids_from(0, 300)), errc::out_of_range,
              {"together", "600", "512"});
}

BOOST_AUTO_TEST_CASE(the_file_states_the_model_and_is_written_back_the_same) {
  const auto small = om::small_shape(om::family::switch_transformers);
  const auto config = need(read(config_of(random_folder())));
  BOOST_TEST(om::model_config_json(config) == om::model_config_json(small));
  BOOST_TEST(config.n_layers == 4u);
  BOOST_TEST(config.sparse_blocks == small.sparse_blocks, boost::test_tools::per_element());
  BOOST_TEST(config.encoder_decoder->encoder_layers == 2u);
  BOOST_TEST(config.encoder_decoder->encoder_blocks == 4u);
  BOOST_TEST(config.encoder_decoder->expert_capacity == 4u);
  for (const std::string name : {"switch", "switch-capacity"}) {
    const auto first = need(om::read_model_config(golden(name)));
    const auto second = need(read(json::parse(om::model_config_json(first))));
    BOOST_TEST(om::model_config_json(first) == om::model_config_json(second));
    BOOST_TEST(first.sparse_blocks == second.sparse_blocks, boost::test_tools::per_element());
  }
  const auto capacity = need(om::read_model_config(golden("switch-capacity")));
  BOOST_TEST(capacity.encoder_decoder->encoder_layers == 1u);
  BOOST_TEST(capacity.encoder_decoder->encoder_blocks == 3u);
  BOOST_TEST(capacity.n_layers == 3u);
  BOOST_TEST(!capacity.tied_embeddings);
  // Key and value of each block, and the expert chosen.
  BOOST_TEST(capacity.kv_row_size(layer_id{0u}) == 0u);
  BOOST_TEST(capacity.kv_row_size(layer_id{1u}) == 2 * capacity.n_heads * capacity.head_dim + 2);
  BOOST_TEST(config.kv_row_size(layer_id{2u}) == 4 * config.n_heads * config.head_dim + 2);
}

BOOST_AUTO_TEST_CASE(the_published_file_is_read) {
  // The fields of switch-base-8's config.json; it says neither what the decoder starts with nor
  // that the embedding is the head, which both follow from what T5 does.
  const auto config = need(read(json::parse(R"({
    "add_router_probs": false, "architectures": ["SwitchTransformersForConditionalGeneration"],
    "d_ff": 3072, "d_kv": 64, "d_model": 768, "decoder_sparse_step": 2, "dense_act_fn": "relu",
    "dropout_rate": 0.1, "encoder_sparse_step": 2, "eos_token_id": 1, "expert_capacity": 64,
    "feed_forward_proj": "relu", "initializer_factor": 1.0, "is_encoder_decoder": true,
    "is_gated_act": false, "layer_norm_epsilon": 1e-06, "model_type": "switch_transformers",
    "num_decoder_layers": 12, "num_experts": 8, "num_heads": 12, "num_layers": 12,
    "num_selected_experts": 1, "num_sparse_decoder_layers": 6, "num_sparse_encoder_layers": 6,
    "pad_token_id": 0, "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32, "router_aux_loss_coef": 0.001, "router_bias": false,
    "router_dtype": "float32", "router_ignore_padding_tokens": false,
    "router_jitter_noise": 0.01, "router_type": "tokens_masked", "router_z_loss_coef": 0.001,
    "torch_dtype": "float32", "use_cache": true, "vocab_size": 32128})")));
  auto expected = om::published_shape(om::family::switch_transformers);
  expected.bos_id = -1;
  expected.eos_id = 1;
  BOOST_TEST(om::model_config_json(config) == om::model_config_json(expected));
  BOOST_TEST(config.encoder_decoder->decoder_start_id == 0);
  BOOST_TEST(config.tied_embeddings);
}

BOOST_AUTO_TEST_CASE(fields_that_change_the_computation_are_refused_by_name) {
  const std::pair<const char*, json> fields[] = {{"is_gated_act", true},
                                                 {"feed_forward_proj", "gated-gelu"},
                                                 {"dense_act_fn", "gelu_new"},
                                                 {"router_bias", true},
                                                 {"router_dtype", "bfloat16"},
                                                 {"router_type", "experts_masked"},
                                                 {"router_ignore_padding_tokens", true},
                                                 {"num_selected_experts", 2},
                                                 {"add_router_probs", true},
                                                 {"is_encoder_decoder", false},
                                                 {"encoder_sparse_step", 3},
                                                 {"decoder_sparse_step", 1},
                                                 {"num_sparse_encoder_layers", 5},
                                                 {"num_sparse_decoder_layers", 5},
                                                 {"relative_attention_num_buckets", 30},
                                                 {"quantization_config", {{"bits", 8}}},
                                                 {"model_type", "t5"}};
  for (const auto& [field, value] : fields) BOOST_TEST_CONTEXT(field) {
      const std::string named = std::string(field);
      check_error(read_with(field, value), errc::unsupported, {"config.json", named, "found"});
    }
  // Five blocks, two of them sparse: the last one is dense.
  json content = config_of(random_folder());
  content["num_decoder_layers"] = 5;
  check_error(read(content), errc::unsupported, {"num_sparse_decoder_layers", "last"});
  json many = config_of(random_folder());
  many["num_experts"] = 4096;
  for (const char* field : {"num_layers", "num_sparse_encoder_layers", "num_decoder_layers",
                            "num_sparse_decoder_layers"})
    many[field] = 33;
  check_error(read(many), errc::out_of_range,
              {"num_experts", "num_sparse_encoder_layers", "num_sparse_decoder_layers", "270336"});
  const std::pair<const char*, json> ranges[] = {{"expert_capacity", 0},
                                                 {"num_sparse_encoder_layers", 0},
                                                 {"d_model", 0},
                                                 {"relative_attention_max_distance", 16},
                                                 {"eos_token_id", 512}};
  for (const auto& [field, value] : ranges) BOOST_TEST_CONTEXT(field)
  check_error(read_with(field, value), errc::out_of_range, {"config.json", field});
  for (const char* field : {"d_kv", "num_heads", "num_experts", "expert_capacity",
                            "num_sparse_encoder_layers", "relative_attention_num_buckets"}) {
    json without = config_of(random_folder());
    without.erase(field);
    check_error(read(without), errc::malformed, {"config.json", field, "absent"});
  }
}

BOOST_AUTO_TEST_CASE(absent_and_superfluous_tensors_are_named) {
  const auto source = need(om::checkpoint::open_folder(golden("switch")));
  const auto load = [&](const std::string& without, const std::string& twice = {}) {
    const fixture::scratch_folder folder;
    std::filesystem::copy_file(golden("switch") / "config.json", folder.path() / "config.json");
    std::vector<om::tensor_data> tensors;
    for (const auto& [name, view] : source->tensors()) {
      const auto bytes = om::to_bytes(view.to_fp32(), view.type);
      if (name != without) tensors.push_back({name, view.type, view.shape, bytes});
      if (name == "shared.weight" && !twice.empty())
        tensors.push_back({twice, view.type, view.shape, bytes});
      if (name == "shared.weight" && twice == "lm_head.weight") tensors.back().bytes[0] ^= 1;
    }
    const auto written = om::write_safetensors(folder.path() / "model.safetensors", tensors);
    if (!written) BOOST_FAIL(written.error().message);
    return om::transformer::load(folder.path());
  };
  for (const std::string name :
       {"shared.weight", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.1.layer.1.mlp.router.classifier.weight",
        "encoder.block.2.layer.1.mlp.wi.weight", "encoder.final_layer_norm.weight",
        "decoder.block.3.layer.1.EncDecAttention.k.weight",
        "decoder.block.3.layer.2.mlp.experts.expert_4.wo.weight",
        "decoder.block.2.layer.2.layer_norm.weight"})
    check_error(load(name), errc::mismatch, {name, "absent"});
  check_error(load("", "decoder.block.4.layer.0.layer_norm.weight"), errc::mismatch,
              {"decoder.block.4.layer.0.layer_norm.weight", "no place"});
  // Other names of the one table are read where they are the same.
  BOOST_TEST(load("", "encoder.embed_tokens.weight").has_value());
  check_error(load("", "lm_head.weight"), errc::mismatch, {"lm_head.weight", "differs"});
}

BOOST_AUTO_TEST_CASE(a_layer_with_dense_blocks_gives_the_same_bits_in_any_chunks) {
  for (const std::string name : {"qwen2-moe-mixed", "qwen3-moe-top8"}) BOOST_TEST_CONTEXT(name) {
      const auto model = need(om::transformer::load(golden(name)));
      const auto& config = model->config();
      std::size_t most_blocks = 0;
      for (std::size_t l = 0; l < config.n_layers; ++l) {
        const auto blocks = config.blocks_of(layer_id{l}).size();
        most_blocks = std::max(most_blocks, blocks);
        BOOST_TEST(config.kv_row_size(layer_id{l}) == blocks * 2 * config.kv_width());
      }
      BOOST_TEST(most_blocks > 1u);
      const auto ids = ids_from(20, 30);
      const auto whole = need(om::logits(*model, ids));
      for (const std::size_t chunk : {1u, 4u, 29u}) {
        auto caches = om::make_caches(*model, ids.size());
        for (std::size_t first = 0; first < ids.size(); first += chunk) {
          const std::size_t n = std::min<std::size_t>(chunk, ids.size() - first);
          std::vector<float> hidden(n * config.hidden_size), scores(n * config.vocab_size);
          model->embed(std::span(ids).subspan(first, n), hidden);
          for (std::size_t l = 0; l < config.n_layers; ++l)
            om::run_layer(*model, layer_id{l}, caches[l], {.first = first}, hidden);
          model->head(hidden, scores);
          BOOST_REQUIRE(same_bits(&whole[first * config.vocab_size], scores.data(), scores.size()));
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(dense_layers_are_written_back_and_refused_where_no_experts_follow) {
  const auto mixed = need(om::read_model_config(golden("qwen2-moe-mixed")));
  const std::vector<std::size_t> sparse{1, 5};
  BOOST_TEST(mixed.sparse_blocks == sparse, boost::test_tools::per_element());
  BOOST_TEST(mixed.n_layers == 2u);
  BOOST_TEST(mixed.dense_intermediate_size == 36u);
  const auto again = need(read(json::parse(om::model_config_json(mixed))));
  BOOST_TEST(om::model_config_json(again) == om::model_config_json(mixed));
  BOOST_TEST(again.sparse_blocks == sparse, boost::test_tools::per_element());
  json content = config_of(golden("qwen2-moe-mixed"));
  content["mlp_only_layers"] = {5};
  check_error(read(content), errc::unsupported, {"mlp_only_layers", "last layer 5"});
  content["mlp_only_layers"] = {6};
  check_error(read(content), errc::out_of_range, {"mlp_only_layers", "0 to 5"});
  content["mlp_only_layers"] = json::array();
  content["decoder_sparse_step"] = 4;
  check_error(read(content), errc::unsupported, {"decoder_sparse_step", "last layer 5"});
  content["decoder_sparse_step"] = 2;
  content.erase("intermediate_size");
  check_error(read(content), errc::malformed, {"intermediate_size", "absent"});
}

BOOST_AUTO_TEST_CASE(what_is_charged_counts_every_matrix_once) {
  // All bf16 bytes of the tensors but the experts' are the profile's, up to its rounding to layers.
  for (const auto& config : {om::published_shape(om::family::switch_transformers),
                             need(om::read_model_config(golden("switch-capacity"))),
                             need(om::read_model_config(golden("qwen2-moe-mixed")))}) {
    std::int64_t all = 0;
    for (const auto& tensor : om::tensors_of(config))
      if (tensor.shape.size() == 2 &&
          tensor.name.find("relative_attention_bias") == std::string::npos)
        all += 2 * static_cast<std::int64_t>(tensor.size());
    const auto costs = om::own_costs(config);
    const auto n_layers = static_cast<std::int64_t>(config.n_layers);
    const auto experts =
        costs.expert_bytes * n_layers * static_cast<std::int64_t>(config.n_experts);
    std::int64_t charged = experts + costs.attention_flops * n_layers + costs.head_bytes;
    if (!config.tied_embeddings) charged += costs.embedding_bytes;
    BOOST_TEST(std::abs(all - charged) <= n_layers);
  }
}

BOOST_AUTO_TEST_SUITE_END()
