#include "model/architecture/model_config.hpp"

#include <algorithm>

#include "config/files.hpp"
#include "config/json.hpp"
#include "model/architecture/config_fields.hpp"
#include "model/architecture/half_trained.hpp"
#include "model/architecture/switch_config.hpp"

namespace ordermoe::model {

namespace {

struct family_entry {
  family kind;
  const char* model_type;
  const char* architecture;
};
constexpr family_entry families[] = {
    {family::mixtral, "mixtral", "MixtralForCausalLM"},
    {family::qwen2_moe, "qwen2_moe", "Qwen2MoeForCausalLM"},
    {family::qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM"},
    {family::olmoe, "olmoe", "OlmoeForCausalLM"},
    {family::switch_transformers, "switch_transformers",
     "SwitchTransformersForConditionalGeneration"},
};

bool is_qwen(family kind) {
  return kind == family::qwen2_moe || kind == family::qwen3_moe;
}

const family_entry& entry_of(family kind) {
  const auto found = std::ranges::find(families, kind, &family_entry::kind);
  ORDERMOE_CHECK(found != std::end(families), "a family beyond all");
  return *found;
}

const char* expert_width_field(family kind) {
  return is_qwen(kind) ? "moe_intermediate_size" : "intermediate_size";
}

const char* n_experts_field(family kind) {
  return kind == family::mixtral ? "num_local_experts" : "num_experts";
}

/// Which family the file is of, by architectures; model_type may not say otherwise.
void read_family(field_reader& fields, model_config& config) {
  const json* architectures = fields.find("architectures");
  std::string supported;
  const family_entry* chosen = nullptr;
  for (const auto& entry : families) {
    supported += fmt::format("{}[\"{}\"]", supported.empty() ? "" : ", ", entry.architecture);
    if (architectures != nullptr && *architectures == json::array({entry.architecture}))
      chosen = &entry;
  }
  if (chosen == nullptr)
    return fields.fail(
        errc::unsupported, "architectures",
        fmt::format("{}, supported is one of {}",
                    architectures == nullptr ? "is absent" : field_reader::shown(*architectures),
                    supported));
  config.kind = chosen->kind;
  fields.neutral("model_type", chosen->model_type);
}

/// The fields whose meaning, default or allowed value is the family's own. vocab_size is known.
void read_family_fields(field_reader& fields, model_config& config) {
  const auto tokens = [&](std::int32_t none) {
    config.bos_id = config.eos_id = none;
    fields.token_id("bos_token_id", config.vocab_size, config.bos_id);
    fields.token_ids("eos_token_id", config.vocab_size, config.eos_id, config.other_eos_ids);
  };
  const auto norm_of_gates = [&] {
    bool renormalise = false;
    fields.flag("norm_topk_prob", renormalise);
    config.gates = renormalise ? gate_rule::renormalised : gate_rule::probabilities;
  };
  switch (config.kind) {
    case family::mixtral:
      fields.positive("rope_theta", 1e12, config.rope_theta, 1e6);
      fields.token_id("bos_token_id", config.vocab_size, config.bos_id);
      fields.token_ids("eos_token_id", config.vocab_size, config.eos_id, config.other_eos_ids);
      fields.neutral("norm_topk_prob", true);
      config.gates = gate_rule::renormalised;
      break;
    case family::qwen2_moe:
      fields.positive("rope_theta", 1e12, config.rope_theta, 1e4);
      tokens(-1);
      norm_of_gates();
      fields.natural("shared_expert_intermediate_size", 1, 1 << 18,
                     config.shared_intermediate_size);
      config.query_key_value_bias = true;
      fields.flag("qkv_bias", config.query_key_value_bias);
      break;
    case family::qwen3_moe:
      fields.positive("rope_theta", 1e12, config.rope_theta, 1e4);
      tokens(-1);
      norm_of_gates();
      config.qk_norm = query_key_norm::per_head;
      break;
    case family::olmoe:
      fields.positive("rope_theta", 1e12, config.rope_theta, 1e4);
      tokens(-1);
      norm_of_gates();
      config.qk_norm = query_key_norm::whole;
      break;
    case family::switch_transformers:
      break;
  }
  // Where biases and norms are is the family's, but for qkv_bias; a file that says otherwise is of
  // another model. attention_bias would also put one on the output projection.
  fields.neutral("attention_bias", false);
  if (config.kind != family::qwen2_moe) {
    fields.neutral("qkv_bias", false);
    fields.neutral("shared_expert_intermediate_size", 0);
  }
  const bool norms = config.qk_norm != query_key_norm::none;
  fields.neutral("use_qk_norm", norms);
  fields.neutral("qk_layernorm", norms);
}

constexpr std::int64_t weight_bytes = 2, flops_per_weight = 2;

/// What dense blocks and attention to the prompt add to each layer, on average: the profile charges
/// all layers alike, as of one block with attention to its own rows.
void add_further_blocks(const model_config& config, cost_profile& costs) {
  const auto signed_size = [](std::size_t x) { return static_cast<std::int64_t>(x); };
  const auto n_layers = signed_size(config.n_layers);
  std::int64_t blocks = 0, prompt_attentions = 0, kv_numbers = 0;
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    const auto here = signed_size(config.blocks_of(layer_id{l}).size());
    blocks += here;
    if (config.encoder_decoder && !config.of_encoder(layer_id{l})) prompt_attentions += here;
    kv_numbers += signed_size(config.kv_row_size(layer_id{l}));
  }
  if (config.encoder_decoder) {
    const std::size_t last = config.encoder_decoder->encoder_layers - 1;
    blocks +=
        signed_size(config.encoder_decoder->encoder_blocks - config.blocks_of(layer_id{last}).end);
  }
  const auto hidden = signed_size(config.hidden_size);
  const auto attention =
      2 * hidden * signed_size(config.n_heads * config.head_dim + config.kv_width());
  const auto dense_block = attention + (config.encoder_decoder ? 2 : 3) * hidden *
                                           signed_size(config.dense_intermediate_size);
  const auto dense = blocks - n_layers;
  const auto matrices = dense * dense_block + prompt_attentions * attention;
  const auto norms = hidden * (2 * dense + prompt_attentions);
  costs.attention_bytes += (matrices + norms) * weight_bytes / n_layers;
  costs.attention_flops += matrices * flops_per_weight / n_layers;
  costs.attention_flops_per_context +=
      costs.attention_flops_per_context * (dense + prompt_attentions) / n_layers;
  costs.kv_row_bytes = kv_numbers * weight_bytes / n_layers;
}

/// Which of Qwen's blocks are dense: those that mlp_only_layers names and those whose number,
/// counted from 1, is no multiple of decoder_sparse_step. n_layers counts all blocks before, the
/// sparse ones after.
void read_dense_blocks(field_reader& fields, model_config& config) {
  const std::size_t n_blocks = config.n_layers;
  std::size_t step = 1;
  fields.natural("decoder_sparse_step", 1, 1024, step, 1);
  std::vector<bool> dense(n_blocks, false);
  if (const json* named = fields.find("mlp_only_layers")) {
    const auto is_block = [&](const json& x) {
      return x.is_number_unsigned() && x.get<std::uint64_t>() < n_blocks;
    };
    if (!named->is_array() || !std::ranges::all_of(*named, is_block))
      return fields.fail(errc::out_of_range, "mlp_only_layers",
                         fmt::format("{}, expected a list of layers from 0 to {}",
                                     field_reader::shown(*named), n_blocks - 1));
    for (const auto& block : *named) dense[block.get<std::size_t>()] = true;
  }
  if (!fields.ok()) return;
  std::vector<std::size_t> sparse;
  for (std::size_t block = 0; block < n_blocks; ++block)
    if (!dense[block] && (block + 1) % step == 0) sparse.push_back(block);
  if (sparse.size() == n_blocks) return;
  const std::size_t last = n_blocks - 1;
  if (sparse.empty() || sparse.back() != last) {
    const char* field = dense[last] ? "mlp_only_layers" : "decoder_sparse_step";
    return fields.fail(errc::unsupported, field,
                       fmt::format("{} makes the last layer {} dense, supported are models whose "
                                   "last layer has experts",
                                   field_reader::shown(*fields.find(field)), last));
  }
  fields.natural("intermediate_size", 1, 1 << 18, config.dense_intermediate_size);
  config.n_layers = sparse.size();
  config.sparse_blocks = std::move(sparse);
}

/// Adds the ids that end a text by what generation is told, which for chat variants are more than
/// the model's own.
result<void> add_generation_config(const std::filesystem::path& path, model_config& config) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const auto text = read_file(path, std::size_t{1} << 20);
  if (!text) return text.error();
  if (const auto sound = json_document::parse(*text, path.string()); !sound) return sound.error();
  const json content = json::parse(*text);
  if (!content.is_object())
    return error{errc::malformed,
                 fmt::format("{}: found {}, expected a JSON object; copy it from where the model "
                             "came from or remove it",
                             path.string(), content.type_name())};
  field_reader fields(content, path.string());
  std::int32_t first = config.eos_id;
  std::vector<std::int32_t> others;
  fields.token_ids("eos_token_id", config.vocab_size, first, others);
  if (!fields.ok()) return fields.problem();
  others.insert(others.begin(), first);
  for (const std::int32_t id : others) {
    if (id < 0 || config.ends_text(id)) continue;
    if (config.eos_id < 0)
      config.eos_id = id;
    else
      config.other_eos_ids.push_back(id);
  }
  return {};
}

}  // namespace

