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

#include "config/devices.hpp"
#include "model/architecture/tensor_plan.hpp"
#include "model/checkpoint/expert_shelf.hpp"
#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/part.hpp"
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
  std::string place() const { return source_->place().string(); }

  /// A few numbers, at once; nothing after the first error.
  std::vector<float> read(const tensor_spec& tensor) {
    const auto* view = find(tensor.name, tensor.shape);
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
                compute_place place, std::optional<model_part> part)
      : reader_(reader),
        shape_(shape),
        options_(options),
        place_(std::move(place)),
        part_(std::move(part)) {}

  /// Content is a transformer's weights, with its config.
  template <class Weights>
  void everything(Weights& content, const model_tensors& tensors) {
    const auto& embedding = tensors.embedding;
    reader_.later({reader_.rows(embedding.name, embedding.shape[0], embedding.shape[1])},
                  [&content](std::vector<matrix_source>& sources) {
                    content.embedding = row_table(sources.front());
                  });
    content.layers.resize(shape_.n_layers);
    for (std::size_t l = 0; l < shape_.n_layers && !reader_.problem(); ++l)
      layer(content.layers[l], layer_id{l},
            shape_.of_encoder(layer_id{l}) ? *tensors.encoder : tensors.decoder);
    content.final_norm = reader_.read(tensors.decoder.final_norm);
    if (tensors.encoder) {
      encoder_end(content.encoder_end, *tensors.encoder);
      content.encoder_norm = reader_.read(tensors.encoder->final_norm);
      content.encoder_positions = relative(*tensors.encoder, relative_bias::direction::both);
      content.positions.relative = relative(tensors.decoder, relative_bias::direction::backwards);
      if (shape_.tied_embeddings)
        content.head_scale =
            static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape_.hidden_size)));
    } else {
      content.positions.rotary = rotary_angles(shape_);
    }
    if (tensors.head)
      dense(content.head, *tensors.head);
    else if (reader_.packed())
      dense(content.head, {"lm_head.weight", embedding.shape});
    else
      dense(content.head, embedding);
  }

  /// One routed expert alone, which must stay where it is until the reader has run.
  void one_expert(expert_weights& target, layer_id layer, expert_id which,
                  const model_tensors& tensors, precision kept) {
    if (part_ && !part_->has(layer, which)) return reader_.fail(not_in_part(layer, which));
    const auto& stack = shape_.of_encoder(layer) ? *tensors.encoder : tensors.decoder;
    const auto& sparse = *stack.blocks[shape_.blocks_of(layer).end - 1].sparse;
    expert(&target, sparse.experts[which.index()], kept);
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
                             "precision out or use device cpu",
                             experts ? "expert" : "dense", to_string(kept), options_.device)};
  }

 private:
  error not_in_part(layer_id layer, expert_id expert) const {
    return {
        errc::mismatch,
        fmt::format("{}: expert {} of layer {} is not in this part of the model, which is that "
                    "of server {}, nor did it come from another host; write the part again with "
                    "`ordermoe model shard` and the plan that is in force",
                    reader_.place(), expert.index(), layer.index(), part_->server)};
  }

  void project(projection& target, matrix_source from, precision kept) {
    check_kept("matrix", from, kept);
    reader_.later({std::move(from)}, [&target, kept, this](std::vector<matrix_source>& sources) {
      target = projection(sources.front(), place_, kept);
    });
  }
  /// As it is stored, and on the host: what decides on experts is the same arithmetic everywhere.
  void project_here(projection& target, const tensor_spec& tensor) {
    reader_.later({matrix(tensor)}, [&target](std::vector<matrix_source>& sources) {
      target = projection(sources.front(), {}, precision::stored);
    });
  }
  /// What every row passes.
  void dense(projection& target, matrix_source from) {
    project(target, std::move(from), options_.dense_precision);
  }
  void dense(projection& target, const tensor_spec& tensor) { dense(target, matrix(tensor)); }

  void layer(layer_weights& target, layer_id layer, const stack_tensors& stack) {
    const auto range = shape_.blocks_of(layer);
    target.blocks.resize(range.size());
    for (std::size_t b = range.first; b < range.end; ++b)
      read_block(target.blocks[b - range.first], stack.blocks[b]);
    const auto& sparse = *stack.blocks[range.end - 1].sparse;
    project_here(target.router, sparse.router);
    target.experts.resize(shape_.n_experts);
    for (std::size_t e = 0; e < shape_.n_experts && !reader_.problem(); ++e) {
      const bool hosted = !options_.hosts || options_.hosts(layer, expert_id{e});
      if (part_ && !part_->has(layer, expert_id{e})) {
        if (hosted) reader_.fail(not_in_part(layer, expert_id{e}));
        continue;
      }
      expert(hosted ? &target.experts[e] : nullptr, sparse.experts[e],
             precision_of(layer, expert_id{e}));
    }
    if (!sparse.shared) return;
    expert(&target.shared, *sparse.shared, options_.expert_precision);
    project_here(target.shared_gate, *sparse.shared_gate);
  }

  /// The dense blocks behind the encoder's last layer.
  void encoder_end(std::vector<block>& target, const stack_tensors& encoder) {
    const std::size_t first =
        shape_.blocks_of(layer_id{shape_.encoder_decoder->encoder_layers - 1}).end;
    target.resize(encoder.blocks.size() - first);
    for (std::size_t b = first; b < encoder.blocks.size(); ++b)
      read_block(target[b - first], encoder.blocks[b]);
  }

  relative_bias relative(const stack_tensors& stack, relative_bias::direction reach) {
    const auto table = reader_.read(*stack.relative_bias);
    return reader_.problem() ? relative_bias() : relative_bias(table, shape_, reach);
  }

  precision precision_of(layer_id layer, expert_id expert) const {
    return options_.precision_of ? options_.precision_of(layer, expert) : options_.expert_precision;
  }

  matrix_source matrix(const tensor_spec& tensor) {
    return reader_.matrix(tensor.name, tensor.shape[0], tensor.shape[1]);
  }

  /// The matrices of an expert, shared expert or dense feed-forward; only their names where target
  /// is null.
  void expert(expert_weights* target, const feed_forward_tensors& tensors, precision kept) {
    std::vector<matrix_source> sources;
    const auto read = [&](const tensor_spec& tensor) {
      sources.push_back(is_expert_matrix(tensor.name)
                            ? reader_.expert_matrix(tensor.name, tensor.shape[0], tensor.shape[1])
                            : matrix(tensor));
    };
    if (tensors.gate) read(*tensors.gate);
    read(tensors.up);
    read(tensors.down);
    if (target == nullptr) return;
    for (const auto& each : sources) check_kept("expert", each, kept);
    if (sources.size() == 3 && sources[0].quantised_as() != sources[1].quantised_as())
      reader_.fail({errc::mismatch,
                    fmt::format("expert '{}' has gate and up matrices of different precision; "
                                "convert the model again",
                                tensors.place)});
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
      reader_.fail(
          {errc::unsupported,
           fmt::format("{} '{}' is stored {}in {}, which only the kernels "
                       "multiply by; use device cpu, or the folder that it was converted from",
                       what, from.name(), from.stays() ? "packed " : "", stored)});
    else if (kept != precision::stored && std::string_view(to_string(kept)) != stored)
      reader_.fail(
          {errc::unsupported,
           fmt::format("{} '{}' is stored {}in {}, asked for is {}; load the model that "
                       "it was converted from, or leave the precision out",
                       what, from.name(), from.stays() ? "packed " : "", stored, to_string(kept))});
  }

  /// Matrices of the same width one below the other.
  matrix_source stacked(std::initializer_list<const tensor_spec*> parts) {
    if (reader_.packed()) {
      std::size_t n_out = 0;
      for (const auto* part : parts) n_out += part->shape[0];
      return reader_.matrix(packed_name((*parts.begin())->name), n_out, shape_.hidden_size);
    }
    matrix_source all;
    for (const auto* part : parts) {
      auto one = matrix(*part);
      if (all.n_out() == 0)
        all = std::move(one);
      else
        all.append(one);
    }
    return all;
  }

  /// What a sparse block has instead of a dense feed-forward is not read here.
  void read_block(block& target, const block_tensors& tensors) {
    const auto& attention = tensors.attention;
    target.attention.norm = reader_.read(attention.norm);
    dense(target.attention.query_key_value,
          stacked({&attention.query, &attention.key, &attention.value}));
    for (const auto& part : attention.bias)
      target.attention.bias = join(std::move(target.attention.bias), reader_.read(part));
    if (attention.query_norm) target.attention.query_norm = reader_.read(*attention.query_norm);
    if (attention.key_norm) target.attention.key_norm = reader_.read(*attention.key_norm);
    dense(target.attention.output, attention.output);
    if (tensors.to_prompt) {
      auto& to_prompt = target.to_prompt.emplace();
      to_prompt.norm = reader_.read(tensors.to_prompt->norm);
      dense(to_prompt.query, tensors.to_prompt->query);
      dense(to_prompt.key_value, stacked({&tensors.to_prompt->key, &tensors.to_prompt->value}));
      dense(to_prompt.output, tensors.to_prompt->output);
    }
    if (tensors.dense) expert(&target.dense, *tensors.dense, options_.dense_precision);
    target.feed_forward_norm = reader_.read(tensors.feed_forward_norm);
  }

  weight_reader& reader_;
  const model_config& shape_;
  const load_options& options_;
  compute_place place_;
  std::optional<model_part> part_;
};

