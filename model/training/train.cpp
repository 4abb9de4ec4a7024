#include "model/training/train.hpp"

#include <algorithm>
#include <cmath>
#include <system_error>

#include <fmt/format.h>
#include <torch/torch.h>

#include "config/files.hpp"
#include "model/training/card.hpp"
#include "model/training/corpus.hpp"
#include "model/training/decoder_torch.hpp"
#include "model/training/figures_torch.hpp"
#include "model/training/safetensors_file.hpp"
#include "model/training/text_source.hpp"
#include "model/training/tokenizer_training.hpp"
#include "model/training/trainer_torch.hpp"

/// LibTorch's own setting does not reach OpenBLAS, where that is the BLAS in use.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace ordermoe::training {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t tokenizer_seed = 7;

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

result<void> check(const train_options& o) {
  const auto refuse = [](std::string what) { return error{errc::usage, std::move(what)}; };
  if (stages_of(o).empty())
    return refuse(
        fmt::format("recipe \"{}\" is not known; use upcycled, lineage or dense", o.recipe));
  if (o.out.empty()) return refuse("no folder for the model was given");
  if (o.n_heads == 0 || o.hidden_size % o.n_heads != 0 || (o.hidden_size / o.n_heads) % 2 != 0)
    return refuse(fmt::format("hidden size {} does not divide into {} heads of even width",
                              o.hidden_size, o.n_heads));
  if (o.n_kv_heads == 0 || o.n_heads % o.n_kv_heads != 0)
    return refuse(
        fmt::format("{} heads do not share {} key-value heads evenly", o.n_heads, o.n_kv_heads));
  if (o.n_experts < 2 || o.n_experts % 2 != 0 || o.top_k == 0 || o.top_k > o.n_experts / 2)
    return refuse(fmt::format(
        "{} experts with top {}: an even number of experts is needed, and top-k at most half of it",
        o.n_experts, o.top_k));
  if (o.n_layers == 0 || o.intermediate_size == 0 || o.sequence_length < 2 ||
      o.sequences_per_step == 0 || o.sequence_length > o.max_context)
    return refuse(
        "layers, intermediate size and batch must be positive, and rows no longer than the "
        "context");
  if (o.tokens == 0 && !(o.minutes > 0))
    return refuse(fmt::format("{} minutes are no time to train in", o.minutes));
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

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

result<void> write_folder(const fs::path& folder, const decoder& model,
                          const std::string& tokenizer) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem)
    return error{errc::io, fmt::format("{}: the folder cannot be made: {}", folder.string(),
                                       problem.message())};
  stored_file content;
  content.metadata["format"] = "pt";
  for (const auto& [name, tensor] : model.export_tensors())
    content.tensors.push_back(store_bf16(name, tensor.sizes().vec(), tensor.data_ptr<float>()));
  if (auto done = write_file(folder / "tokenizer.model", tokenizer); !done) return done;
  if (auto done = write_safetensors(folder / "model.safetensors", content); !done) return done;
  return write_file(folder / "config.json", model::model_config_json(model.shape()));
}