block_range model_config::blocks_of(layer_id layer) const {
  const std::size_t l = layer.index();
  ORDERMOE_CHECK(l < n_layers, fmt::format("layer {} of {}", l, n_layers));
  if (sparse_blocks.empty()) return {l, l + 1};
  const bool begins_stack = l == 0 || (encoder_decoder && l == encoder_decoder->encoder_layers);
  return {begins_stack ? 0 : sparse_blocks[l - 1] + 1, sparse_blocks[l] + 1};
}

std::size_t model_config::kv_row_size(layer_id layer) const {
  if (of_encoder(layer)) return 0;
  return blocks_of(layer).size() * 2 * kv_width() + (encoder_decoder ? 2 : 0);
}

std::size_t model_config::kv_row_size() const {
  std::size_t most = 0;
  for (std::size_t l = 0; l < n_layers; ++l) most = std::max(most, kv_row_size(layer_id{l}));
  return most;
}

const char* to_string(family value) {
  return entry_of(value).model_type;
}

const char* architecture_of(family value) {
  return entry_of(value).architecture;
}

std::vector<std::string> embedding_copies(const model_config& config) {
  std::vector<std::string> names;
  if (config.encoder_decoder)
    names = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
  if (config.tied_embeddings) names.push_back("lm_head.weight");
  return names;
}

