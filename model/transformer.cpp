#include "model/transformer.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "model/expert_weights.hpp"
#include "model/kernels.hpp"
#include "model/safetensors.hpp"

namespace ordermoe::model {

namespace {

/// Angles of the first positions are tabulated, within this many numbers; later ones are computed
/// when needed, by the same function.
constexpr std::size_t most_angles = std::size_t{1} << 22;

at::Tensor vector_of(std::span<const float> numbers) {
  at::Tensor content = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kFloat);
  std::ranges::copy(numbers, content.data_ptr<float>());
  return content;
}

struct layer_weights {
  at::Tensor attention_norm;   ///< [hidden_size]
  projection query_key_value;  ///< q, k, v one after the other.
  at::Tensor bias;             ///< Of q, k, v, [(n_heads + 2 * n_kv_heads) * head_dim], or nothing.
  at::Tensor query_norm,
      key_norm;  ///< [head_dim], or [n_heads * head_dim] and [kv_width], or nothing.
  projection output;
  at::Tensor expert_norm;  ///< [hidden_size]
  projection router;
  std::vector<expert_weights> experts;
  expert_weights shared;   ///< Nothing where the family has none.
  projection shared_gate;  ///< [1, hidden_size]
};

/// The names of a family's tensors in a layer, behind "model.layers.N.".
struct layer_names {
  const char* block;  ///< Of router and experts.
  const char *gate, *up, *down;
};

layer_names names_of(family kind) {
  if (kind == family::mixtral) return {"block_sparse_moe", "w1", "w3", "w2"};
  return {"mlp", "gate_proj", "up_proj", "down_proj"};
}

/// A LibTorch exception in a computation that load() has prepared is not something a caller can
/// expect.
template <class Body>
void computing(const char* what, Body body) {
  try {
    body();
  } catch (const c10::Error& problem) {
    ORDERMOE_CHECK(false, fmt::format("{}: LibTorch: {}", what, problem.what_without_backtrace()));
  }
}

}  // namespace

struct transformer::weights {
  model_config config;
  at::Device device{at::kCPU};
  at::Tensor embedding;  ///< [vocab_size, hidden_size] on the host.
  std::vector<layer_weights> layers;
  at::Tensor final_norm;
  projection head;
  std::vector<float> angles;  ///< Per tabulated position cosines, then sines: [n, 2, head_dim / 2].

  /// Cosines, then sines of position * theta^(-2 i / head_dim), in double precision, rounded once.
  void angles_at(std::size_t position, float* numbers) const {
    const std::size_t half = config.head_dim / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
      const double angle = static_cast<double>(position) * std::pow(config.rope_theta, exponent);
      numbers[i] = static_cast<float>(std::cos(angle));
      numbers[half + i] = static_cast<float>(std::sin(angle));
    }
  }
};

transformer::transformer(std::unique_ptr<weights> content) : weights_(std::move(content)) {}
transformer::~transformer() = default;

const model_config& transformer::config() const {
  return weights_->config;
}

namespace {

/// Reads tensors by name and shape, keeps the first error, and knows which names were asked for.
class weight_reader {
 public:
  explicit weight_reader(std::shared_ptr<const checkpoint> source) : source_(std::move(source)) {}

  const std::optional<error>& problem() const { return problem_; }

  /// Zeros after the first error, so that loading can run to its end.
  std::vector<float> read(const std::string& name, std::vector<std::size_t> shape) {
    asked_.insert(name);
    if (!problem_) {
      auto numbers = source_->read(name, shape);
      if (!numbers) {
        problem_ = numbers.error();
      } else if (!std::ranges::all_of(*numbers, [](float x) { return std::isfinite(x); })) {
        problem_ = error{errc::out_of_range,
                         fmt::format("{}: tensor '{}' has a number that is not finite; fetch or "
                                     "train the weights again",
                                     source_->find(name)->file.string(), name)};
      } else {
        return std::move(*numbers);
      }
    }
    return {};
  }

  bool has(const std::string& name) const { return source_->find(name) != nullptr; }

