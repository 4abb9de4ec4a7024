#include "model/torch/training_torch.hpp"

#include <algorithm>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <torch/torch.h>

#include "model/torch/decoder_torch.hpp"
#include "model/torch/figures_torch.hpp"
#include "model/torch/trainer_torch.hpp"

/// LibTorch's own setting does not reach OpenBLAS, where that is the BLAS in use.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace ordermoe::training {
namespace {

namespace fs = std::filesystem;

struct stage_plan {
  std::string name;
  std::size_t n_experts, top_k;
  double end;  ///< Share at which the stage is over; see whole_recipe.
  bool outages = false;
};

std::vector<stage_plan> stages_of(const train_options& o) {
  if (o.recipe == "dense")
    return {{"dense", 1, 1, 0.25}, {"continued", 1, 1, 1.0}, {"afterwards", 1, 1, whole_recipe}};
  if (o.recipe == "upcycled")
    return {{"dense", 1, 1, 0.25},
            {"experts", o.n_experts, o.top_k, 1.0},
            {"outages", o.n_experts, o.top_k, whole_recipe, true}};
  if (o.recipe == "lineage")
    return {{"dense", 1, 1, 0.25},
            {"parents", o.n_experts / 2, o.top_k, 0.5},
            {"children", o.n_experts, o.top_k, 1.0},
            {"outages", o.n_experts, o.top_k, whole_recipe, true}};
  return {};
}

model::model_config shape_of(const train_options& o, std::size_t vocab_size, std::size_t n_experts,
                             std::size_t top_k) {
  model::model_config shape;
  shape.hidden_size = o.hidden_size;
  shape.intermediate_size = o.intermediate_size;
  shape.n_layers = o.n_layers;
  shape.n_heads = o.n_heads;
  shape.n_kv_heads = o.n_kv_heads;
  shape.head_dim = o.hidden_size / o.n_heads;
  shape.n_experts = n_experts;
  shape.top_k = top_k;
  shape.vocab_size = vocab_size;
  shape.max_context = o.max_context;
  return shape;
}

/// What must be equal for a checkpoint to be continued: everything that shapes the weights up to
/// the end of `stage`.
std::string fingerprint_of(const train_options& o, const std::vector<stage_plan>& stages,
                           std::size_t stage, const std::string& text_hash) {
  auto print = fmt::format(
      "seed {} {} text {} shape {}x{}x{} heads {}/{} rows {}x{} rate {} stages", o.seed,
      o.tokens > 0 ? fmt::format("tokens {:.0f}", static_cast<double>(o.tokens) / whole_recipe)
                   : fmt::format("minutes {}", o.minutes),
      text_hash.substr(0, 16), o.n_layers, o.hidden_size, o.intermediate_size, o.n_heads,
      o.n_kv_heads, o.sequences_per_step, o.sequence_length, o.learning_rate);
  for (std::size_t i = 0; i <= stage; ++i)
    print += fmt::format(" {}:{}:{}", stages[i].name, stages[i].n_experts, stages[i].end);
  if (stages[stage].n_experts > 1)
    print +=
        fmt::format(" top {} noise {} redrawn {} router {} balance {} z {}", stages[stage].top_k,
                    o.weight_noise, o.redrawn_share, o.router_noise, o.balance_weight, o.z_weight);
  if (o.recipe == "lineage" && stage > 1)
    print += fmt::format(" siblings redrawn {}", o.sibling_redrawn_share);
  return print;
}

/// A job's way through its stages.
class training_run {
 public:
  explicit training_run(const training_job& job)
      : job_(job), options_(job.options), stages_(stages_of(job.options)) {}

  result<trained_model> run() {
    for (std::size_t i = 0; i < stages_.size(); ++i)
      if (auto done = reach_end_of(i); !done) return done.error();
    round_to_bf16(*model_);
    trained_model made;
    made.report.recipe = options_.recipe;
    made.report.tokens = progress_.tokens;
    made.report.seconds = progress_.seconds;
    made.report.curve = progress_.curve;
    if (auto measured = score(made.report); !measured) return measured.error();
    made.shape = model_->shape();
    for (const auto& [name, tensor] : model_->export_tensors())
      made.tensors.push_back(store_bf16(name, tensor.sizes().vec(), tensor.data_ptr<float>()));
    return made;
  }

