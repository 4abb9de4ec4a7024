#include "model/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "config/files.hpp"
#include "config/json.hpp"

namespace ordermoe::model {

using nlohmann::json;

namespace {

/// Reads fields one after the other and keeps the first error.
class field_reader {
 public:
  field_reader(const json& content, std::string place)
      : content_(content), place_(std::move(place)) {}

  bool ok() const { return !problem_; }
  const error& problem() const { return *problem_; }

  void fail(errc code, const char* field, const std::string& what) {
    if (!problem_) problem_ = error{code, fmt::format("{}: {}: {}", place_, field, what)};
  }

  /// Null where the field is absent or null.
  const json* find(const char* field) const {
    const auto found = content_.find(field);
    return found == content_.end() || found->is_null() ? nullptr : &*found;
  }

  void natural(const char* field, std::size_t low, std::size_t high, std::size_t& value,
               std::optional<std::size_t> otherwise = std::nullopt) {
    const json* found = find(field);
    if (found == nullptr) {
      if (otherwise)
        value = *otherwise;
      else
        fail(errc::malformed, field,
             fmt::format("is absent, expected an integer from {} to {}", low, high));
      return;
    }
    if (!found->is_number_integer()) {
      fail(errc::malformed, field,
           fmt::format("{}, expected an integer from {} to {}", shown(*found), low, high));
      return;
    }
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() < low ||
        found->get<std::uint64_t>() > high) {
      fail(errc::out_of_range, field,
           fmt::format("{}, allowed are {} to {}", shown(*found), low, high));
      return;
    }
    value = found->get<std::size_t>();
  }

  void positive(const char* field, double high, double& value, double otherwise) {
    const json* found = find(field);
    if (found == nullptr) {
      value = otherwise;
      return;
    }
    if (!found->is_number()) {
      fail(errc::malformed, field, fmt::format("{}, expected a number", shown(*found)));
      return;
    }
    const double number = found->get<double>();
    if (!(number > 0) || !(number <= high)) {
      fail(errc::out_of_range, field,
           fmt::format("{}, allowed is more than 0, up to {}", shown(*found), high));
      return;
    }
    value = number;
  }

  void token_id(const char* field, std::size_t vocab_size, std::int32_t& value) {
    const json* found = find(field);
    if (found == nullptr) return;
    if (found->is_array())
      return fail(errc::unsupported, field,
                  fmt::format("{}, expected one id; name the one that ends or begins a text",
                              shown(*found)));
    std::size_t id = 0;
    natural(field, 0, vocab_size > 0 ? vocab_size - 1 : 0, id);
    value = static_cast<std::int32_t>(id);
  }

  void flag(const char* field, bool& value) {
    const json* found = find(field);
    if (found == nullptr) return;
    if (!found->is_boolean())
      return fail(errc::malformed, field, fmt::format("{}, expected true or false", shown(*found)));
    value = found->get<bool>();
  }

  /// Refuses a field that is there with another value than the one that changes nothing.
  void neutral(const char* field, const json& value) {
    const json* found = find(field);
    if (found != nullptr && *found != value)
      fail(errc::unsupported, field,
           fmt::format("{} would change the computation, supported is {} (or leaving it out)",
                       shown(*found), value.dump()));
  }

  static std::string shown(const json& value) {
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    return "found " + text;
  }

 private:
  const json& content_;
  std::string place_;
  std::optional<error> problem_;
};

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
};

const family_entry& entry_of(family kind) {
  const auto found = std::ranges::find(families, kind, &family_entry::kind);
  ORDERMOE_CHECK(found != std::end(families), "a family beyond all");
  return *found;
}

const char* expert_width_field(family kind) {
  const bool qwen = kind == family::qwen2_moe || kind == family::qwen3_moe;
  return qwen ? "moe_intermediate_size" : "intermediate_size";
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
    fields.token_id("eos_token_id", config.vocab_size, config.eos_id);
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
      fields.token_id("eos_token_id", config.vocab_size, config.eos_id);
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

}  // namespace

const char* to_string(family value) {
  return entry_of(value).model_type;
}

const char* architecture_of(family value) {
  return entry_of(value).architecture;
}

cost_profile own_costs(const model_config& config) {
  auto costs = measured_cost_profile(config.hidden_size, config.intermediate_size, config.n_heads,
                                     config.n_kv_heads, config.head_dim, config.n_experts,
                                     config.vocab_size);
  constexpr std::int64_t weight_bytes = 2, flops_per_weight = 2;
  const auto hidden = static_cast<std::int64_t>(config.hidden_size);
  const auto shared = static_cast<std::int64_t>(config.shared_intermediate_size);
  // Three matrices and the row of its gate.
  const auto weights = shared > 0 ? 3 * hidden * shared + hidden : 0;
  costs.attention_bytes += weights * weight_bytes;
  costs.attention_flops += weights * flops_per_weight;
  return costs;
}