cost_profile own_costs(const model_config& config) {
  auto costs = measured_cost_profile(config.hidden_size, config.intermediate_size, config.n_heads,
                                     config.n_kv_heads, config.head_dim, config.n_experts,
                                     config.vocab_size);
  const auto hidden = static_cast<std::int64_t>(config.hidden_size);
  const auto shared = static_cast<std::int64_t>(config.shared_intermediate_size);
  // Three matrices and the row of its gate.
  const auto weights = shared > 0 ? 3 * hidden * shared + hidden : 0;
  costs.attention_bytes += weights * weight_bytes;
  costs.attention_flops += weights * flops_per_weight;
  if (config.encoder_decoder) {  // An expert has two matrices.
    costs.expert_bytes = costs.expert_bytes / 3 * 2;
    costs.expert_flops = costs.expert_flops / 3 * 2;
  }
  if (config.encoder_decoder || !config.sparse_blocks.empty()) add_further_blocks(config, costs);
  return costs;
}

result<model_config> read_model_config(const std::filesystem::path& folder) {
  if (auto half = check_not_half_trained(folder); !half) return half.error();
  const auto path = folder / "config.json";
  const auto text = read_file(path, std::size_t{1} << 20);
  if (!text) return text.error();
  auto config = parse_model_config(*text, path.string());
  if (!config) return config.error();
  if (auto added = add_generation_config(folder / "generation_config.json", *config); !added)
    return added.error();
  return config;
}

