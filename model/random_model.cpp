#include "model/random_model.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "config/files.hpp"
#include "config/random.hpp"
#include "model/safetensors.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t bytes_per_weight = 2;
constexpr std::size_t chunk_numbers = std::size_t{1} << 19;

/// A new file that is written from front to back; its bytes are on the disk after finish().
class growing_file {
 public:
  explicit growing_file(fs::path path)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
    if (file_ < 0) code_ = errno;
  }
  ~growing_file() {
    if (file_ >= 0) ::close(file_);
  }
  growing_file(const growing_file&) = delete;
  growing_file& operator=(const growing_file&) = delete;

  result<void> append(std::string_view bytes) {
    while (file_ >= 0 && code_ == 0 && !bytes.empty()) {
      const auto n = ::write(file_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        code_ = n < 0 ? errno : ENOSPC;
      else
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return outcome("writing");
  }

  result<void> finish() {
    if (file_ >= 0 && code_ == 0 && ::fsync(file_) != 0) code_ = errno;
    return outcome("flushing to disk");
  }

 private:
  result<void> outcome(const char* step) const {
    if (code_ == 0) return {};
    return error{errc::io,
                 fmt::format("{}: {} failed: {}; nothing is kept, make room or choose another "
                             "destination",
                             path_.string(), step, std::strerror(code_))};
  }

  fs::path path_;
  int file_;
  int code_ = 0;
};

/// A folder that is removed with all it holds unless it was renamed.
class building_folder {
 public:
  /// Beside the target, so that renaming stays within a file system.
  static result<fs::path> create(const fs::path& target) {
    std::error_code status;
    if (target.has_parent_path()) fs::create_directories(target.parent_path(), status);
    if (status)
      return error{errc::io, fmt::format("{}: cannot be made: {}; choose another destination",
                                         target.parent_path().string(), status.message())};
    std::string pattern = target.string() + ".XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr)
      return error{errc::io, fmt::format("{}: making a folder beside it failed: {}; choose another "
                                         "destination",
                                         target.string(), std::strerror(errno))};
    fs::permissions(pattern, static_cast<fs::perms>(0755), status);
    return fs::path(pattern);
  }

  explicit building_folder(fs::path path) : path_(std::move(path)) {}
  ~building_folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  building_folder(const building_folder&) = delete;
  building_folder& operator=(const building_folder&) = delete;

  const fs::path& path() const { return path_; }
  result<void> become(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      return error{errc::io,
                   fmt::format("{}: renaming to it failed: {}; nothing is kept, choose another "
                               "destination",
                               target.string(), std::strerror(errno))};
    path_.clear();
    return {};
  }

 private:
  fs::path path_;
};

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

std::string header_of(std::span<const tensor_plan> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::size_t offset = 0;
  for (const auto& tensor : tensors) {
    const std::size_t end = offset + tensor.size() * bytes_per_weight;
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    length[i] = static_cast<char>((static_cast<std::uint64_t>(text.size()) >> (8 * i)) & 0xff);
  return length + text;
}

/// Consecutive tensors that go to one file; a tensor larger than the limit has one for itself.
std::vector<std::span<const tensor_plan>> shards_of(std::span<const tensor_plan> tensors,
                                                    std::size_t shard_bytes) {
  std::vector<std::span<const tensor_plan>> shards;
  std::size_t first = 0, bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t more = tensors[i].size() * bytes_per_weight;
    if (i > first && bytes + more > shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += more;
  }
  shards.push_back(tensors.subspan(first));
  return shards;
}

}  // namespace

std::size_t tensor_plan::size() const {
  std::size_t n = 1;
  for (const std::size_t side : shape) n *= side;
  return n;
}

std::vector<tensor_plan> tensors_of(const model_config& config) {
  const std::size_t hidden = config.hidden_size;
  const std::size_t width = config.n_heads * config.head_dim;
  const std::size_t kv_width = config.kv_width();
  const bool mixtral = config.kind == family::mixtral;
  const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(config.n_layers));
  std::vector<tensor_plan> all;
  const auto matrix = [&](std::string name, std::size_t n_out, std::size_t n_in, double scale) {
    all.push_back({std::move(name), {n_out, n_in}, 0.0, scale / std::sqrt(n_in)});
  };
  const auto norm = [&](std::string name, std::size_t n) {
    all.push_back({std::move(name), {n}, 1.0, 0.1});
  };
  const auto bias = [&](std::string name, std::size_t n) {
    all.push_back({std::move(name), {n}, 0.0, 0.2});
  };
  all.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}, 0.0, 1.0});
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    const std::string attention = layer + "self_attn.";
    norm(layer + "input_layernorm.weight", hidden);
    matrix(attention + "q_proj.weight", width, hidden, 1.0);
    matrix(attention + "k_proj.weight", kv_width, hidden, 1.0);
    matrix(attention + "v_proj.weight", kv_width, hidden, 1.0);
    if (config.query_key_value_bias) {
      bias(attention + "q_proj.bias", width);
      bias(attention + "k_proj.bias", kv_width);
      bias(attention + "v_proj.bias", kv_width);
    }
    if (config.qk_norm != query_key_norm::none) {
      const bool per_head = config.qk_norm == query_key_norm::per_head;
      norm(attention + "q_norm.weight", per_head ? config.head_dim : width);
      norm(attention + "k_norm.weight", per_head ? config.head_dim : kv_width);
    }
    matrix(attention + "o_proj.weight", hidden, width, residual);
    norm(layer + "post_attention_layernorm.weight", hidden);
    const std::string block = layer + (mixtral ? "block_sparse_moe." : "mlp.");
    const auto expert = [&](const std::string& place, std::size_t inner) {
      matrix(place + (mixtral ? "w1.weight" : "gate_proj.weight"), inner, hidden, 1.0);
      matrix(place + (mixtral ? "w3.weight" : "up_proj.weight"), inner, hidden, 1.0);
      // silu(a) * b of unit normal a and b has a root mean square of 0.6.
      matrix(place + (mixtral ? "w2.weight" : "down_proj.weight"), hidden, inner, residual / 0.6);
    };
    // Twice the scale of other matrices: a router that prefers some experts clearly.
    matrix(block + "gate.weight", config.n_experts, hidden, 2.0);
    for (std::size_t e = 0; e < config.n_experts; ++e)
      expert(fmt::format("{}experts.{}.", block, e), config.intermediate_size);
    if (config.shared_intermediate_size > 0) {
      expert(block + "shared_expert.", config.shared_intermediate_size);
      matrix(block + "shared_expert_gate.weight", 1, hidden, 1.0);
    }
  }
  norm("model.norm.weight", hidden);
  if (!config.tied_embeddings) matrix("lm_head.weight", config.vocab_size, hidden, 2.0);
  return all;
}

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
  }
  if (n_layers > 0) shape.n_layers = n_layers;
  return shape;
}

