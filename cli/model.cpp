#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/common.hpp"
#include "model/npy.hpp"
#include "model/random_model.hpp"
#include "model/reference.hpp"
#include "model/safetensors.hpp"
#include "model/training/train.hpp"

namespace ordermoe::cli {

namespace {

void add_train(CLI::App& parent) {
  auto& command =
      *parent.add_subcommand("train", "Train a small Mixture-of-Experts model on a text");
  auto options = std::make_shared<training::train_options>();
  auto json = std::make_shared<bool>(false);
  command.add_option("--text", options->text,
                     "Plain text to learn; default: the project's synthetic corpus");
  command.add_option("--out", options->out, "Folder of the finished model")->required();
  command
      .add_option("--recipe", options->recipe,
                  "Where the experts come from: upcycled, lineage or dense")
      ->check(CLI::IsMember({"upcycled", "lineage", "dense"}))
      ->capture_default_str();
  command.add_option("--minutes", options->minutes, "Stop after this long")
      ->check(CLI::Range(0.05, 100000.0))
      ->capture_default_str();
  command.add_option("--tokens", options->tokens,
                     "Train on this many tokens instead, whatever time it takes");
  command
      .add_option("--threads", options->threads,
                  "Threads; more than one makes the weights depend on their number")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Seed of weights, data order and noise")
      ->capture_default_str();
  command.add_flag("--json", *json, "Print JSON on standard output");
  command.footer(
      "Interrupted, the same command goes on where it stopped.\n"
      "Example:\n  ordermoe model train --text my.txt --out my-model --minutes 5");
  set_body(command, [options, json]() -> result<void> {
    progress_line line("training");
    options->should_stop = stop_requested;
    options->on_progress = [&](const training::train_progress& p) {
      line.show(p.share_done, fmt::format("{} step {} loss {:.3f} {:.0f} tokens/s", p.stage, p.step,
                                          p.loss, p.tokens_per_s));
    };
    const auto trained = training::train(*options);
    if (!trained) return trained.error();
    if (*json)
      fmt::print("{}\n",
                 nlohmann::ordered_json{{"folder", trained->folder.string()},
                                        {"recipe", trained->recipe},
                                        {"tokens", trained->tokens},
                                        {"seconds", trained->seconds},
                                        {"held_out_perplexity", trained->held_out_perplexity}}
                     .dump(2));
    else
      fmt::print("{}: {} on {} tokens in {:.0f} s, held-out perplexity {:.3f}; see CARD.md there\n",
                 trained->folder.string(), trained->recipe, trained->tokens, trained->seconds,
                 trained->held_out_perplexity);
    return {};
  });
}

void add_inspect(CLI::App& parent) {
  auto& command = *parent.add_subcommand("inspect", "Show a model's shape and sizes");
  auto folder = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command.add_option("--model", *folder, "Model folder")->required();
  command.add_flag("--json", *json, "Print JSON on standard output");
  command.footer("Example:\n  ordermoe model inspect --model data/models/lineage");
  set_body(command, [folder, json]() -> result<void> {
    const auto path = existing_folder(*folder, "--model");
    if (!path) return path.error();
    const auto shape = model::read_model_config(*path);
    if (!shape) return shape.error();
    const auto checked = model::transformer::load(*path);
    if (!checked) return checked.error();
    const auto digest = model::model_digest(*path);
    if (!digest) return digest.error();
    const auto costs = model::own_costs(*shape);
    const auto experts =
        costs.expert_bytes * static_cast<std::int64_t>(shape->n_layers * shape->n_experts);
    if (*json) {
      fmt::print(
          "{}\n",
          nlohmann::ordered_json{{"family", model::to_string(shape->kind)},
                                 {"layers", shape->n_layers},
                                 {"experts", shape->n_experts},
                                 {"top_k", shape->top_k},
                                 {"hidden_size", shape->hidden_size},
                                 {"intermediate_size", shape->intermediate_size},
                                 {"shared_intermediate_size", shape->shared_intermediate_size},
                                 {"heads", shape->n_heads},
                                 {"kv_heads", shape->n_kv_heads},
                                 {"head_dim", shape->head_dim},
                                 {"vocabulary", shape->vocab_size},
                                 {"context", shape->max_context},
                                 {"expert_bytes", costs.expert_bytes},
                                 {"all_experts_bytes", experts},
                                 {"resident_bytes", costs.resident_bytes(shape->n_layers)},
                                 {"digest", *digest}}
              .dump(2));
      return {};
    }
    fmt::print(
        "{}: layers {}, experts {} (top {}{}), hidden {}, expert width {}{}, heads {} ({} for keys "
        "and values) of {}\n"
        "vocabulary {}, context {} tokens\n"
        "bf16 bytes: one expert {}, all experts {}, everything else {}\ndigest {}\n",
        model::architecture_of(shape->kind), shape->n_layers, shape->n_experts, shape->top_k,
        shape->gates == model::gate_rule::renormalised ? "" : ", gates not renormalised",
        shape->hidden_size, shape->intermediate_size,
        shape->shared_intermediate_size == 0
            ? std::string()
            : fmt::format(" (shared expert {})", shape->shared_intermediate_size),
        shape->n_heads, shape->n_kv_heads, shape->head_dim, shape->vocab_size, shape->max_context,
        costs.expert_bytes, experts, costs.resident_bytes(shape->n_layers), *digest);
    return {};
  });
}

result<std::vector<std::int32_t>> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::size_t used = 0;
    long value = -1;
    try {
      value = std::stol(part, &used);
    } catch (const std::exception&) {
    }
    if (part.empty() || used != part.size() || value < 0 || value > 0x7fffffffL)
      return error{
          errc::usage,
          fmt::format("--ids '{}': expected token ids separated by commas, as in 1,2,3; found '{}'",
                      text, part)};
    ids.push_back(static_cast<std::int32_t>(value));
  }
  if (ids.empty()) return error{errc::usage, "--ids: no token ids; expected something like 1,2,3"};
  return ids;
}