namespace {

/// Some of Qwen3's files name the field as Mixtral's do; one that has both names says the same twice.
void read_n_experts(field_reader& fields, model_config& config) {
  constexpr std::size_t most = 4096;
  const char* field = n_experts_field(config.kind);
  constexpr const char* other = "num_local_experts";
  const bool takes_other = config.kind == family::qwen3_moe && fields.find(other) != nullptr;
  if (!takes_other) return fields.natural(field, 1, most, config.n_experts);
  fields.natural(other, 1, most, config.n_experts);
  const json* own = fields.find(field);
  if (own != nullptr && *own != *fields.find(other))
    fields.fail(errc::mismatch, other,
                fmt::format("{}, but {} says {}; leave out what is not the model's",
                            field_reader::shown(*fields.find(other)), field, own->dump()));
}

/// The sizes that every decoder states.
void read_sizes(field_reader& fields, model_config& config) {
  const bool qwen = is_qwen(config.kind);
  const json* activation = fields.find("hidden_act");
  if (activation != nullptr && *activation != "silu" && *activation != "swish")
    fields.fail(errc::unsupported, "hidden_act",
                fmt::format("{}, supported is \"silu\"", field_reader::shown(*activation)));

  fields.natural("hidden_size", 1, 1 << 16, config.hidden_size);
  // Qwen's intermediate_size is of dense blocks.
  fields.natural(expert_width_field(config.kind), 1, 1 << 18, config.intermediate_size);
  fields.natural("num_hidden_layers", 1, 1024, config.n_layers);
  fields.natural("num_attention_heads", 1, 1024, config.n_heads);
  // What an absent number of heads means differs between Qwen's releases; every checkpoint states
  // it.
  fields.natural("num_key_value_heads", 1, 1024, config.n_kv_heads,
                 qwen ? std::nullopt : std::optional(config.n_heads));
  read_n_experts(fields, config);
  fields.natural("num_experts_per_tok", 1, 64, config.top_k);
  fields.natural("vocab_size", 1, 1 << 24, config.vocab_size);
  fields.natural("max_position_embeddings", 1, 1 << 20, config.max_context);
  fields.positive("rms_norm_eps", 1.0, config.rms_norm_eps, qwen ? 1e-6 : 1e-5);
  fields.flag("tie_word_embeddings", config.tied_embeddings);
}

void read_head_size(field_reader& fields, model_config& config) {
  if (config.hidden_size % config.n_heads != 0 && fields.find("head_dim") == nullptr)
    fields.fail(errc::out_of_range, "hidden_size",
                fmt::format("{} is no multiple of num_attention_heads {}; state head_dim",
                            config.hidden_size, config.n_heads));
  const std::size_t even_share = std::max<std::size_t>(1, config.hidden_size / config.n_heads);
  fields.natural("head_dim", 1, 4096, config.head_dim,
                 config.kind == family::qwen3_moe ? std::nullopt : std::optional(even_share));
  if (config.kind == family::olmoe && config.head_dim * config.n_heads != config.hidden_size)
    fields.fail(
        errc::unsupported, "head_dim",
        fmt::format(
            "found {}, times num_attention_heads {} it is not hidden_size {}, which the norms "
            "of queries and keys need; supported is leaving it out",
            config.head_dim, config.n_heads, config.hidden_size));
  if (config.head_dim % 2 != 0)
    fields.fail(errc::out_of_range, "head_dim",
                fmt::format("{} is odd, rotary positions need pairs", config.head_dim));
}

void check_counts(field_reader& fields, const model_config& config) {
  if (config.n_heads % config.n_kv_heads != 0)
    fields.fail(errc::out_of_range, "num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads {}", config.n_kv_heads,
                            config.n_heads));
  if (config.top_k > config.n_experts)
    fields.fail(errc::out_of_range, "num_experts_per_tok",
                fmt::format("{} is more than {} {}", config.top_k, n_experts_field(config.kind),
                            config.n_experts));
  fields.check_experts(n_experts_field(config.kind), config.n_experts, "num_hidden_layers",
                       config.n_layers);
  if (config.bos_id >= static_cast<std::int64_t>(config.vocab_size) ||
      config.eos_id >= static_cast<std::int64_t>(config.vocab_size))
    fields.fail(errc::out_of_range, "vocab_size",
                fmt::format("{} does not hold bos_token_id {} and eos_token_id {}",
                            config.vocab_size, config.bos_id, config.eos_id));
}