model_config small_shape(family kind) {
  model_config shape = published_shape(kind, 3);
  shape.hidden_size = 64;
  shape.intermediate_size = 48;
  if (shape.shared_intermediate_size > 0) shape.shared_intermediate_size = 112;
  shape.n_heads = 4;
  shape.n_kv_heads = kind == family::olmoe ? 4 : 2;
  // Qwen3's heads together are wider than the hidden state.
  shape.head_dim = kind == family::qwen3_moe ? 24 : 16;
  shape.n_experts = 8;
  shape.top_k = kind == family::mixtral ? 2 : 4;
  shape.vocab_size = 512;
  shape.max_context = 512;
  return shape;
}

result<random_model_report> write_random_model(const fs::path& folder,
                                               const random_model_options& options) {
  std::error_code status;
  const fs::path target = folder.has_filename() ? folder : folder.parent_path();
  if (fs::exists(target, status) &&
      !(fs::is_directory(target, status) && fs::is_empty(target, status)))
    return error{errc::io, fmt::format("{}: is there already and is no empty folder; remove it or "
                                       "choose another destination",
                                       target.string())};
  const auto tensors = tensors_of(options.shape);
  random_model_report report;
  report.n_tensors = tensors.size();
  for (const auto& tensor : tensors) report.weight_bytes += tensor.size() * bytes_per_weight;

  auto made = building_folder::create(target);
  if (!made) return made.error();
  building_folder building(*made);
  const auto room = fs::space(building.path(), status);
  if (!status && room.available < report.weight_bytes)
    return error{errc::io,
                 fmt::format("{}: the weights take {} bytes, the disk has room for {}; ask for "
                             "fewer layers or choose another destination",
                             target.string(), report.weight_bytes, room.available)};

  const auto shards = shards_of(tensors, options.shard_bytes);
  report.n_files = shards.size();
  nlohmann::ordered_json weight_map;
  std::vector<float> numbers(chunk_numbers);
  std::size_t done = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    growing_file file(building.path() / name);
    if (auto written = file.append(header_of(shards[s])); !written) return written.error();
    for (const auto& tensor : shards[s]) {
      weight_map[tensor.name] = name;
      for (std::size_t first = 0; first < tensor.size(); first += chunk_numbers) {
        if (options.should_stop && options.should_stop())
          return error{errc::interrupted,
                       fmt::format("{}: interrupted; nothing is kept", target.string())};
        const auto chunk = std::span(numbers).first(std::min(chunk_numbers, tensor.size() - first));
        draw(tensor, options.seed, first, chunk);
        if (auto written = file.append(to_bytes(chunk, tensor_type::bf16)); !written)
          return written.error();
        done += chunk.size() * bytes_per_weight;
        if (options.progress)
          options.progress(static_cast<double>(done) / static_cast<double>(report.weight_bytes));
      }
    }
    if (auto flushed = file.finish(); !flushed) return flushed.error();
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", report.weight_bytes}}},
                                          {"weight_map", weight_map}};
    if (auto written =
            write_file(building.path() / "model.safetensors.index.json", index.dump(2) + "\n");
        !written)
      return written.error();
  }
  if (auto written = write_file(building.path() / "tokenizer.model", options.tokenizer); !written)
    return written.error();
  if (auto written = write_file(building.path() / "config.json", model_config_json(options.shape));
      !written)
    return written.error();
  if (auto renamed = building.become(target); !renamed) return renamed.error();
  return report;
}

}  // namespace ordermoe::model