  void check_nothing_else() {
    if (problem_) return;
    for (const auto& [name, view] : source_->tensors())
      if (!asked_.contains(name)) {
        problem_ = error{errc::mismatch,
                         fmt::format("{}: tensor '{}' has no place in the model that config.json "
                                     "describes; config.json and weights must be of the same model",
                                     view.file.string(), name)};
        return;
      }
  }

 private:
  std::shared_ptr<const checkpoint> source_;
  std::set<std::string> asked_;
  std::optional<error> problem_;
};

}  // namespace

result<std::shared_ptr<const transformer>> transformer::load(const std::filesystem::path& folder,
                                                             const load_options& options) {
  auto config = read_model_config(folder);
  if (!config) return config.error();
  auto source = checkpoint::open_folder(folder);
  if (!source) return source.error();
  const auto usable = [&]() -> result<at::Device> {
    try {
      const at::Device device(options.device);
      static_cast<void>(at::empty({1}, at::TensorOptions().device(device)).to(at::kCPU));
      return device;
    } catch (const std::exception& problem) {
      const std::string what = problem.what();
      return error{errc::unsupported, fmt::format("device '{}': {}; 'cpu' always works",
                                                  options.device, what.substr(0, what.find('\n')))};
    }
  };
  auto device = usable();
  if (!device) return device.error();
  const compute_place place{options.device,
                            device->is_cpu() ? options.linear : linear_path::libtorch};

  const model_config& shape = *config;
  const std::size_t hidden = shape.hidden_size;
  const std::size_t width = shape.n_heads * shape.head_dim;
  const layer_names names = names_of(shape.kind);
  weight_reader reader(*source);
  auto content = std::make_unique<weights>();
  content->config = shape;
  content->device = *device;
  try {
    const auto project = [&](const std::vector<float>& numbers, std::size_t n_out,
                             std::size_t n_in) {
      return reader.problem() ? projection() : projection(numbers, n_out, n_in, place);
    };
    const auto join = [](std::vector<float> numbers, const std::vector<float>& more) {
      numbers.insert(numbers.end(), more.begin(), more.end());
      return numbers;
    };
    const auto embedding = reader.read("model.embed_tokens.weight", {shape.vocab_size, hidden});
    content->embedding = vector_of(embedding);
    for (std::size_t l = 0; l < shape.n_layers && !reader.problem(); ++l) {
      const std::string prefix = fmt::format("model.layers.{}.", l);
      layer_weights layer;
      layer.attention_norm = vector_of(reader.read(prefix + "input_layernorm.weight", {hidden}));
      auto qkv = reader.read(prefix + "self_attn.q_proj.weight", {width, hidden});
      qkv = join(std::move(qkv),
                 reader.read(prefix + "self_attn.k_proj.weight", {shape.kv_width(), hidden}));
      qkv = join(std::move(qkv),
                 reader.read(prefix + "self_attn.v_proj.weight", {shape.kv_width(), hidden}));
      layer.query_key_value = project(qkv, width + 2 * shape.kv_width(), hidden);
      if (shape.query_key_value_bias) {
        auto bias = reader.read(prefix + "self_attn.q_proj.bias", {width});
        bias = join(std::move(bias),
                    reader.read(prefix + "self_attn.k_proj.bias", {shape.kv_width()}));
        bias = join(std::move(bias),
                    reader.read(prefix + "self_attn.v_proj.bias", {shape.kv_width()}));
        layer.bias = vector_of(bias);
      }
      if (shape.qk_norm != query_key_norm::none) {
        const bool per_head = shape.qk_norm == query_key_norm::per_head;
        layer.query_norm = vector_of(
            reader.read(prefix + "self_attn.q_norm.weight", {per_head ? shape.head_dim : width}));
        layer.key_norm = vector_of(reader.read(prefix + "self_attn.k_norm.weight",
                                               {per_head ? shape.head_dim : shape.kv_width()}));
      }
      layer.output =
          project(reader.read(prefix + "self_attn.o_proj.weight", {hidden, width}), hidden, width);
      layer.expert_norm =
          vector_of(reader.read(prefix + "post_attention_layernorm.weight", {hidden}));
      layer.router = project(reader.read(fmt::format("{}{}.gate.weight", prefix, names.block),
                                         {shape.n_experts, hidden}),
                             shape.n_experts, hidden);
      const auto expert = [&](const std::string& name, std::size_t inner) -> expert_weights {
        const auto gate =
            reader.read(fmt::format("{}.{}.weight", name, names.gate), {inner, hidden});
        const auto up = reader.read(fmt::format("{}.{}.weight", name, names.up), {inner, hidden});
        const auto down =
            reader.read(fmt::format("{}.{}.weight", name, names.down), {hidden, inner});
        if (reader.problem()) return {};
        return expert_weights(gate, up, down, hidden, inner, place);
      };
      for (std::size_t e = 0; e < shape.n_experts && !reader.problem(); ++e)
        layer.experts.push_back(expert(fmt::format("{}{}.experts.{}", prefix, names.block, e),
                                       shape.intermediate_size));
      if (shape.shared_intermediate_size > 0) {
        layer.shared = expert(fmt::format("{}{}.shared_expert", prefix, names.block),
                              shape.shared_intermediate_size);
        layer.shared_gate =
            project(reader.read(fmt::format("{}{}.shared_expert_gate.weight", prefix, names.block),
                                {1, hidden}),
                    1, hidden);
      }
      content->layers.push_back(std::move(layer));
    }
    content->final_norm = vector_of(reader.read("model.norm.weight", {hidden}));
    if (shape.tied_embeddings && !reader.has("lm_head.weight")) {
      content->head = project(embedding, shape.vocab_size, hidden);
    } else {
      const auto head = reader.read("lm_head.weight", {shape.vocab_size, hidden});
      if (!reader.problem() && shape.tied_embeddings && head != embedding)
        return error{errc::mismatch,
                     fmt::format("{}: tensor 'lm_head.weight' differs from the embedding, though "
                                 "config.json says tie_word_embeddings; correct one of them",
                                 (*source)->place().string())};
      content->head = project(head, shape.vocab_size, hidden);
    }
    reader.check_nothing_else();
  } catch (const c10::Error& problem) {
    return error{errc::failed,
                 fmt::format("{}: LibTorch cannot hold the weights on '{}': {}; use a smaller "
                             "model or another device",
                             folder.string(), options.device, problem.what_without_backtrace())};
  } catch (const std::bad_alloc&) {
    return error{errc::failed, fmt::format("{}: not enough memory for the weights; use a smaller "
                                           "model or a larger machine",
                                           folder.string())};
  }
  if (reader.problem()) return *reader.problem();

  const std::size_t tabulated = std::min(shape.max_context, most_angles / shape.head_dim);
  content->angles.resize(tabulated * shape.head_dim);
  for (std::size_t p = 0; p < tabulated; ++p)
    content->angles_at(p, content->angles.data() + p * shape.head_dim);
  return std::shared_ptr<const transformer>(new transformer(std::move(content)));
}

