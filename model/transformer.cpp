#include "model/transformer.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "model/expert_weights.hpp"
#include "model/kernels.hpp"
#include "model/matrix_source.hpp"
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

/// Rows that are looked up one at a time, kept in bf16 where that keeps every number.
class row_table {
 public:
  row_table() = default;
  explicit row_table(matrix_source& source)
      : width_(source.n_in()),
        type_(source.fits_bf16() ? tensor_type::bf16 : tensor_type::f32),
        bytes_(source.n_out() * row_bytes()),
        memory_(weight_memory(bytes_)) {
    constexpr std::size_t rows_at_once = 64;
    std::vector<float> wide(rows_at_once * width_);
    auto* target = static_cast<std::byte*>(memory_.get());
    for (std::size_t first = 0; first < source.n_out(); first += rows_at_once) {
      const std::size_t n = std::min(rows_at_once, source.n_out() - first);
      source.begin_rows(first, n);
      for (std::size_t i = first; i < first + n; ++i, target += row_bytes()) {
        const auto stored = source.row(i);
        if (stored.type == type_) {
          std::memcpy(target, stored.bytes.data(), stored.bytes.size());
          continue;
        }
        const auto numbers = std::span(wide).first(width_);
        widen(stored.type, stored.bytes, numbers);
        const std::string narrow = to_bytes(numbers, type_);
        std::memcpy(target, narrow.data(), narrow.size());
      }
      source.end_rows(first, n);
    }
  }

  std::size_t bytes() const { return bytes_; }
  void copy_row(std::size_t index, float* row) const {
    const auto* start = static_cast<const std::byte*>(memory_.get()) + index * row_bytes();
    widen(type_, {start, row_bytes()}, {row, width_});
  }

 private:
  std::size_t row_bytes() const { return width_ * bytes_per_number(type_); }

  std::size_t width_ = 0;
  tensor_type type_ = tensor_type::f32;
  std::size_t bytes_ = 0;
  std::shared_ptr<void> memory_;
};

struct layer_weights {
  at::Tensor attention_norm;   ///< [hidden_size]
  projection query_key_value;  ///< q, k, v one after the other.
  at::Tensor bias;             ///< Of q, k, v, [(n_heads + 2 * n_kv_heads) * head_dim], or nothing.
  at::Tensor query_norm,
      key_norm;  ///< [head_dim], or [n_heads * head_dim] and [kv_width], or nothing.
  projection output;
  at::Tensor expert_norm;  ///< [hidden_size]
  projection router;
  std::vector<expert_weights> experts;  ///< Those that are not hosted hold nothing.
  expert_weights shared;                ///< Nothing where the family has none.
  projection shared_gate;               ///< [1, hidden_size]
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
  row_table embedding;  ///< [vocab_size, hidden_size] on the host.
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

bool transformer::hosts(layer_id layer, expert_id expert) const {
  ORDERMOE_CHECK(layer.index() < config().n_layers && expert.index() < config().n_experts,
                 fmt::format("expert {} of layer {}", expert.index(), layer.index()));
  return weights_->layers[layer.index()].experts[expert.index()].there();
}

std::size_t transformer::resident_bytes() const {
  const auto of = [](const at::Tensor& content) {
    return content.defined() ? content.nbytes() : 0;
  };
  const weights& all = *weights_;
  std::size_t bytes = all.embedding.bytes() + all.head.bytes() + of(all.final_norm) +
                      all.angles.size() * sizeof(float);
  for (const auto& layer : all.layers) {
    bytes += of(layer.attention_norm) + of(layer.bias) + of(layer.query_norm) + of(layer.key_norm) +
             of(layer.expert_norm);
    bytes += layer.query_key_value.bytes() + layer.output.bytes() + layer.router.bytes() +
             layer.shared.bytes() + layer.shared_gate.bytes();
    for (const auto& expert : layer.experts) bytes += expert.bytes();
  }
  return bytes;
}

namespace {

/// Finds tensors by name and shape, keeps the first error, knows which names were asked for, and
/// reads what was asked for in the order of the files.
class weight_reader {
 public:
  explicit weight_reader(std::shared_ptr<const checkpoint> source) : source_(std::move(source)) {}

  const std::optional<error>& problem() const { return problem_; }

  /// A few numbers, at once; nothing after the first error.
  std::vector<float> read(const std::string& name, std::vector<std::size_t> shape) {
    const auto* view = find(name, shape);
    if (view == nullptr) return {};
    if (!all_finite(view->type, view->bytes)) not_finite(*view);
    return view->to_fp32();
  }

  /// A matrix, to be read later; nothing after the first error.
  matrix_source matrix(const std::string& name, std::size_t n_out, std::size_t n_in) {
    const auto* view = find(name, {n_out, n_in});
    return view == nullptr ? matrix_source() : matrix_source(*view);
  }