result<train_report> train_checked(const train_options& options) {
  at::set_num_threads(std::max(1, options.threads));
  if (openblas_set_num_threads) openblas_set_num_threads(std::max(1, options.threads));
  std::string text;
  std::string tokenizer;
  if (options.text.empty()) {
    auto bytes = synthetic_tokenizer(options.vocab_size);
    if (!bytes) return bytes.error();
    tokenizer = std::move(*bytes);
  } else {
    auto bytes = read_file(options.text);
    if (!bytes) return bytes.error();
    text = std::move(*bytes);
    auto trained = train_tokenizer(lines_of(text), {options.vocab_size});
    if (!trained) return at(options.text.string(), trained.error());
    tokenizer = std::move(*trained);
  }
  auto pieces = piece_encoder::from_bytes(tokenizer);
  if (!pieces) return pieces.error();
  std::unique_ptr<text_source> source;
  if (options.text.empty()) {
    source = synthetic_source(*pieces, options.seed);
  } else {
    const auto longest = std::min(options.max_context, 2 * options.sequence_length) + 1;
    auto made = user_source(*pieces, text, longest, options.seed);
    if (!made) return at(options.text.string(), made.error());
    source = std::move(*made);
  }
  const auto text_hash = sha256_hex(tokenizer + text);
  const auto state = options.state.empty() ? options.out / ".training" : options.state;
  std::error_code problem;
  fs::create_directories(state, problem);
  if (problem)
    return error{errc::io, fmt::format("{}: the folder cannot be made: {}", state.string(),
                                       problem.message())};

  const auto stages = stages_of(options);
  stage_progress progress;
  std::unique_ptr<decoder> model;
  std::unique_ptr<optimizer_state> optimizer;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& stage = stages[i];
    const auto shape = shape_of(options, (*pieces)->vocab_size(), stage.n_experts, stage.top_k);
    const bool grows = i > 0 && stage.n_experts != stages[i - 1].n_experts;
    if (i == 0 || grows) {
      auto next = std::make_unique<decoder>(shape, options.seed + i);
      if (grows)
        grow(*model, *next,
             {options.weight_noise,
              stages[i - 1].n_experts > 1 ? options.sibling_redrawn_share : options.redrawn_share,
              options.router_noise},
             mix64(options.seed) + i);
      model = std::move(next);
      optimizer = std::make_unique<optimizer_state>(*model);
    }
    progress.steps = 0;
    const auto print = fingerprint_of(options, stages, i, text_hash);
    const auto finished = state / (stage.name + ".safetensors"),
               running = state / (stage.name + ".part.safetensors");
    if (fs::exists(finished)) {
      if (auto loaded = load_checkpoint(finished, *model, *optimizer, progress, print); !loaded)
        return loaded.error();
      continue;
    }
    if (fs::exists(running))
      if (auto loaded = load_checkpoint(running, *model, *optimizer, progress, print); !loaded)
        return loaded.error();
    const auto save = [&]() -> result<void> {
      if (auto saved = save_checkpoint(running, *model, *optimizer, progress, print); !saved)
        return saved;
      return write_folder(options.out, *model, tokenizer);
    };
    const stage_limits limits{stage.name, stage.end, stage.outages, options.recipe == "lineage",
                              i == 0 || grows};
    if (auto ran = run_stage(*model, *optimizer, progress, *source, options, limits, save); !ran)
      return ran.error();
    if (auto saved = save_checkpoint(finished, *model, *optimizer, progress, print); !saved)
      return saved.error();
    fs::remove(running, problem);
  }

  train_report report;
  report.folder = options.out;
  report.recipe = options.recipe;
  report.tokens = progress.tokens;
  report.seconds = progress.seconds;
  report.curve = progress.curve;
  round_to_bf16(*model);
  const auto held_out = source->held_out(options.text.empty() ? 16384 : 8192);
  report.held_out_perplexity = perplexity(*model, held_out);
  if (options.measure) {
    report.figures = measure(*model, held_out, options.text.empty() ? pieces->get() : nullptr,
                             options.seed, options.recipe == "lineage");
    if (!options.dense_state.empty()) {
      auto dense_options = options;
      dense_options.recipe = "dense";
      const auto dense_stages = stages_of(dense_options);
      decoder dense(shape_of(options, (*pieces)->vocab_size(), 1, 1), options.seed);
      optimizer_state unused(dense);
      stage_progress reached;
      if (auto loaded = load_checkpoint(
              options.dense_state, dense, unused, reached,
              fingerprint_of(dense_options, dense_stages, dense_stages.size() - 1, text_hash));
          !loaded)
        return loaded.error();
      round_to_bf16(dense);
      report.figures->dense_perplexity = perplexity(dense, held_out);
    }
  }
  if (auto written = write_folder(options.out, *model, tokenizer); !written) return written.error();
  if (auto written = write_file(options.out / "CARD.md", card_text(options, report)); !written)
    return written.error();
  if (options.state.empty()) fs::remove_all(state, problem);
  return report;
}

}  // namespace

result<std::string> synthetic_tokenizer(std::size_t vocab_size) {
  std::vector<std::string> lines;
  for (std::uint64_t d = 0; d < 6000; ++d)
    for (auto& line : lines_of(make_document(split::train, tokenizer_seed, d).text()))
      lines.push_back(std::move(line));
  return train_tokenizer(lines, {vocab_size});
}

result<train_report> train(const train_options& options) {
  if (auto fine = check(options); !fine) return fine.error();
  try {
    return train_checked(options);
  } catch (const c10::Error& problem) {
    return error{errc::failed, fmt::format("LibTorch refused while training: {}",
                                           problem.what_without_backtrace())};
  }
}

}  // namespace ordermoe::training