void read_rope_parameters(field_reader& fields, const json& rope, model_config& config) {
  const json plain = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
  const bool states_theta_alone = rope.is_object() && fields.find("rope_theta") == nullptr &&
                                  rope.contains("rope_theta") && rope["rope_theta"].is_number() &&
                                  rope["rope_theta"].get<double>() > 0;
  json stated = rope;
  if (states_theta_alone) {
    config.rope_theta = rope["rope_theta"].get<double>();
    stated["rope_theta"] = plain["rope_theta"];
  }
  if (stated.is_object() && !stated.contains("rope_type")) stated["rope_type"] = "default";
  if (stated != plain)
    fields.fail(errc::unsupported, "rope_parameters",
                fmt::format("{} would change the computation, supported is rope_type default "
                            "with rope_theta",
                            field_reader::shown(rope)));
}

void read_positions(field_reader& fields, model_config& config) {
  // Qwen states a window and switches it off by use_sliding_window.
  if (const json* window = fields.find("sliding_window");
      window != nullptr && !is_qwen(config.kind)) {
    if (!window->is_number_unsigned() || window->get<std::uint64_t>() < config.max_context)
      fields.fail(errc::unsupported, "sliding_window",
                  fmt::format("{} would hide earlier tokens, supported is null or at least "
                              "max_position_embeddings {}",
                              field_reader::shown(*window), config.max_context));
  }
  if (const json* rope = fields.find("rope_scaling"))
    fields.fail(errc::unsupported, "rope_scaling",
                fmt::format("{} would change the computation, supported is null",
                            field_reader::shown(*rope)));
  if (const json* rope = fields.find("rope_parameters"))
    read_rope_parameters(fields, *rope, config);
}

/// What other models add to the computation; found by name rather than ignored.
void refuse_additions(field_reader& fields, const model_config& config) {
  for (const char* field : {"mlp_bias", "use_sliding_window", "alibi"})
    fields.neutral(field, false);
  fields.neutral("partial_rotary_factor", 1.0);
  fields.neutral("n_shared_experts", 0);
  fields.neutral("num_shared_experts", 0);
  fields.neutral("routed_scaling_factor", 1.0);
  fields.neutral("attention_multiplier", 1.0);
  fields.neutral("residual_multiplier", 1.0);
  fields.neutral("embedding_multiplier", 1.0);
  fields.neutral("logits_scaling", 1.0);
  fields.neutral("scoring_func", "softmax");
  if (!is_qwen(config.kind)) {
    fields.neutral("decoder_sparse_step", 1);
    fields.neutral("mlp_only_layers", json::array());
  }
  fields.neutral("layer_types", json(std::vector<std::string>(config.n_layers, "full_attention")));
  for (const char* field :
       {"quantization_config", "clip_qkv", "attn_logit_softcapping", "final_logit_softcapping",
        "logit_scale", "first_k_dense_replace", "dual_chunk_attention_config"})
    if (const json* found = fields.find(field))
      fields.fail(errc::unsupported, field,
                  fmt::format("{} would change the computation, supported is null (or leaving it "
                              "out)",
                              field_reader::shown(*found)));
}

}  // namespace