void add_logits(CLI::App& parent) {
  struct content {
    std::string model, ids, out;
    bool json = false;
  };
  auto& command = *parent.add_subcommand(
      "logits", "Write the reference's logits for token ids as a NumPy file");
  auto options = std::make_shared<content>();
  command.add_option("--model", options->model, "Model folder")->required();
  command.add_option("--ids", options->ids, "Token ids separated by commas")->required();
  command.add_option("--out", options->out, "File to write: fp32 [tokens, vocabulary]")->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Example:\n  ordermoe model logits --model data/models/lineage --ids 1,2,3 --out logits.npy");
  set_body(command, [options]() -> result<void> {
    const auto ids = parse_ids(options->ids);
    if (!ids) return ids.error();
    const auto folder = existing_folder(options->model, "--model");
    if (!folder) return folder.error();
    const auto loaded = model::transformer::load(*folder);
    if (!loaded) return loaded.error();
    const auto numbers = model::logits(**loaded, *ids);
    if (!numbers) return at("--ids", numbers.error());
    const auto vocabulary = (*loaded)->config().vocab_size;
    if (auto written = model::write_npy(options->out, *numbers, ids->size(), vocabulary); !written)
      return written.error();
    if (options->json)
      fmt::print("{}\n",
                 nlohmann::ordered_json{
                     {"file", options->out}, {"tokens", ids->size()}, {"vocabulary", vocabulary}}
                     .dump(2));
    else
      fmt::print("{}: fp32 [{}, {}]\n", options->out, ids->size(), vocabulary);
    return {};
  });
}

void add_make_random(CLI::App& parent) {
  struct content {
    std::string family = "mixtral", out;
    std::size_t layers = 0;
    std::uint64_t seed = 1;
    bool small = false, json = false;
  };
  auto& command = *parent.add_subcommand(
      "make-random", "Write a complete model folder with random weights, to test and measure with");
  auto options = std::make_shared<content>();
  command.add_option("--family", options->family, "mixtral, qwen2_moe, qwen3_moe or olmoe")
      ->check(CLI::IsMember({"mixtral", "qwen2_moe", "qwen3_moe", "olmoe"}))
      ->required();
  auto* small = command.add_flag("--small", options->small, "Three layers of eight small experts");
  command
      .add_option("--layers", options->layers,
                  "So many layers at the full width of the family's published model")
      ->check(CLI::Range(1, 1024))
      ->excludes(small);
  command.add_option("--seed", options->seed, "Seed of the weights")->capture_default_str();
  command.add_option("--out", options->out, "Folder to write; absent or empty before")->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Full width: Mixtral-8x7B, Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, OLMoE-1B-7B. Weights are bf16.\n"
      "Example:\n  ordermoe model make-random --family qwen2_moe --small --seed 1 --out "
      "random-qwen");
  set_body(command, [options]() -> result<void> {
    if (!options->small && options->layers == 0)
      return error{errc::usage,
                   "make-random: give --small, or --layers N for N layers at full width"};
    model::random_model_options what;
    for (const auto kind : {model::family::mixtral, model::family::qwen2_moe,
                            model::family::qwen3_moe, model::family::olmoe})
      if (options->family == model::to_string(kind))
        what.shape = options->small ? model::small_shape(kind)
                                    : model::published_shape(kind, options->layers);
    constexpr std::size_t most_pieces = 768;
    const auto tokenizer =
        training::synthetic_tokenizer(std::min(most_pieces, what.shape.vocab_size));
    if (!tokenizer) return tokenizer.error();
    what.seed = options->seed;
    what.tokenizer = *tokenizer;
    what.should_stop = stop_requested;
    progress_line line("writing weights");
    what.progress = [&](double share) { line.show(share); };
    const auto made = model::write_random_model(options->out, what);
    if (!made) return at("--out", made.error());
    if (options->json)
      fmt::print("{}\n", nlohmann::ordered_json{{"folder", options->out},
                                                {"family", options->family},
                                                {"layers", what.shape.n_layers},
                                                {"seed", options->seed},
                                                {"tensors", made->n_tensors},
                                                {"weight_files", made->n_files},
                                                {"weight_bytes", made->weight_bytes}}
                             .dump(2));
    else
      fmt::print("{}: {} with {} layers, {} tensors of {} bytes in {} {}\n", options->out,
                 model::architecture_of(what.shape.kind), what.shape.n_layers, made->n_tensors,
                 made->weight_bytes, made->n_files, made->n_files == 1 ? "file" : "files");
    return {};
  });
}

}  // namespace

void add_model(CLI::App& app) {
  auto& parent = *app.add_subcommand("model", "Train, make and inspect models");
  parent.require_subcommand(1);
  add_train(parent);
  add_inspect(parent);
  add_logits(parent);
  add_make_random(parent);
}

}  // namespace ordermoe::cli