void transformer::embed(std::span<const std::int32_t> ids, std::span<float> hidden) const {
  const std::size_t width = config().hidden_size;
  ORDERMOE_CHECK(hidden.size() == ids.size() * width, "hidden is not [n_ids, hidden_size]");
  const float* table = weights_->embedding.data_ptr<float>();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ORDERMOE_CHECK(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < config().vocab_size,
                   fmt::format("token {} of {}", ids[i], config().vocab_size));
    std::copy_n(table + static_cast<std::size_t>(ids[i]) * width, width, hidden.data() + i * width);
  }
}

void transformer::attend(layer_id layer, std::span<const attention_row> rows,
                         std::span<float> hidden) const {
  const model_config& shape = config();
  const std::size_t n = rows.size();
  ORDERMOE_CHECK(layer.index() < shape.n_layers, fmt::format("layer {}", layer.index()));
  ORDERMOE_CHECK(hidden.size() == n * shape.hidden_size, "hidden is not [n_rows, hidden_size]");
  const layer_weights& content = weights_->layers[layer.index()];
  const kernel_set& set = kernels();
  const std::size_t width = shape.n_heads * shape.head_dim;
  const std::size_t kv_width = shape.kv_width();
  const std::size_t joint = width + 2 * kv_width;
  const std::size_t half = shape.head_dim / 2;
  const float* norm = content.attention_norm.data_ptr<float>();
  const auto epsilon = static_cast<float>(shape.rms_norm_eps);

  thread_local scratch_buffer normed_room, joint_room, mixed_room, score_room, angle_room;
  float* projected = joint_room.room(n * joint);
  float* spare_angles = angle_room.room(shape.head_dim);
  computing("attention", [&] {
    for (std::size_t start = 0; start < n; start += most_rows) {
      const std::size_t count = std::min(most_rows, n - start);
      float* normed = normed_room.room(count * shape.hidden_size);
      for (std::size_t i = 0; i < count; ++i)
        set.rms_norm(hidden.data() + (start + i) * shape.hidden_size, norm, epsilon,
                     normed + i * shape.hidden_size, shape.hidden_size);
      content.query_key_value.apply(normed, projected + start * joint, count);
    }
  });
  if (content.bias.defined()) {
    const float* bias = content.bias.data_ptr<float>();
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t k = 0; k < joint; ++k) projected[i * joint + k] += bias[k];
  }
  if (content.query_norm.defined()) {
    const bool per_head = shape.qk_norm == query_key_norm::per_head;
    const auto normalise = [&](float* numbers, std::size_t size, const at::Tensor& weight) {
      const std::size_t step = per_head ? shape.head_dim : size;
      for (std::size_t at = 0; at < size; at += step)
        set.rms_norm(numbers + at, weight.data_ptr<float>(), epsilon, numbers + at, step);
    };
    for (std::size_t i = 0; i < n; ++i) {
      normalise(projected + i * joint, width, content.query_norm);
      normalise(projected + i * joint + width, kv_width, content.key_norm);
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const attention_row& row = rows[i];
    ORDERMOE_CHECK(row.cache != nullptr && row.cache->row_size() == shape.kv_row_size(),
                   "a row without a cache of this model's rows");
    float* query = projected + i * joint;
    const float* angles = weights_->angles.data() + row.position * shape.head_dim;
    if ((row.position + 1) * shape.head_dim > weights_->angles.size()) {
      weights_->angles_at(row.position, spare_angles);
      angles = spare_angles;
    }
    // Keys lie behind the queries, so both are rotated as one run of heads.
    set.rotate(angles, angles + half, query, shape.n_heads + shape.n_kv_heads, shape.head_dim);
    row.cache->put(row.position, {query + width, 2 * kv_width});
  }
  const attention_shape heads{shape.n_heads, shape.n_kv_heads, shape.head_dim};
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    float* mixed = mixed_room.room(count * (width + shape.hidden_size));
    float* update = mixed + count * width;
    for (std::size_t i = 0; i < count; ++i) {
      const attention_row& row = rows[start + i];
      ORDERMOE_CHECK(row.cache->contiguous() > row.position,
                     fmt::format("attention at position {} with only the first {} rows there",
                                 row.position, row.cache->contiguous()));
      const std::size_t seen = row.position + 1;
      float* scores = score_room.room(attention_scratch(seen));
      set.attention(heads, projected + (start + i) * joint, {row.cache->row(0).data(), seen},
                    scores, mixed + i * width);
    }
    computing("attention", [&] { content.output.apply(mixed, update, count); });
    float* target = hidden.data() + start * shape.hidden_size;
    for (std::size_t i = 0; i < count * shape.hidden_size; ++i) target[i] += update[i];
  }
}