result<model_config> parse_model_config(std::string_view text, const std::string& place) {
  // Copying and printing JSON values recurses; this bounds how deep, and finds fields given twice.
  if (const auto sound = json_document::parse(text, place); !sound) return sound.error();
  const json content = json::parse(text);
  if (!content.is_object())
    return error{
        errc::malformed,
        fmt::format("{}: found {}, expected the JSON object of a Hugging Face config.json; "
                    "copy it from where the model came from",
                    place, content.type_name())};

  field_reader fields(content, place);
  model_config config;
  read_family(fields, config);
  if (!fields.ok()) return fields.problem();
  if (config.kind == family::switch_transformers) {
    read_switch_config(fields, config);
    if (!fields.ok()) return fields.problem();
    return config;
  }
  read_sizes(fields, config);
  read_family_fields(fields, config);
  if (!fields.ok()) return fields.problem();
  read_head_size(fields, config);
  check_counts(fields, config);
  read_positions(fields, config);
  refuse_additions(fields, config);
  if (is_qwen(config.kind)) read_dense_blocks(fields, config);
  if (!fields.ok()) return fields.problem();
  return config;
}

std::string model_config_json(const model_config& config) {
  const auto id_or_null = [](std::int32_t id) {
    return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(id);
  };
  if (config.kind == family::switch_transformers) return switch_config_json(config);
  const std::size_t n_blocks = config.blocks_of(layer_id{config.n_layers - 1}).end;
  nlohmann::ordered_json ends = id_or_null(config.eos_id);
  if (!config.other_eos_ids.empty()) {
    ends = nlohmann::ordered_json::array({config.eos_id});
    for (const std::int32_t id : config.other_eos_ids) ends.push_back(id);
  }
  nlohmann::ordered_json content = {
      {"architectures", {architecture_of(config.kind)}},
      {"model_type", to_string(config.kind)},
      {"hidden_act", "silu"},
      {"hidden_size", config.hidden_size},
      {expert_width_field(config.kind), config.intermediate_size},
      {"num_hidden_layers", n_blocks},
      {"num_attention_heads", config.n_heads},
      {"num_key_value_heads", config.n_kv_heads},
      {"head_dim", config.head_dim},
      {n_experts_field(config.kind), config.n_experts},
      {"num_experts_per_tok", config.top_k},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_context},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"bos_token_id", id_or_null(config.bos_id)},
      {"eos_token_id", ends},
      {"tie_word_embeddings", config.tied_embeddings},
      {"sliding_window", nullptr},
      {"torch_dtype", "bfloat16"},
  };
  if (config.kind != family::mixtral)
    content["norm_topk_prob"] = config.gates == gate_rule::renormalised;
  if (config.kind == family::qwen2_moe) {
    content["shared_expert_intermediate_size"] = config.shared_intermediate_size;
    content["qkv_bias"] = config.query_key_value_bias;
  }
  if (is_qwen(config.kind)) {
    auto dense = nlohmann::ordered_json::array();
    for (std::size_t l = 0; l < config.n_layers; ++l)
      for (auto range = config.blocks_of(layer_id{l}); range.size() > 1; ++range.first)
        dense.push_back(range.first);
    content["decoder_sparse_step"] = 1;
    if (!dense.empty()) content["intermediate_size"] = config.dense_intermediate_size;
    content["mlp_only_layers"] = std::move(dense);
    content["use_sliding_window"] = false;
  }
  if (config.kind == family::qwen3_moe) content["attention_bias"] = false;
  if (config.kind == family::olmoe) content["clip_qkv"] = nullptr;
  return content.dump(2) + "\n";
}

}  // namespace ordermoe::model