/// The device that multiplies; none for the host's kernels.
result<compute_place> place_for(const load_options& options) {
  compute_place place;
  if (auto known = check_device(options.device); !known)
    return error{errc::unsupported,
                 fmt::format("device '{}': {}", options.device, known.error().message)};
  if (options.device == kernels_device) return place;
  auto device = open_device(torch_device(options.device));
  if (!device) return device.error();
  place.device = std::move(*device);
  return place;
}

/// Error where a checkpoint has a copy of the embedding that is none.
result<void> check_embedding_copies(const model_config& shape, const checkpoint& source,
                                    weight_reader& reader) {
  if (reader.packed()) return {};
  const auto embedding = embedding_name(shape);
  for (const auto& name : embedding_copies(shape)) {
    if (!reader.has(name)) continue;
    reader.pass_over(name, shape.vocab_size, shape.hidden_size);
    if (!reader.problem() && !same_numbers(*source.find(name), *source.find(embedding)))
      return error{errc::mismatch,
                   fmt::format("{}: tensor '{}' differs from the embedding, though {}; correct one "
                               "of them",
                               source.place().string(), name,
                               name == "lm_head.weight" ? "config.json says tie_word_embeddings"
                                                        : "encoder and decoder share it")};
  }
  return {};
}

/// Calls a body that makes weights; what it throws becomes an error.
result<void> guarded(const std::filesystem::path& folder, const std::function<void()>& body) {
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
}

}  // namespace