void transformer::route(layer_id layer, std::span<float> hidden, std::span<float> normed,
                        std::span<float> logits) const {
  const model_config& shape = config();
  const std::size_t width = shape.hidden_size;
  const std::size_t n = hidden.size() / width;
  ORDERMOE_CHECK(layer.index() < shape.n_layers, fmt::format("layer {}", layer.index()));
  ORDERMOE_CHECK(normed.size() == n * width && hidden.size() == n * width,
                 "normed or hidden is not [n, hidden_size]");
  ORDERMOE_CHECK(logits.size() == n * shape.n_experts, "logits are not [n, n_experts]");
  const layer_weights& content = weights_->layers[layer.index()];
  const float* norm = content.expert_norm.data_ptr<float>();
  const auto epsilon = static_cast<float>(shape.rms_norm_eps);
  for (std::size_t i = 0; i < n; ++i)
    kernels().rms_norm(hidden.data() + i * width, norm, epsilon, normed.data() + i * width, width);
  computing("the router", [&] { content.router.apply(normed.data(), logits.data(), n); });
  if (shape.shared_intermediate_size == 0) return;

  thread_local scratch_buffer output_room, weight_room;
  computing("the shared expert", [&] {
    for (std::size_t start = 0; start < n; start += most_rows) {
      const std::size_t count = std::min(most_rows, n - start);
      float* output = output_room.room(count * width);
      float* weight = weight_room.room(count);
      content.shared.apply(normed.data() + start * width, output, count);
      content.shared_gate.apply(normed.data() + start * width, weight, count);
      for (std::size_t i = 0; i < count; ++i) {
        const auto gate =
            static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(weight[i]))));
        float* target = hidden.data() + (start + i) * width;
        for (std::size_t k = 0; k < width; ++k) target[k] += gate * output[i * width + k];
      }
    }
  });
}

