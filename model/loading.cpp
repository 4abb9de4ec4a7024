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

#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/quantised_rows.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/transformer.hpp"
#include "model/transformer_weights.hpp"

namespace ordermoe::model {

row_table::row_table(matrix_source& source)
    : width_(source.n_in()),
      type_(source.stays()       ? source.row(0).type
            : source.fits_bf16() ? tensor_type::bf16
                                 : tensor_type::f32),
      bytes_(source.n_out() * row_bytes()) {
  if (source.stays()) {
    memory_ = {source.owner(), source.row(0).bytes.data()};
    return;
  }
  const auto memory = weight_memory(bytes_);
  memory_ = memory;
  constexpr std::size_t rows_at_once = 64;
  std::vector<float> wide(rows_at_once * width_);
  auto* target = memory.get();
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

void row_table::copy_row(std::size_t index, float* row) const {
  const auto* start = memory_.get() + index * row_bytes();
  widen(type_, {start, row_bytes()}, {row, width_});
}

namespace {

/// Finds tensors by name and shape, keeps the first error, knows which names were asked for, and
/// reads what was asked for in the order of the files.
class weight_reader {
 public:
  explicit weight_reader(std::shared_ptr<const checkpoint> source)
      : source_(std::move(source)),
        mapped_(is_packed(source_->tensors()) ? source_->memory() : nullptr) {}

  /// Whether matrices stand in their files as they are computed with. Then the tensors were checked
  /// by compare_packed().
  bool packed() const { return mapped_ != nullptr; }

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
    if (packed()) return packed_as(name, n_out, n_in);
    const auto* view = find(name, {n_out, n_in});
    return view == nullptr ? matrix_source() : matrix_source(*view);
  }

  /// A matrix whose rows are looked up.
  matrix_source rows(const std::string& name, std::size_t n_rows, std::size_t width) {
    if (!packed()) return matrix(name, n_rows, width);
    const auto* view = find(name, {n_rows, width});
    if (view == nullptr) return {};
    return matrix_source(*view, {{n_rows, width}, {}, nullptr}, mapped_);
  }

  /// The matrix of an expert, which may be stored quantised.
  matrix_source expert_matrix(const std::string& name, std::size_t n_out, std::size_t n_in) {
    const auto* view = source_->find(name);
    if (packed() || view == nullptr || bytes_per_number(view->type) > 1)
      return matrix(name, n_out, n_in);
    const auto kept = view->type == tensor_type::i8 ? weight_storage::int8 : weight_storage::int4;
    const auto shape = stored_shape(kept, n_out, n_in);
    view = find(name, shape.weight, shape.weight_type);
    const auto* scale = find(scale_name(name), shape.scale, shape.scale_type);
    if (view == nullptr || scale == nullptr) return {};
    return matrix_source(*view, *scale, kept, n_out, n_in);
  }

  void fail(error problem) {
    if (!problem_) problem_ = std::move(problem);
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
      std::vector<std::byte> room;
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
        const tensor_view* unreadable = nullptr;
        const auto made = guard([&] {
          for (auto& each : mine.sources) {
            each.read_into(room);
            if (const auto* view = each.bring_in()) unreadable = view;
          }
          mine.make(mine.sources);
        });
        const std::scoped_lock lock(shared);
        if (!made && !problem_) problem_ = made.error();
        if (unreadable != nullptr)
          fail(
              {errc::io, fmt::format("{}: tensor '{}' cannot be read: the file has become shorter, "
                                     "or the disk failed; fetch or convert the weights again",
                                     unreadable->file.string(), unreadable->name)});
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
  matrix_source packed_as(const std::string& name, std::size_t n_out, std::size_t n_in) {
    asked_.insert(name);
    if (problem_) return {};
    const auto* view = source_->find(name);
    ORDERMOE_CHECK(view != nullptr, name + " is no tensor of a packed checkpoint");
    const auto matrix = packed_view(*view, n_out, n_in);
    if (!matrix) {
      problem_ = matrix.error();
      return {};
    }
    return matrix_source(*view, *matrix, mapped_);
  }

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

  /// Null after the first error. Without a type, any but integers.
  const tensor_view* find(const std::string& name, const std::vector<std::size_t>& shape,
                          std::optional<tensor_type> type = std::nullopt) {
    asked_.insert(name);
    if (problem_) return nullptr;
    const auto found = source_->get(name, shape);
    if (!found) {
      problem_ = found.error();
      return nullptr;
    }
    const tensor_view& view = **found;
    if (type ? view.type != *type : bytes_per_number(view.type) == 1) {
      problem_ = error{errc::unsupported,
                       fmt::format("{}: tensor '{}' is of type {}, expected {}; convert the model "
                                   "again",
                                   view.file.string(), name, to_string(view.type),
                                   type ? to_string(*type) : "F32, F16 or BF16")};
      return nullptr;
    }
    return &view;
  }

  void not_finite(const tensor_view& view) {
    if (!problem_)
      problem_ = error{errc::out_of_range,
                       fmt::format("{}: tensor '{}' has a number that is not finite; fetch or "
                                   "train the weights again",
                                   view.file.string(), view.name)};
  }

  std::shared_ptr<const checkpoint> source_;
  std::shared_ptr<const void> mapped_;  ///< Keeps a packed checkpoint's files mapped.
  std::set<std::string> asked_;
  std::vector<job> jobs_;
  std::optional<error> problem_;
};

std::vector<float> join(std::vector<float> numbers, const std::vector<float>& more) {
  numbers.insert(numbers.end(), more.begin(), more.end());
  return numbers;
}

/// Puts a checkpoint's tensors where they are used. Matrices are read later, by the reader's run(),
/// to where they stay: what holds them is in place before, and not moved after.
class weight_loader {
 public:
  weight_loader(weight_reader& reader, const model_config& shape, const load_options& options,
                compute_place place)
      : reader_(reader),
        shape_(shape),
        options_(options),
        place_(std::move(place)),
        hidden_(shape.hidden_size),
        width_(shape.n_heads * shape.head_dim),
        kv_width_(shape.kv_width()) {}

  void project(projection& target, matrix_source from, precision kept) {
    check_kept("matrix", from, kept);
    reader_.later({std::move(from)}, [&target, kept, this](std::vector<matrix_source>& sources) {
      target = projection(sources.front(), place_, kept);
    });
  }
  /// As it is stored.
  void project(projection& target, const std::string& name, std::size_t n_out, std::size_t n_in) {
    project(target, reader_.matrix(name, n_out, n_in), precision::stored);
  }
  /// What every row passes.
  void dense(projection& target, matrix_source from) {
    project(target, std::move(from), options_.dense_precision);
  }
  void dense(projection& target, const std::string& name, std::size_t n_out, std::size_t n_in) {
    dense(target, reader_.matrix(name, n_out, n_in));
  }
  std::vector<float> vector(const std::string& name, std::size_t size) {
    return reader_.read(name, {size});
  }

  void layer(layer_weights& target, layer_id layer) {
    const auto range = shape_.blocks_of(layer);
    target.blocks.resize(range.size());
    for (std::size_t b = range.first; b < range.end; ++b)
      read_block(target.blocks[b - range.first], stack_of(layer), b, b + 1 == range.end);
    const std::string place = feed_forward_of(stack_of(layer), range.end - 1);
    project(target.router, place + (two_stacks() ? ".router.classifier.weight" : ".gate.weight"),
            shape_.n_experts, hidden_);
    target.experts.resize(shape_.n_experts);
    for (std::size_t e = 0; e < shape_.n_experts && !reader_.problem(); ++e) {
      const auto name = fmt::format("{}.experts.{}{}", place, two_stacks() ? "expert_" : "", e);
      const bool hosted = !options_.hosts || options_.hosts(layer, expert_id{e});
      expert(hosted ? &target.experts[e] : nullptr, name, shape_.intermediate_size,
             precision_of(layer, expert_id{e}));
    }
    if (shape_.shared_intermediate_size > 0) {
      expert(&target.shared, place + ".shared_expert", shape_.shared_intermediate_size,
             options_.expert_precision);
      project(target.shared_gate, place + ".shared_expert_gate.weight", 1, hidden_);
    }
  }

  /// The dense blocks behind the encoder's last layer.
  void encoder_end(std::vector<block>& target) {
    const auto& encoder = *shape_.encoder_decoder;
    const std::size_t first = shape_.blocks_of(layer_id{encoder.encoder_layers - 1}).end;
    target.resize(encoder.encoder_blocks - first);
    for (std::size_t b = first; b < encoder.encoder_blocks; ++b)
      read_block(target[b - first], "encoder", b, false);
  }

  relative_bias relative(const std::string& stack, relative_bias::direction reach) {
    const auto table =
        reader_.read(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                     {shape_.encoder_decoder->relative_buckets, shape_.n_heads});
    return reader_.problem() ? relative_bias() : relative_bias(table, shape_, reach);
  }

  /// Error where LibTorch multiplies and weights are not to be kept as stored.
  result<void> check_precision() const {
    if (place_.device == nullptr) return {};
    auto kept = options_.expert_precision;
    for (std::size_t l = 0; l < shape_.n_layers && kept == precision::stored; ++l)
      for (std::size_t e = 0; e < shape_.n_experts && kept == precision::stored; ++e)
        kept = precision_of(layer_id{l}, expert_id{e});
    const bool experts = kept != precision::stored;
    if (!experts) kept = options_.dense_precision;
    if (kept == precision::stored) return {};
    return error{errc::unsupported,
                 fmt::format("{} precision {} on device '{}': only the kernels on the host "
                             "multiply by it, LibTorch by weights as they are stored; leave the "
                             "precision out or use device 'cpu' with the kernels",
                             experts ? "expert" : "dense", to_string(kept), options_.device)};
  }

 private:
  precision precision_of(layer_id layer, expert_id expert) const {
    return options_.precision_of ? options_.precision_of(layer, expert) : options_.expert_precision;
  }

  bool two_stacks() const { return shape_.encoder_decoder.has_value(); }

  std::string stack_of(layer_id layer) const {
    if (!two_stacks()) return "model";
    return shape_.of_encoder(layer) ? "encoder" : "decoder";
  }

  std::string prefix_of(const std::string& stack, std::size_t number) const {
    return two_stacks() ? fmt::format("{}.block.{}.layer.", stack, number)
                        : fmt::format("model.layers.{}.", number);
  }

  /// Where a block's experts, or its dense matrices, are. In T5 the feed-forward is the last of a
  /// block's numbered parts.
  std::string feed_forward_of(const std::string& stack, std::size_t number) const {
    const auto prefix = prefix_of(stack, number);
    if (two_stacks()) return prefix + (stack == "decoder" ? "2.mlp" : "1.mlp");
    return prefix + (shape_.kind == family::mixtral ? "block_sparse_moe" : "mlp");
  }

  /// The matrices of an expert, shared expert or dense feed-forward; only their names where target
  /// is null.
  void expert(expert_weights* target, const std::string& name, std::size_t inner, precision kept) {
    const bool mixtral = shape_.kind == family::mixtral;
    std::vector<matrix_source> sources;
    const auto read = [&](const char* part, std::size_t n_out, std::size_t n_in) {
      const auto full = fmt::format("{}.{}.weight", name, part);
      sources.push_back(is_expert_matrix(full) ? reader_.expert_matrix(full, n_out, n_in)
                                               : reader_.matrix(full, n_out, n_in));
    };
    if (!two_stacks()) read(mixtral ? "w1" : "gate_proj", inner, hidden_);
    read(two_stacks() ? "wi" : mixtral ? "w3" : "up_proj", inner, hidden_);
    read(two_stacks() ? "wo" : mixtral ? "w2" : "down_proj", hidden_, inner);
    if (target == nullptr) return;
    for (const auto& each : sources) check_kept("expert", each, kept);
    if (sources.size() == 3 && sources[0].quantised_as() != sources[1].quantised_as())
      reader_.fail({errc::mismatch,
                    fmt::format("expert '{}' has gate and up matrices of different precision; "
                                "convert the model again",
                                name)});
    reader_.later(std::move(sources), [target, kept, this](std::vector<matrix_source>& from) {
      *target = from.size() == 3 ? expert_weights(from[0], from[1], from[2], place_, kept)
                                 : expert_weights(from[0], from[1], place_, kept);
    });
  }

  /// Refuses what is stored quantised or packed where it cannot be kept so.
  void check_kept(const char* what, const matrix_source& from, precision kept) {
    if (!from.stays() && !from.quantised_as()) return;
    const char* stored = to_string(from.stays() ? from.packed().storage : *from.quantised_as());
    if (place_.device != nullptr)
      reader_.fail({errc::unsupported,
                    fmt::format("{} '{}' is stored {}in {}, which only the kernels on the host "
                                "multiply by; use device 'cpu' with the kernels",
                                what, from.name(), from.stays() ? "packed " : "", stored)});
    else if (kept != precision::stored && std::string_view(to_string(kept)) != stored)
      reader_.fail(
          {errc::unsupported,
           fmt::format("{} '{}' is stored {}in {}, asked for is {}; load the model that "
                       "it was converted from, or leave the precision out",
                       what, from.name(), from.stays() ? "packed " : "", stored, to_string(kept))});
  }

  /// Matrices of the same width one below the other.
  matrix_source stacked(const std::string& place,
                        std::initializer_list<std::pair<const char*, std::size_t>> parts) {
    if (reader_.packed()) {
      std::size_t n_out = 0;
      for (const auto& part : parts) n_out += part.second;
      return reader_.matrix(packed_name(fmt::format("{}{}.weight", place, parts.begin()->first)),
                            n_out, hidden_);
    }
    matrix_source all;
    for (const auto& [name, n_out] : parts) {
      auto part = reader_.matrix(fmt::format("{}{}.weight", place, name), n_out, hidden_);
      if (all.n_out() == 0)
        all = std::move(part);
      else
        all.append(part);
    }
    return all;
  }

  /// Block `number` of a stack; what a sparse one has instead of `dense` is not read here.
  void read_block(block& target, const std::string& stack, std::size_t number, bool sparse) {
    const auto prefix = prefix_of(stack, number);
    if (two_stacks())
      read_attention(target, stack, prefix);
    else
      read_decoder_attention(target, prefix);
    const auto place = feed_forward_of(stack, number);
    if (!sparse)
      expert(&target.dense, place, shape_.dense_intermediate_size, options_.dense_precision);
    target.feed_forward_norm =
        vector(two_stacks() ? place.substr(0, place.size() - 3) + "layer_norm.weight"
                            : prefix + "post_attention_layernorm.weight",
               hidden_);
  }

  void read_decoder_attention(block& target, const std::string& prefix) {
    const std::string place = prefix + "self_attn.";
    auto& attention = target.attention;
    attention.norm = vector(prefix + "input_layernorm.weight", hidden_);
    dense(attention.query_key_value,
          stacked(place, {{"q_proj", width_}, {"k_proj", kv_width_}, {"v_proj", kv_width_}}));
    if (shape_.query_key_value_bias) {
      attention.bias = vector(place + "q_proj.bias", width_);
      attention.bias = join(std::move(attention.bias), vector(place + "k_proj.bias", kv_width_));
      attention.bias = join(std::move(attention.bias), vector(place + "v_proj.bias", kv_width_));
    }
    if (shape_.qk_norm != query_key_norm::none) {
      const bool per_head = shape_.qk_norm == query_key_norm::per_head;
      attention.query_norm = vector(place + "q_norm.weight", per_head ? shape_.head_dim : width_);
      attention.key_norm = vector(place + "k_norm.weight", per_head ? shape_.head_dim : kv_width_);
    }
    dense(attention.output, place + "o_proj.weight", hidden_, width_);
  }

  void read_attention(block& target, const std::string& stack, const std::string& prefix) {
    std::string place = prefix + "0.SelfAttention.";
    target.attention.norm = vector(prefix + "0.layer_norm.weight", hidden_);
    dense(target.attention.query_key_value,
          stacked(place, {{"q", width_}, {"k", kv_width_}, {"v", kv_width_}}));
    dense(target.attention.output, place + "o.weight", hidden_, width_);
    if (stack != "decoder") return;
    auto& to_prompt = target.to_prompt.emplace();
    place = prefix + "1.EncDecAttention.";
    to_prompt.norm = vector(prefix + "1.layer_norm.weight", hidden_);
    dense(to_prompt.query, place + "q.weight", width_, hidden_);
    dense(to_prompt.key_value, stacked(place, {{"k", kv_width_}, {"v", kv_width_}}));
    dense(to_prompt.output, place + "o.weight", hidden_, width_);
  }

  weight_reader& reader_;
  const model_config& shape_;
  const load_options& options_;
  compute_place place_;
  std::size_t hidden_, width_, kv_width_;
};

}  // namespace

result<std::shared_ptr<const transformer>> transformer::load(const std::filesystem::path& folder,
                                                             const load_options& options) {
  auto config = read_model_config(folder);
  if (!config) return config.error();
  auto source = checkpoint::open_folder(folder);
  if (!source) return source.error();
  const bool on_host = options.device == "cpu";
  compute_place place;
  if (!on_host || options.linear == linear_path::libtorch) {
    auto device = open_device(options.device);
    if (!device) return device.error();
    place.device = std::move(*device);
  }

  auto content = std::make_unique<weights>();
  content->config = *config;
  content->kv = options.kv;
  const model_config& shape = content->config;
  const std::size_t hidden = shape.hidden_size;
  const bool two_stacks = shape.encoder_decoder.has_value();
  weight_reader reader(*source);
  if (reader.packed()) {
    const auto problems = compare_packed(shape, (*source)->place().string(), (*source)->tensors());
    if (!problems.empty()) return problems.front();
  }
  weight_loader loader(reader, shape, options, place);
  if (auto allowed = loader.check_precision(); !allowed) return allowed.error();
  const std::string embedding = two_stacks ? "shared.weight" : "model.embed_tokens.weight";
  reader.later({reader.rows(embedding, shape.vocab_size, hidden)},
               [&content](std::vector<matrix_source>& sources) {
                 content->embedding = row_table(sources.front());
               });
  content->layers.resize(shape.n_layers);
  for (std::size_t l = 0; l < shape.n_layers && !reader.problem(); ++l)
    loader.layer(content->layers[l], layer_id{l});
  content->final_norm =
      loader.vector(two_stacks ? "decoder.final_layer_norm.weight" : "model.norm.weight", hidden);
  if (two_stacks) {
    loader.encoder_end(content->encoder_end);
    content->encoder_norm = loader.vector("encoder.final_layer_norm.weight", hidden);
    content->encoder_positions = loader.relative("encoder", relative_bias::direction::both);
    content->positions.relative = loader.relative("decoder", relative_bias::direction::backwards);
    if (shape.tied_embeddings)
      content->head_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden)));
  } else {
    content->positions.rotary = rotary_angles(shape);
  }
  const bool shared_head = shape.tied_embeddings && !reader.packed();
  loader.dense(content->head, shared_head ? embedding : "lm_head.weight", shape.vocab_size, hidden);
  for (const auto& name : embedding_copies(shape)) {
    if (reader.packed() || !reader.has(name)) continue;
    reader.pass_over(name, shape.vocab_size, hidden);
    if (!reader.problem() && !same_numbers(*(*source)->find(name), *(*source)->find(embedding)))
      return error{errc::mismatch,
                   fmt::format("{}: tensor '{}' differs from the embedding, though {}; correct one "
                               "of them",
                               (*source)->place().string(), name,
                               name == "lm_head.weight" ? "config.json says tie_word_embeddings"
                                                        : "encoder and decoder share it")};
  }
  reader.check_nothing_else();
  const auto guard = [&](const std::function<void()>& body) -> result<void> {
    try {
      body();
      return {};
    } catch (const device_failure& problem) {
      return error{errc::failed, fmt::format("{}: {}", folder.string(), problem.what())};
    } catch (const std::bad_alloc&) {
      return error{errc::failed, fmt::format("{}: not enough memory for the weights; use a smaller "
                                             "model or a larger machine",
                                             folder.string())};
    }
  };
  constexpr unsigned most_threads = 4;
  const unsigned n_threads =
      on_host ? std::clamp(std::thread::hardware_concurrency(), 1u, most_threads) : 1u;
  reader.run(n_threads, options.watch, guard);
  if (reader.problem()) return *reader.problem();

  return std::shared_ptr<const transformer>(new transformer(std::move(content)));
}

}  // namespace ordermoe::model