  /// Asks for a matrix's names only.
  void pass_over(const std::string& name, std::size_t n_out, std::size_t n_in) {
    static_cast<void>(find(name, {n_out, n_in}));
  }

  /// Calls make(sources) in run(), from any thread.
  template <class Make>
  void later(std::vector<matrix_source> sources, Make make) {
    if (!problem_) jobs_.push_back({std::move(sources), std::move(make)});
  }

  /// Reads everything that was asked for. `guard` calls its argument and turns what it throws into
  /// an error.
  void run(std::size_t n_threads, const work_watch& watch,
           const std::function<result<void>(const std::function<void()>&)>& guard) {
    if (problem_) return;
    std::ranges::sort(jobs_, [](const job& a, const job& b) { return a.place() < b.place(); });
    double all = 1, done = 0;
    for (const auto& each : jobs_) all += each.bytes();
    n_threads = std::clamp<std::size_t>(n_threads, 1, std::max<std::size_t>(1, jobs_.size()));
    std::atomic<std::size_t> next{0};
    std::mutex shared;
    const auto work = [&] {
      for (std::size_t i = next++; i < jobs_.size(); i = next++) {
        job& mine = jobs_[i];
        {
          const std::scoped_lock lock(shared);
          if (problem_) return;
          if (watch.stopped()) {
            problem_ = error{errc::interrupted,
                             fmt::format("{}: loading was interrupted", source_->place().string())};
            return;
          }
        }
        // The disk goes on with what comes after this while this is converted.
        if (i + n_threads < jobs_.size()) jobs_[i + n_threads].expect();
        const auto made = guard([&] { mine.make(mine.sources); });
        const std::scoped_lock lock(shared);
        if (!made && !problem_) problem_ = made.error();
        for (const auto& each : mine.sources)
          if (const auto* view = each.not_finite()) not_finite(*view);
        done += mine.bytes();
        watch.show(done / all);
      }
    };
    {
      std::vector<std::jthread> others;
      for (std::size_t t = 1; t < n_threads; ++t) others.emplace_back(work);
      work();
    }
    jobs_.clear();
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
  struct job {
    std::vector<matrix_source> sources;
    std::function<void(std::vector<matrix_source>&)> make;

    /// Where the first number is: neighbours in a file are read one after the other.
    std::pair<std::string, const std::byte*> place() const { return sources.front().place(); }
    double bytes() const {
      double sum = 0;
      for (const auto& each : sources) sum += static_cast<double>(each.stored_bytes());
      return sum;
    }
    void expect() const {
      for (const auto& each : sources) each.expect();
    }
  };

  /// Null after the first error.
  const tensor_view* find(const std::string& name, const std::vector<std::size_t>& shape) {
    asked_.insert(name);
    if (problem_) return nullptr;
    auto found = source_->get(name, shape);
    if (found) return *found;
    problem_ = found.error();
    return nullptr;
  }

  void not_finite(const tensor_view& view) {
    if (!problem_)
      problem_ = error{errc::out_of_range,
                       fmt::format("{}: tensor '{}' has a number that is not finite; fetch or "
                                   "train the weights again",
                                   view.file.string(), view.name)};
  }

  std::shared_ptr<const checkpoint> source_;
  std::set<std::string> asked_;
  std::vector<job> jobs_;
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
  const auto project = [&](projection& target, matrix_source from) {
    reader.later({std::move(from)}, [&target, &place](std::vector<matrix_source>& sources) {
      target = projection(sources.front(), place);
    });
  };
  const auto embed = [&](matrix_source from) {
    reader.later({std::move(from)}, [&content](std::vector<matrix_source>& sources) {
      content->embedding = row_table(sources.front());
    });
  };
  const auto join = [](std::vector<float> numbers, const std::vector<float>& more) {
    numbers.insert(numbers.end(), more.begin(), more.end());
    return numbers;
  };
  embed(reader.matrix("model.embed_tokens.weight", shape.vocab_size, hidden));
  // Matrices are read later, to where they stay.
  content->layers.resize(shape.n_layers);
  for (std::size_t l = 0; l < shape.n_layers && !reader.problem(); ++l) {
    const std::string prefix = fmt::format("model.layers.{}.", l);
    layer_weights& layer = content->layers[l];
    layer.attention_norm = vector_of(reader.read(prefix + "input_layernorm.weight", {hidden}));
    auto qkv = reader.matrix(prefix + "self_attn.q_proj.weight", width, hidden);
    qkv.append(reader.matrix(prefix + "self_attn.k_proj.weight", shape.kv_width(), hidden));
    qkv.append(reader.matrix(prefix + "self_attn.v_proj.weight", shape.kv_width(), hidden));
    project(layer.query_key_value, std::move(qkv));
    if (shape.query_key_value_bias) {
      auto bias = reader.read(prefix + "self_attn.q_proj.bias", {width});
      bias =
          join(std::move(bias), reader.read(prefix + "self_attn.k_proj.bias", {shape.kv_width()}));
      bias =
          join(std::move(bias), reader.read(prefix + "self_attn.v_proj.bias", {shape.kv_width()}));
      layer.bias = vector_of(bias);
    }
    if (shape.qk_norm != query_key_norm::none) {
      const bool per_head = shape.qk_norm == query_key_norm::per_head;
      layer.query_norm = vector_of(
          reader.read(prefix + "self_attn.q_norm.weight", {per_head ? shape.head_dim : width}));
      layer.key_norm = vector_of(reader.read(prefix + "self_attn.k_norm.weight",
                                             {per_head ? shape.head_dim : shape.kv_width()}));
    }
    project(layer.output, reader.matrix(prefix + "self_attn.o_proj.weight", hidden, width));
    layer.expert_norm =
        vector_of(reader.read(prefix + "post_attention_layernorm.weight", {hidden}));
    project(layer.router, reader.matrix(fmt::format("{}{}.gate.weight", prefix, names.block),
                                        shape.n_experts, hidden));
    const auto expert = [&](expert_weights& target, const std::string& name, std::size_t inner) {
      auto gate = reader.matrix(fmt::format("{}.{}.weight", name, names.gate), inner, hidden);
      auto up = reader.matrix(fmt::format("{}.{}.weight", name, names.up), inner, hidden);
      auto down = reader.matrix(fmt::format("{}.{}.weight", name, names.down), hidden, inner);
      reader.later({std::move(gate), std::move(up), std::move(down)},
                   [&target, &place](std::vector<matrix_source>& sources) {
                     target = expert_weights(sources[0], sources[1], sources[2], place);
                   });
    };
    layer.experts.resize(shape.n_experts);
    for (std::size_t e = 0; e < shape.n_experts && !reader.problem(); ++e) {
      const std::string name = fmt::format("{}{}.experts.{}", prefix, names.block, e);
      const std::size_t inner = shape.intermediate_size;
      if (!options.hosts || options.hosts(layer_id{l}, expert_id{e})) {
        expert(layer.experts[e], name, inner);
        continue;
      }
      reader.pass_over(fmt::format("{}.{}.weight", name, names.gate), inner, hidden);
      reader.pass_over(fmt::format("{}.{}.weight", name, names.up), inner, hidden);
      reader.pass_over(fmt::format("{}.{}.weight", name, names.down), hidden, inner);
    }
    if (shape.shared_intermediate_size > 0) {
      expert(layer.shared, fmt::format("{}{}.shared_expert", prefix, names.block),
             shape.shared_intermediate_size);
      project(layer.shared_gate,
              reader.matrix(fmt::format("{}{}.shared_expert_gate.weight", prefix, names.block), 1,
                            hidden));
    }
  }
  content->final_norm = vector_of(reader.read("model.norm.weight", {hidden}));
  if (shape.tied_embeddings && !reader.has("lm_head.weight")) {
    project(content->head, reader.matrix("model.embed_tokens.weight", shape.vocab_size, hidden));
  } else {
    project(content->head, reader.matrix("lm_head.weight", shape.vocab_size, hidden));
    if (!reader.problem() && shape.tied_embeddings &&
        !same_numbers(*(*source)->find("lm_head.weight"),
                      *(*source)->find("model.embed_tokens.weight")))
      return error{errc::mismatch,
                   fmt::format("{}: tensor 'lm_head.weight' differs from the embedding, though "
                               "config.json says tie_word_embeddings; correct one of them",
                               (*source)->place().string())};
  }
  reader.check_nothing_else();
  const auto guard = [&](const std::function<void()>& body) -> result<void> {
    try {
      body();
      return {};
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
  };
  constexpr unsigned most_threads = 4;
  const unsigned n_threads =
      device->is_cpu() ? std::clamp(std::thread::hardware_concurrency(), 1u, most_threads) : 1u;
  reader.run(n_threads, options.watch, guard);
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
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ORDERMOE_CHECK(ids[i] >= 0 && static_cast<std::size_t>(ids[i]) < config().vocab_size,
                   fmt::format("token {} of {}", ids[i], config().vocab_size));
    weights_->embedding.copy_row(static_cast<std::size_t>(ids[i]), hidden.data() + i * width);
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
  ORDERMOE_CHECK(
      content.there(),
      fmt::format("expert {} of layer {} was not loaded: load_options::hosts left it out",
                  expert.index(), layer.index()));
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