void transformer::run_expert(layer_id layer, expert_id expert, std::span<const float> normed,
                             std::span<float> output) const {
  const model_config& shape = config();
  const std::size_t width = shape.hidden_size;
  const std::size_t n = normed.size() / width;
  ORDERMOE_CHECK(layer.index() < shape.n_layers && expert.index() < shape.n_experts,
                 fmt::format("expert {} of layer {}", expert.index(), layer.index()));
  ORDERMOE_CHECK(normed.size() == n * width && output.size() == n * width,
                 "normed or output is not [n, hidden_size]");
  const expert_weights& content = weights_->layers[layer.index()].experts[expert.index()];
  computing("an expert", [&] { content.apply(normed.data(), output.data(), n); });
}

void transformer::head(std::span<const float> hidden, std::span<float> logits) const {
  const model_config& shape = config();
  const std::size_t width = shape.hidden_size;
  const std::size_t n = hidden.size() / width;
  ORDERMOE_CHECK(hidden.size() == n * width && logits.size() == n * shape.vocab_size,
                 "hidden is not [n, hidden_size] or logits are not [n, vocab_size]");
  const float* norm = weights_->final_norm.data_ptr<float>();
  const auto epsilon = static_cast<float>(shape.rms_norm_eps);
  thread_local scratch_buffer normed_room;
  computing("the output projection", [&] {
    for (std::size_t start = 0; start < n; start += most_rows) {
      const std::size_t count = std::min(most_rows, n - start);
      float* normed = normed_room.room(count * width);
      for (std::size_t i = 0; i < count; ++i)
        kernels().rms_norm(hidden.data() + (start + i) * width, norm, epsilon, normed + i * width,
                           width);
      weights_->head.apply(normed, logits.data() + start * shape.vocab_size, count);
    }
  });
}

void weigh_slots(std::span<float> sum, std::span<const float> gates,
                 std::span<const float* const> outputs) {
  ORDERMOE_CHECK(gates.size() == outputs.size() && !gates.empty(),
                 "gates and outputs differ in number, or there are none");
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = gates[0] * outputs[0][i];
  for (std::size_t j = 1; j < gates.size(); ++j) {
    const float gate = gates[j];
    const float* output = outputs[j];
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gate * output[i];
  }
}

void add_slots(std::span<float> hidden, std::span<const float> gates,
               std::span<const float* const> outputs) {
  std::vector<float> sum(hidden.size());
  weigh_slots(sum, gates, outputs);
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] += sum[i];
}

}  // namespace ordermoe::model
