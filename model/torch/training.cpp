#include "model/torch/training_torch.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <torch/torch.h>

#include "model/torch/decoder_torch.hpp"
#include "model/torch/figures_torch.hpp"
#include "model/torch/trainer_torch.hpp"
#include "model/torch/training_device_torch.hpp"

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
  shape.kind = o.kind;
  shape.gates = o.gates;
  shape.shared_intermediate_size = o.shared_intermediate_size;
  shape.query_key_value_bias = o.kind == model::family::qwen2_moe;
  if (o.kind == model::family::qwen3_moe) shape.qk_norm = model::query_key_norm::per_head;
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
  if (o.shape != "small") print += " of " + o.shape;
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
    auto opened = open_training_device(options_.device);
    if (!opened) return opened.error();
    device_ = std::move(*opened);
    std::unique_ptr<trained_model> plain;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (stages_[i].outages && !options_.plain.empty()) {
        auto before = finished_model();
        if (!before) return before.error();
        before->report.plain = true;
        plain = std::make_unique<trained_model>(std::move(*before));
      }
      if (auto done = reach_end_of(i); !done) return done.error();
    }
    auto made = finished_model();
    if (made) made->plain = std::move(plain);
    return made;
  }

 private:
  /// The model as it is, rounded to what a folder holds, with its figures.
  result<trained_model> finished_model() {
    const auto copy = copy_of(*model_, at::kCPU);
    auto& here = *copy;
    round_to_bf16(here);
    trained_model made;
    made.report.recipe = options_.recipe;
    made.report.tokens = progress_.tokens;
    made.report.seconds = progress_.seconds;
    made.report.devices = progress_.devices;
    made.report.curve = progress_.curve;
    if (auto measured = score(here, made.report); !measured) return measured.error();
    made.shape = here.shape();
    for (const auto& [name, tensor] : here.export_tensors())
      made.tensors.push_back(store_bf16(name, tensor.sizes().vec(), tensor.data_ptr<float>()));
    return made;
  }

  /// A copy of a model, elsewhere.
  static std::unique_ptr<decoder> copy_of(decoder& model, at::Device where) {
    torch::NoGradGuard no_gradients;
    auto made = std::make_unique<decoder>(model.shape(), 0, where);
    made->parameters().copy_(model.parameters());
    return made;
  }

  /// Makes the model of a stage: a fresh one, one grown from what is there, or what is there.
  void begin(std::size_t i) {
    progress_.steps = 0;
    if (i > 0 && !grows(i)) return;
    const auto& stage = stages_[i];
    const auto shape = shape_of(options_, job_.pieces.vocab_size(), stage.n_experts, stage.top_k);
    // Made on the CPU, piece by piece.
    auto next = std::make_unique<decoder>(shape, options_.seed + i);
    if (i > 0) {
      const bool siblings = stages_[i - 1].n_experts > 1;
      growth how{options_.weight_noise,
                 siblings ? options_.sibling_redrawn_share : options_.redrawn_share,
                 options_.router_noise};
      // A gate that is a probability starts well above 1 / n_experts only where logits differ.
      if (shape.gates == model::gate_rule::probabilities)
        how.drawn_router = 1.0 / std::sqrt(static_cast<double>(shape.hidden_size));
      grow(*copy_of(*model_, at::kCPU), *next, how, mix64(options_.seed) + i);
    }
    model_ = device_.where.is_cpu() ? std::move(next) : copy_of(*next, device_.where);
    if (device_.plain) model_->use_plain_blocks();
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
    const auto has_finished = is_there(finished), has_begun = is_there(running);
    if (!has_finished) return has_finished.error();
    if (!has_begun) return has_begun.error();
    if (*has_finished) return load_checkpoint(finished, *model_, *optimizer_, progress_, print);
    if (*has_begun)
      if (auto loaded = load_checkpoint(running, *model_, *optimizer_, progress_, print); !loaded)
        return loaded;
    if (std::ranges::find(progress_.devices, device_.kept) == progress_.devices.end())
      progress_.devices.push_back(device_.kept);
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

  result<void> score(decoder& model, train_report& report) {
    const bool synthetic = options_.text.empty();
    const auto held_out = job_.source.held_out(synthetic ? 16384 : 8192);
    report.held_out_perplexity = perplexity(model, held_out, options_.should_stop);
    if (!options_.measure) return {};
    report.figures = measure(model, held_out, synthetic ? &job_.pieces : nullptr, options_.seed,
                             options_.recipe == "lineage", options_.should_stop);
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
    report.figures->dense_perplexity = perplexity(dense, held_out, options_.should_stop);
    return {};
  }

  const training_job& job_;
  const train_options& options_;
  std::vector<stage_plan> stages_;
  training_device device_;
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
      // Training needs no more than TF32's ten bits of a product's factors.
      at::globalContext().setAllowTF32CuBLAS(true);
      return training_run(job).run();
    } catch (const measuring_stopped&) {
      return error{
          errc::interrupted,
          "stopped while the trained model was measured; the same command goes on from there"};
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
