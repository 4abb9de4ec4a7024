#include "model/checkpoint/random_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "config/random.hpp"
#include "model/architecture/tensor_plan.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t chunk_numbers = std::size_t{1} << 19;

/// FNV-1a, 64 bits.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

/// Uniform numbers of the plan's mean and deviation; four of them share 64 random bits. `first` is
/// a multiple of 4.
void draw(const tensor_plan& tensor, std::uint64_t seed, std::uint64_t first,
          std::span<float> numbers) {
  const std::uint64_t stream = hash_of(tensor.name);
  const double reach = tensor.deviation * std::sqrt(3.0);
  for (std::size_t i = 0; i < numbers.size(); i += 4) {
    const std::uint64_t bits = random_bits(seed, stream, (first + i) / 4);
    for (std::size_t j = 0; j < 4 && i + j < numbers.size(); ++j) {
      const auto part = static_cast<double>((bits >> (16 * j)) & 0xffff);
      numbers[i + j] = static_cast<float>(tensor.mean + reach * ((part + 0.5) * 0x1.0p-15 - 1.0));
    }
  }
}

}  // namespace

namespace {

/// Encoder and decoder of `layers` layers each, every second block sparse, as in the published
/// base models.
void set_stacks(model_config& shape, std::size_t layers) {
  shape.sparse_blocks.clear();
  for (int stack = 0; stack < 2; ++stack)
    for (std::size_t l = 0; l < layers; ++l) shape.sparse_blocks.push_back(2 * l + 1);
  shape.n_layers = shape.sparse_blocks.size();
  shape.encoder_decoder->encoder_layers = layers;
  shape.encoder_decoder->encoder_blocks = 2 * layers;
}

}  // namespace

model_config published_shape(family kind, std::size_t n_layers) {
  model_config shape;
  shape.kind = kind;
  shape.head_dim = 128;
  switch (kind) {
    case family::mixtral:
      shape.hidden_size = 4096;
      shape.intermediate_size = 14336;
      shape.n_layers = 32;
      shape.n_heads = 32;
      shape.n_kv_heads = 8;
      shape.n_experts = 8;
      shape.top_k = 2;
      shape.vocab_size = 32000;
      shape.max_context = 32768;
      shape.rms_norm_eps = 1e-5;
      shape.rope_theta = 1e6;
      break;
    case family::qwen2_moe:
      shape.hidden_size = 2048;
      shape.intermediate_size = 1408;
      shape.shared_intermediate_size = 5632;
      shape.query_key_value_bias = true;
      shape.gates = gate_rule::probabilities;
      shape.n_layers = 24;
      shape.n_heads = 16;
      shape.n_kv_heads = 16;
      shape.n_experts = 60;
      shape.top_k = 4;
      shape.vocab_size = 151936;
      shape.max_context = 8192;
      shape.rms_norm_eps = 1e-6;
      shape.rope_theta = 1e6;
      break;
    case family::qwen3_moe:
      shape.hidden_size = 2048;
      shape.intermediate_size = 768;
      shape.qk_norm = query_key_norm::per_head;
      shape.n_layers = 48;
      shape.n_heads = 32;
      shape.n_kv_heads = 4;
      shape.n_experts = 128;
      shape.top_k = 8;
      shape.vocab_size = 151936;
      shape.max_context = 40960;
      shape.rms_norm_eps = 1e-6;
      shape.rope_theta = 1e6;
      break;
    case family::olmoe:
      shape.hidden_size = 2048;
      shape.intermediate_size = 1024;
      shape.qk_norm = query_key_norm::whole;
      shape.gates = gate_rule::probabilities;
      shape.n_layers = 16;
      shape.n_heads = 16;
      shape.n_kv_heads = 16;
      shape.n_experts = 64;
      shape.top_k = 8;
      shape.vocab_size = 50304;
      shape.max_context = 4096;
      shape.rms_norm_eps = 1e-5;
      shape.rope_theta = 1e4;
      break;
    case family::switch_transformers:
      shape.hidden_size = 768;
      shape.intermediate_size = shape.dense_intermediate_size = 3072;
      shape.gates = gate_rule::probabilities;
      shape.n_heads = 12;
      shape.n_kv_heads = 12;
      shape.head_dim = 64;
      shape.n_experts = 8;
      shape.top_k = 1;
      shape.vocab_size = 32128;
      shape.max_context = 1024;
      shape.rms_norm_eps = 1e-6;
      shape.tied_embeddings = true;
      shape.encoder_decoder = {.decoder_start_id = 0,
                               .expert_capacity = 64,
                               .relative_buckets = 32,
                               .relative_max_distance = 128};
      set_stacks(shape, n_layers > 0 ? n_layers : 6);
      return shape;
  }
  if (n_layers > 0) shape.n_layers = n_layers;
  return shape;
}

model_config small_shape(family kind) {
  const bool two_stacks = kind == family::switch_transformers;
  model_config shape = published_shape(kind, two_stacks ? 2 : 3);
  shape.hidden_size = 64;
  shape.intermediate_size = 48;
  if (shape.shared_intermediate_size > 0) shape.shared_intermediate_size = 112;
  shape.n_heads = 4;
  shape.n_kv_heads = kind == family::olmoe || two_stacks ? 4 : 2;
  // Qwen3's heads together are wider than the hidden state.
  shape.head_dim = kind == family::qwen3_moe ? 24 : 16;
  shape.n_experts = 8;
  shape.top_k = two_stacks ? 1 : kind == family::mixtral ? 2 : 4;
  shape.vocab_size = 512;
  shape.max_context = 512;
  if (two_stacks) {
    shape.dense_intermediate_size = shape.intermediate_size;
    // Few places, so that a text of thirty tokens fills some experts.
    shape.encoder_decoder->expert_capacity = 4;
  }
  return shape;
}

result<written_model> write_random_model(const fs::path& folder,
                                         const random_model_options& options) {
  const auto plans = tensors_of(options.shape);
  std::vector<tensor_entry> entries;
  std::map<std::string_view, const tensor_plan*> by_name;
  double all_bytes = 0, done = 0;
  for (const auto& plan : plans) {
    entries.push_back({plan.name, tensor_type::bf16, plan.shape});
    by_name[plan.name] = &plan;
    all_bytes += static_cast<double>(entries.back().n_bytes());
  }
  auto begun = checkpoint_writer::begin(folder, std::move(entries), options.shard_bytes);
  if (!begun) return begun.error();
  checkpoint_writer& writer = **begun;
  std::vector<float> numbers(chunk_numbers);
  for (const auto& entry : writer.tensors()) {
    const tensor_plan& plan = *by_name.at(entry.name);
    for (std::size_t first = 0; first < plan.size(); first += chunk_numbers) {
      if (options.should_stop && options.should_stop())
        return error{errc::interrupted,
                     fmt::format("{}: interrupted; nothing is kept", folder.string())};
      const auto chunk = std::span(numbers).first(std::min(chunk_numbers, plan.size() - first));
      draw(plan, options.seed, first, chunk);
      const std::string bytes = to_bytes(chunk, entry.type);
      if (auto written = writer.append(bytes); !written) return written.error();
      done += static_cast<double>(bytes.size());
      if (options.progress) options.progress(done / all_bytes);
    }
  }
  if (auto written = writer.add_file("tokenizer.model", options.tokenizer); !written)
    return written.error();
  if (auto written = writer.add_file("config.json", model_config_json(options.shape)); !written)
    return written.error();
  return writer.finish();
}

}  // namespace ordermoe::model