result<std::shared_ptr<const transformer>> transformer::load(const std::filesystem::path& folder,
                                                             const load_options& options) {
  auto config = read_model_config(folder);
  if (!config) return config.error();
  auto source = checkpoint::open_folder(folder);
  if (!source) return source.error();
  const auto part = read_part(folder);
  if (!part) return part.error();
  auto place = place_for(options);
  if (!place) return place.error();

  auto content = std::make_unique<weights>();
  content->config = *config;
  content->kv = options.kv;
  content->elsewhere = options.elsewhere;
  content->expert_precision = options.expert_precision;
  const model_config& shape = content->config;
  weight_reader reader(*source);
  if (reader.packed()) {
    const auto problems =
        compare_packed(shape, (*source)->place().string(), (*source)->tensors(),
                       *part ? left_out(shape, **part) : std::set<std::string, std::less<>>());
    if (!problems.empty()) return problems.front();
  }
  const auto tensors = tensors_by_use(shape);
  content->place = *place;
  weight_loader loader(reader, shape, options, std::move(*place), *part);
  if (auto allowed = loader.check_precision(); !allowed) return allowed.error();
  loader.everything(*content, tensors);
  if (auto same = check_embedding_copies(shape, **source, reader); !same) return same.error();
  reader.check_nothing_else();
  constexpr unsigned most_threads = 4;
  const unsigned n_threads = content->place.device == nullptr
                                 ? std::clamp(std::thread::hardware_concurrency(), 1u, most_threads)
                                 : 1u;
  reader.run(n_threads, options.watch, [&](const auto& body) { return guarded(folder, body); });
  if (reader.problem()) return *reader.problem();
  const auto placed = guarded(folder, [&] {
    for (auto& layer : content->layers)
      for (auto& each : layer.blocks) attend_on_device(shape, content->place, each.attention);
  });
  if (!placed) return placed.error();
  return std::shared_ptr<const transformer>(new transformer(std::move(content)));
}