 private:
  /// Makes the model of a stage: a fresh one, one grown from what is there, or what is there.
  void begin(std::size_t i) {
    progress_.steps = 0;
    if (i > 0 && !grows(i)) return;
    const auto& stage = stages_[i];
    const auto shape = shape_of(options_, job_.pieces.vocab_size(), stage.n_experts, stage.top_k);
    auto next = std::make_unique<decoder>(shape, options_.seed + i);
    if (i > 0) {
      const bool siblings = stages_[i - 1].n_experts > 1;
      grow(*model_, *next,
           {options_.weight_noise,
            siblings ? options_.sibling_redrawn_share : options_.redrawn_share,
            options_.router_noise},
           mix64(options_.seed) + i);
    }
    model_ = std::move(next);
    optimizer_ = std::make_unique<optimizer_state>(*model_);
  }

  bool grows(std::size_t i) const {
    return i > 0 && stages_[i].n_experts != stages_[i - 1].n_experts;
  }

  /// From the checkpoints where there are some.
  result<void> reach_end_of(std::size_t i) {
    begin(i);
    const auto& stage = stages_[i];
    const auto print = fingerprint_of(options_, stages_, i, job_.text_hash);
    const auto finished = job_.state / (stage.name + ".safetensors"),
               running = job_.state / (stage.name + ".part.safetensors");
    if (fs::exists(finished))
      return load_checkpoint(finished, *model_, *optimizer_, progress_, print);
    if (fs::exists(running))
      if (auto loaded = load_checkpoint(running, *model_, *optimizer_, progress_, print); !loaded)
        return loaded;
    const auto save = [&](const fs::path& path) {
      return save_checkpoint(path, *model_, *optimizer_, progress_, print);
    };
    const stage_limits limits{stage.name, stage.end, stage.outages, options_.recipe == "lineage",
                              i == 0 || grows(i)};
    if (auto ran = run_stage(*model_, *optimizer_, progress_, job_.source, options_, limits,
                             [&] { return save(running); });
        !ran)
      return ran;
    if (auto saved = save(finished); !saved) return saved;
    std::error_code ignored;
    fs::remove(running, ignored);
    return {};
  }

  result<void> score(train_report& report) {
    const bool synthetic = options_.text.empty();
    const auto held_out = job_.source.held_out(synthetic ? 16384 : 8192);
    report.held_out_perplexity = perplexity(*model_, held_out);
    if (!options_.measure) return {};
    report.figures = measure(*model_, held_out, synthetic ? &job_.pieces : nullptr, options_.seed,
                             options_.recipe == "lineage");
    if (options_.dense_state.empty()) return {};
    auto dense_options = options_;
    dense_options.recipe = "dense";
    const auto stages = stages_of(dense_options);
    decoder dense(shape_of(options_, job_.pieces.vocab_size(), 1, 1), options_.seed);
    optimizer_state unused(dense);
    stage_progress reached;
    const auto print = fingerprint_of(dense_options, stages, stages.size() - 1, job_.text_hash);
    if (auto loaded = load_checkpoint(options_.dense_state, dense, unused, reached, print); !loaded)
      return loaded;
    round_to_bf16(dense);
    report.figures->dense_perplexity = perplexity(dense, held_out);
    return {};
  }

  const training_job& job_;
  const train_options& options_;
  std::vector<stage_plan> stages_;
  stage_progress progress_;
  std::unique_ptr<decoder> model_;
  std::unique_ptr<optimizer_state> optimizer_;
};

class torch_backend final : public training_backend {
 public:
  result<trained_model> run(const training_job& job) const override {
    try {
      const int n_threads = std::max(1, job.options.threads);
      at::set_num_threads(n_threads);
      if (openblas_set_num_threads) openblas_set_num_threads(n_threads);
      return training_run(job).run();
    } catch (const c10::Error& problem) {
      return error{errc::failed, fmt::format("LibTorch refused while training: {}",
                                             problem.what_without_backtrace())};
    }
  }
};

}  // namespace

const training_backend& torch_training() {
  static const torch_backend backend;
  return backend;
}

}  // namespace ordermoe::training