result<model_config> read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  const auto text = read_file(path, std::size_t{1} << 20);
  if (!text) return text.error();
  return parse_model_config(*text, path.string());
}

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
  const bool qwen = config.kind == family::qwen2_moe || config.kind == family::qwen3_moe;
  const json* activation = fields.find("hidden_act");
  if (activation != nullptr && *activation != "silu" && *activation != "swish")
    fields.fail(errc::unsupported, "hidden_act",
                fmt::format("{}, supported is \"silu\"", field_reader::shown(*activation)));

  fields.natural("hidden_size", 1, 1 << 16, config.hidden_size);
  // Qwen's intermediate_size is of dense layers, which mlp_only_layers would name.
  fields.natural(expert_width_field(config.kind), 1, 1 << 18, config.intermediate_size);
  fields.natural("num_hidden_layers", 1, 1024, config.n_layers);
  fields.natural("num_attention_heads", 1, 1024, config.n_heads);
  // What an absent number of heads means differs between Qwen's releases; every checkpoint states
  // it.
  fields.natural("num_key_value_heads", 1, 1024, config.n_kv_heads,
                 qwen ? std::nullopt : std::optional(config.n_heads));
  fields.natural(n_experts_field(config.kind), 1, 4096, config.n_experts);
  fields.natural("num_experts_per_tok", 1, 64, config.top_k);
  fields.natural("vocab_size", 1, 1 << 24, config.vocab_size);
  fields.natural("max_position_embeddings", 1, 1 << 20, config.max_context);
  fields.positive("rms_norm_eps", 1.0, config.rms_norm_eps, qwen ? 1e-6 : 1e-5);
  fields.flag("tie_word_embeddings", config.tied_embeddings);
  read_family_fields(fields, config);
  if (!fields.ok()) return fields.problem();

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
  if (config.n_heads % config.n_kv_heads != 0)
    fields.fail(errc::out_of_range, "num_key_value_heads",
                fmt::format("{} does not divide num_attention_heads {}", config.n_kv_heads,
                            config.n_heads));
  if (config.top_k > config.n_experts)
    fields.fail(errc::out_of_range, "num_experts_per_tok",
                fmt::format("{} is more than {} {}", config.top_k, n_experts_field(config.kind),
                            config.n_experts));
  if (config.bos_id >= static_cast<std::int64_t>(config.vocab_size) ||
      config.eos_id >= static_cast<std::int64_t>(config.vocab_size))
    fields.fail(errc::out_of_range, "vocab_size",
                fmt::format("{} does not hold bos_token_id {} and eos_token_id {}",
                            config.vocab_size, config.bos_id, config.eos_id));

  // Qwen states a window and switches it off by use_sliding_window.
  if (const json* window = fields.find("sliding_window"); window != nullptr && !qwen) {
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
  if (const json* rope = fields.find("rope_parameters")) {
    const json plain = {{"rope_type", "default"}, {"rope_theta", config.rope_theta}};
    const bool states_theta_alone =
        rope->is_object() && fields.find("rope_theta") == nullptr && rope->contains("rope_theta") &&
        (*rope)["rope_theta"].is_number() && (*rope)["rope_theta"].get<double>() > 0;
    json stated = *rope;
    if (states_theta_alone) {
      config.rope_theta = (*rope)["rope_theta"].get<double>();
      stated["rope_theta"] = plain["rope_theta"];
    }
    if (stated.is_object() && !stated.contains("rope_type")) stated["rope_type"] = "default";
    if (stated != plain)
      fields.fail(errc::unsupported, "rope_parameters",
                  fmt::format("{} would change the computation, supported is rope_type default "
                              "with rope_theta",
                              field_reader::shown(*rope)));
  }
  // What other models add to the computation; found by name rather than ignored.
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
  fields.neutral("decoder_sparse_step", 1);
  fields.neutral("mlp_only_layers", json::array());
  fields.neutral("layer_types", json(std::vector<std::string>(config.n_layers, "full_attention")));
  for (const char* field : {"quantization_config", "clip_qkv", "attn_logit_softcapping",
                            "final_logit_softcapping", "logit_scale", "first_k_dense_replace"})
    if (const json* found = fields.find(field))
      fields.fail(errc::unsupported, field,
                  fmt::format("{} would change the computation, supported is null (or leaving it "
                              "out)",
                              field_reader::shown(*found)));
  if (!fields.ok()) return fields.problem();
  return config;
}

std::string model_config_json(const model_config& config) {
  const auto id_or_null = [](std::int32_t id) {
    return id < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(id);
  };
  nlohmann::ordered_json content = {
      {"architectures", {architecture_of(config.kind)}},
      {"model_type", to_string(config.kind)},
      {"hidden_act", "silu"},
      {"hidden_size", config.hidden_size},
      {expert_width_field(config.kind), config.intermediate_size},
      {"num_hidden_layers", config.n_layers},
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
      {"eos_token_id", id_or_null(config.eos_id)},
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
  if (config.kind == family::qwen2_moe || config.kind == family::qwen3_moe) {
    content["decoder_sparse_step"] = 1;
    content["mlp_only_layers"] = nlohmann::ordered_json::array();
    content["use_sliding_window"] = false;
  }
  if (config.kind == family::qwen3_moe) content["attention_bias"] = false;
  if (config.kind == family::olmoe) content["clip_qkv"] = nullptr;
  return content.dump(2) + "\n";
}

}  // namespace ordermoe::model