struct expert_reader::content {
  std::filesystem::path folder;
  model_config config;
  model_tensors tensors;
  std::shared_ptr<const checkpoint> source;
  std::optional<model_part> part;
  std::shared_ptr<const expert_shelf> came;
};

expert_reader::expert_reader(std::unique_ptr<content> made) : content_(std::move(made)) {}
expert_reader::~expert_reader() = default;

result<std::unique_ptr<expert_reader>> expert_reader::open(
    const std::filesystem::path& folder, std::shared_ptr<const expert_shelf> came) {
  auto config = read_model_config(folder);
  if (!config) return config.error();
  auto source = checkpoint::open_folder(folder);
  if (!source) return source.error();
  auto part = read_part(folder);
  if (!part) return part.error();
  auto tensors = tensors_by_use(*config);
  return std::unique_ptr<expert_reader>(new expert_reader(
      std::make_unique<content>(content{folder, std::move(*config), std::move(tensors),
                                        std::move(*source), std::move(*part), std::move(came)})));
}

result<expert_weights> expert_reader::read(layer_id layer, expert_id expert, precision kept,
                                           const compute_place& place) const {
  const load_options options;
  auto source = content_->source;
  auto part = content_->part;
  if (content_->came && part && !part->has(layer, expert) && content_->came->has(layer, expert)) {
    auto opened = content_->came->open_came(layer, expert);
    if (!opened) return opened.error();
    source = std::move(*opened);
    part.reset();
  }
  weight_reader reader(std::move(source));
  weight_loader loader(reader, content_->config, options, place, std::move(part));
  expert_weights read;
  loader.one_expert(read, layer, expert, content_->tensors, kept);
  reader.run(1, {}, [&](const auto& body) { return guarded(content_->folder, body); });
  if (reader.problem()) return *reader.problem();
  return read;
}

result<std::shared_ptr<const transformer>> transformer::with_experts(
    const expert_reader& reader, const std::function<bool(layer_id, expert_id)>& hosts,
    precision kept) const {
  // Matrices are shared: a copy of what refers to them takes little.
  auto content = std::make_unique<weights>(*weights_);
  for (std::size_t l = 0; l < content->layers.size(); ++l) {
    auto& experts = content->layers[l].experts;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const layer_id layer{static_cast<std::uint32_t>(l)};
      const expert_id expert{static_cast<std::uint32_t>(e)};
      if (!hosts(layer, expert)) {
        experts[e] = {};
      } else if (!experts[e].there()) {
        auto read = reader.read(layer, expert, kept, content->place);
        if (!read) return read.error();
        experts[e] = std::move(*read);
      }
    }
  }
  return std::shared_ptr<const transformer>(new transformer(std::move(content)));
}

}  // namespace ordermoe::model
