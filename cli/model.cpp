#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/common.hpp"
#include "cli/model_commands.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "model/checkpoint/checksums.hpp"
#include "model/checkpoint/convert.hpp"
#include "model/checkpoint/inspect.hpp"
#include "model/checkpoint/npy.hpp"
#include "model/checkpoint/packed_tensors.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/random_model.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/checkpoint/verify.hpp"
#include "model/reference.hpp"
#include "model/training/shapes.hpp"
#include "model/training/train.hpp"
#include "setup/calibration.hpp"

namespace ordermoe::cli {

namespace {

/// The profile of a model that was just trained, on texts of its own kind.
result<std::map<std::string, std::string>> own_profile(
    const training::train_options& options, const std::filesystem::path& out,
    const std::filesystem::path& folder, const std::vector<std::vector<std::int32_t>>& left_out) {
  if (options.recipe == "dense") return std::map<std::string, std::string>();
  if (left_out.empty()) {
    fmt::print(stderr,
               "ordermoe: {} is too short to leave some of it out: no profile.json is written; run "
               "`ordermoe calibrate --text FILE` with more text of its kind\n",
               options.text.string());
    return std::map<std::string, std::string>();
  }
  const auto model = model::transformer::load(folder);
  if (!model) return model.error();
  progress_line line("calibrating");
  setup::calibration_request request;
  request.folder = folder;
  request.model_name = (out.has_filename() ? out : out.parent_path()).filename().string();
  auto parts = setup::set_apart(left_out, left_out.size());
  request.documents = std::move(parts.documents);
  request.apart = std::move(parts.apart);
  request.seed = options.seed;
  request.copies = {precision::int8, precision::int4};
  request.progress = [&](double share) { line.show(share); };
  request.should_stop = stop_requested;
  const auto made = setup::calibrate_model(**model, request);
  if (!made) return made.error();
  if (const auto problem = setup::unfit(*made, (*model)->config())) warn_of(*problem);
  return std::map<std::string, std::string>{{"profile.json", planning::profile_json(*made)}};
}

void add_train(CLI::App& parent) {
  auto& command =
      *parent.add_subcommand("train", "Train a small Mixture-of-Experts model on a text");
  auto options = std::make_shared<training::train_options>();
  auto json = std::make_shared<bool>(false);
  auto shape = std::make_shared<std::string>(options->shape);
  command
      .add_option("--text", options->text,
                  "Plain text to learn; default: the project's synthetic corpus")
      ->type_name(file_value);
  command.add_option("--out", options->out, "Folder of the finished model; absent or empty before")
      ->type_name(folder_value)
      ->required();
  command
      .add_option("--recipe", options->recipe,
                  "Where the experts come from: upcycled, lineage or dense")
      ->check(CLI::IsMember({"upcycled", "lineage", "dense"}))
      ->capture_default_str();
  command
      .add_option("--shape", *shape,
                  "Sizes and routing: small, or those of a real model at a small width, "
                  "mixtral-twin (32 layers), qwen-twin (24) or switch-twin (12)")
      ->check(CLI::IsMember(training::shape_names()))
      ->capture_default_str();
  command
      .add_option("--plain", options->plain,
                  "Folder for the model as it is before the stage of outages too: no expert has "
                  "learnt to replace another there")
      ->type_name(folder_value);
  command
      .add_option("--device", options->device,
                  "What trains: cpu, or one that LibTorch knows, as libtorch:cuda:0")
      ->type_name("DEVICE")
      ->capture_default_str();
  command
      .add_option("--minutes", options->minutes,
                  "Stop training after this long; tokenizer, profile and card come on top")
      ->check(CLI::Range(0.05, 100000.0))
      ->capture_default_str();
  command
      .add_option("--tokens", options->tokens,
                  "Train on this many tokens instead, whatever time it takes")
      ->check(whole_from(1, 1'000'000'000'000));
  command
      .add_option("--threads", options->threads,
                  "Threads; on the CPU, more than one makes the weights depend on their number")
      ->check(whole_from(1, 256))
      ->capture_default_str();
  add_seed(command, options->seed, "Seed of weights, data order and noise");
  command.add_flag("--json", *json, "Print JSON on standard output");
  command.footer(
      "The folder appears at the end, with a profile.json made on pieces of the text that are left "
      "out\n"
      "of training. Interrupted, the same command goes on where it stopped.\n"
      "Examples:\n"
      "  ordermoe model train --text my.txt --out my-model --minutes 5\n"
      "  ordermoe model train --shape mixtral-twin --device libtorch:cuda:0 --threads 8 --tokens "
      "60000000 \\\n    --plain twin-plain --out twin");
  set_body(command, [options, json, shape]() -> result<void> {
    if (auto known = training::use_shape(*options, *shape); !known) return known.error();
    progress_line line("training");
    options->should_stop = stop_requested;
    options->on_progress = [&](const training::train_progress& p) {
      line.show(p.share_done, fmt::format("{} step {} loss {:.3f} {:.0f} tokens/s", p.stage, p.step,
                                          p.loss, p.tokens_per_s));
    };
    options->finish = [&](const std::filesystem::path& out, const std::filesystem::path& folder,
                          const auto& left_out) {
      return own_profile(*options, out, folder, left_out);
    };
    const auto trained = training::train(*options);
    if (!trained) return trained.error();
    if (*json)
      fmt::print(
          "{}\n",
          json_text(nlohmann::ordered_json{{"folder", trained->folder.string()},
                                           {"recipe", trained->recipe},
                                           {"tokens", trained->tokens},
                                           {"seconds", trained->seconds},
                                           {"held_out_perplexity", trained->held_out_perplexity}},
                    2));
    else
      fmt::print("{}: {} on {} tokens in {:.0f} s, held-out perplexity {:.3f}; see CARD.md there\n",
                 trained->folder.string(), trained->recipe, trained->tokens, trained->seconds,
                 trained->held_out_perplexity);
    return {};
  });
}

/// Bytes as a person reads them.
std::string readable(std::int64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", number * 1e-9);
  if (bytes >= 1'000'000) return fmt::format("{:.2f} MB", number * 1e-6);
  return fmt::format("{} bytes", bytes);
}

nlohmann::ordered_json room_json(const cluster& servers,
                                 const std::vector<model::cluster_room>& rooms) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const auto& room : rooms) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (std::size_t m = 0; m < servers.size(); ++m)
      list.push_back({{"server", servers.servers[m].name},
                      {"holds_non_expert_parts", room.servers[m].left_bytes >= 0},
                      {"bytes_left_for_experts", room.servers[m].left_bytes},
                      {"experts", room.servers[m].n_experts}});
    all[model::to_string(room.kept)] = {{"holds_one_copy", room.holds_a_copy},
                                        {"experts", room.n_experts},
                                        {"missing_bytes", room.missing_bytes},
                                        {"servers", std::move(list)}};
  }
  return all;
}

void print_room(const cluster& servers, const std::vector<model::cluster_room>& rooms,
                const model::model_sizes& sizes) {
  fmt::print(
      "\n{}: experts that fit beside all other parts and the KV memory of the file, in the model's "
      "own\nbytes (so `run --mode local` counts; `plan`, and `run` in virtual time, charge the "
      "costs of\nmixtral-8x7b unless told --costs measured)\n",
      servers.name.empty() ? std::string("cluster") : servers.name);
  fmt::print("{:<16}{:>12}", "server", "memory");
  for (const auto& room : rooms) fmt::print("{:>10}", model::to_string(room.kept));
  fmt::print("\n");
  for (std::size_t m = 0; m < servers.size(); ++m) {
    const auto& server = servers.servers[m];
    fmt::print("{:<16}{:>12}", server.name, readable(server.memory_bytes));
    for (const auto& room : rooms) {
      const auto& one = room.servers[m];
      fmt::print("{:>10}",
                 one.left_bytes < 0 ? std::string("-") : fmt::format("{}", one.n_experts));
    }
    fmt::print("\n");
  }
  fmt::print("{:<28}", fmt::format("one copy ({} experts)", sizes.n_experts));
  for (const auto& room : rooms) fmt::print("{:>10}", room.holds_a_copy ? "fits" : "no");
  fmt::print("\n");
  for (const auto& room : rooms)
    if (!room.holds_a_copy)
      fmt::print("in {}, {} of {} experts fit; {} are missing\n", model::to_string(room.kept),
                 room.n_experts, sizes.n_experts, readable(room.missing_bytes));
}

void add_inspect(CLI::App& parent) {
  struct content {
    std::string folder, cluster;
    bool json = false;
  };
  auto& command = *parent.add_subcommand(
      "inspect",
      "Show a model's shape, its sizes at each precision, and what a cluster could hold");
  auto options = std::make_shared<content>();
  command.add_option("--model", options->folder, "Model folder")
      ->type_name(folder_value)
      ->required();
  command
      .add_option("--cluster", options->cluster,
                  "Cluster file (TOML): how many experts each server could hold")
      ->type_name(file_value);
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Reads headers, no weights; `ordermoe model verify` reads all. A server's memory is counted "
      "in the\nmodel's own bytes, as `plan --costs measured` and `run --mode local` do; `plan`, "
      "and `run` in\nvirtual time, charge those of mixtral-8x7b unless told.\n"
      "Example:\n  ordermoe model inspect --model data/models/lineage --cluster "
      "data/clusters/edge8.toml");
  set_body(command, [options]() -> result<void> {
    const auto path = existing_folder(options->folder, "--model");
    if (!path) return path.error();
    const auto shape = model::read_model_config(*path);
    if (!shape) return shape.error();
    const auto source = model::checkpoint::open_folder(*path);
    if (!source) return source.error();
    const auto part = model::read_part(*path);
    if (!part) return part.error();
    const auto problems = model::compare_tensors(
        *shape, (*source)->place().string(), (*source)->tensors(),
        *part ? model::left_out(*shape, **part) : std::set<std::string, std::less<>>());
    if (!problems.empty()) return problems.front();
    const auto digest = model::model_digest(*path);
    if (!digest) return digest.error();
    std::optional<cluster> servers;
    if (!options->cluster.empty()) {
      auto read = read_cluster(options->cluster);
      if (!read) return read.error();
      servers = std::move(*read);
    }
    const auto costs = model::own_costs(*shape);
    const auto sizes = model::sizes_of(*shape);
    std::map<std::string, std::size_t> types;
    std::uint64_t stored = 0;
    const bool packed = model::is_packed((*source)->tensors());
    for (const auto& [name, view] : (*source)->tensors()) {
      ++types[model::to_string(view.type)];
      stored += view.bytes.size();
    }
    if (options->json) {
      nlohmann::ordered_json content{
          {"family", model::to_string(shape->kind)},
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
          {"all_experts_bytes", costs.expert_bytes * static_cast<std::int64_t>(sizes.n_experts)},
          {"resident_bytes", costs.resident_bytes(shape->n_layers)},
          {"tensors", (*source)->tensors().size()},
          {"tensor_types", types},
          {"tensor_bytes", stored},
          {"packed", packed},
          {"weights", sizes.total_weights},
          {"expert_weights", sizes.expert_weights},
          {"non_expert_weights", sizes.non_expert_weights}};
      for (const auto& each : sizes.storages)
        content["precisions"][model::to_string(each.kept)] = {
            {"expert_bytes", each.expert_bytes},
            {"all_experts_bytes", each.total_bytes - each.non_expert_bytes},
            {"non_expert_bytes", each.non_expert_bytes},
            {"total_bytes", each.total_bytes}};
      if (servers) content["cluster_costs"] = "measured";
      if (servers) content["cluster"] = room_json(*servers, model::room_in(*servers, sizes));
      content["digest"] = *digest;
      fmt::print("{}\n", json_text(content, 2));
      return {};
    }
    fmt::print(
        "{}: layers {}, experts {} (top {}{}), hidden {}, expert width {}{}, heads {} ({} for keys "
        "and values) of {}\n"
        "vocabulary {}, context {} tokens\n",
        model::architecture_of(shape->kind), shape->n_layers, shape->n_experts, shape->top_k,
        shape->gates == model::gate_rule::renormalised ? "" : ", gates not renormalised",
        shape->hidden_size, shape->intermediate_size,
        shape->shared_intermediate_size == 0
            ? std::string()
            : fmt::format(" (shared expert {})", shape->shared_intermediate_size),
        shape->n_heads, shape->n_kv_heads, shape->head_dim, shape->vocab_size, shape->max_context);
    std::string kinds;
    for (const auto& [type, n] : types)
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", n, type);
    fmt::print("{} tensors ({}) of {} bytes{}; {} weights, {} in each of {} experts\n",
               (*source)->tensors().size(), kinds, stored,
               packed ? ", packed as they are computed with" : "", sizes.total_weights,
               sizes.expert_weights, sizes.n_experts);
    fmt::print("{:<10}{:>16}{:>18}{:>18}{:>18}\n", "bytes in", "one expert", "all experts",
               "everything else", "in all");
    for (const auto& each : sizes.storages)
      fmt::print("{:<10}{:>16}{:>18}{:>18}{:>18}\n", model::to_string(each.kept), each.expert_bytes,
                 each.total_bytes - each.non_expert_bytes, each.non_expert_bytes, each.total_bytes);
    fmt::print("digest {}\n", *digest);
    if (servers) print_room(*servers, model::room_in(*servers, sizes), sizes);
    return {};
  });
}

void add_verify(CLI::App& parent) {
  struct content {
    std::string folder;
    bool checksums = false, write = false, json = false;
  };
  auto& command =
      *parent.add_subcommand("verify", "Check every part of a model's folder against every other");
  auto options = std::make_shared<content>();
  command.add_option("--model", options->folder, "Model folder")
      ->type_name(folder_value)
      ->required();
  auto* checksums = command.add_flag(
      "--checksums", options->checksums,
      fmt::format("Compare the files with the folder's {} as well", model::checksums_name));
  command
      .add_flag("--write-checksums", options->write,
                fmt::format("Write {} once everything else is found good", model::checksums_name))
      ->excludes(checksums);
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Names everything that is wrong, not only the first thing. The list of checksums is the one "
      "of "
      "sha256sum.\n"
      "Example:\n  ordermoe model verify --model data/models/lineage");
  set_body(command, [options]() -> result<void> {
    const auto path = existing_folder(options->folder, "--model");
    if (!path) return path.error();
    result<model::verify_report> checked = error{errc::failed, "not run"};
    std::size_t written = 0;
    {
      progress_line line("verifying");
      model::work_watch watch;
      watch.progress = [&](double share) { line.show(share); };
      watch.should_stop = stop_requested;
      checked = model::verify_model(
          *path, options->checksums ? model::checksum_check::verify : model::checksum_check::skip,
          watch);
      if (!checked) return checked.error();
      if (options->write && checked->problems.empty()) {
        progress_line hashing("hashing");
        watch.progress = [&](double share) { hashing.show(share); };
        const auto list = model::hash_model_files(*path, watch);
        if (!list) return list.error();
        written = list->size();
        if (auto done = write_file(*path / model::checksums_name, model::checksums_text(*list));
            !done)
          return done.error();
      }
    }
    const auto& r = *checked;
    if (options->json) {
      nlohmann::ordered_json problems = nlohmann::ordered_json::array();
      for (const auto& problem : r.problems)
        problems.push_back({{"kind", describe(problem.code)}, {"message", problem.message}});
      fmt::print("{}\n", json_text(nlohmann::ordered_json{{"valid", r.problems.empty()},
                                                          {"weight_files", r.n_files},
                                                          {"tensors", r.n_tensors},
                                                          {"tensor_types", r.tensors_of_type},
                                                          {"tensor_bytes", r.tensor_bytes},
                                                          {"tokenizer_pieces", r.tokenizer_pieces},
                                                          {"checksums_compared", r.n_checksums},
                                                          {"checksums_written", written},
                                                          {"problems", std::move(problems)}},
                                   2));
    }
    if (!r.problems.empty()) {
      constexpr std::size_t most_shown = 20;
      for (std::size_t i = 1; i < r.problems.size() && i <= most_shown && !options->json; ++i)
        fmt::print(stderr, "ordermoe: {}\n", r.problems[i].message);
      auto first = r.problems.front();
      if (r.problems.size() > 1)
        first.message += fmt::format(
            " ({} problems in all{})", r.problems.size(),
            r.problems.size() > most_shown + 1 && !options->json ? "; --json lists them" : "");
      return first;
    }
    if (options->json) return {};
    fmt::print(
        "{}: valid. {} tensors of {} bytes in {} {}, all numbers finite; tokenizer of {} "
        "pieces\n",
        options->folder, r.n_tensors, r.tensor_bytes, r.n_files, r.n_files == 1 ? "file" : "files",
        r.tokenizer_pieces);
    if (options->checksums) fmt::print("{} files have the digests of their list\n", r.n_checksums);
    if (options->write) fmt::print("digests of {} files written\n", written);
    return {};
  });
}

result<std::vector<std::int32_t>> parse_ids(const char* option, const std::string& text) {
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
          fmt::format("{} '{}': expected token ids separated by commas, as in 1,2,3; found '{}'",
                      option, text, part)};
    ids.push_back(static_cast<std::int32_t>(value));
  }
  if (ids.empty())
    return error{errc::usage,
                 fmt::format("{}: no token ids; expected something like 1,2,3", option)};
  return ids;
}

void add_logits(CLI::App& parent) {
  struct content {
    std::string model, ids, decoder_ids, out, expert_precision = "stored";
    std::string dense_precision = "stored", device = "cpu";
    bool json = false;
  };
  auto& command = *parent.add_subcommand(
      "logits", "Write the reference's logits for token ids as a NumPy file");
  auto options = std::make_shared<content>();
  command.add_option("--model", options->model, "Model folder")
      ->type_name(folder_value)
      ->required();
  command.add_option("--ids", options->ids, "Token ids separated by commas")->required();
  command.add_option("--decoder-ids", options->decoder_ids,
                     "What the decoder of an encoder-decoder reads, --ids being its encoder's; "
                     "default: its start token, then --ids but for the last");
  command.add_option("--out", options->out, "File to write: fp32 [tokens, vocabulary]")
      ->type_name(file_value)
      ->required();
  add_precisions(command, options->expert_precision, options->dense_precision);
  add_device(command, options->device);
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Example:\n  ordermoe model logits --model data/models/lineage --ids 1,2,3 --out logits.npy");
  set_body(command, [options]() -> result<void> {
    const auto ids = parse_ids("--ids", options->ids);
    if (!ids) return ids.error();
    std::vector<std::int32_t> decoder_ids;
    if (!options->decoder_ids.empty()) {
      auto parsed = parse_ids("--decoder-ids", options->decoder_ids);
      if (!parsed) return parsed.error();
      decoder_ids = std::move(*parsed);
    }
    const auto folder = existing_folder(options->model, "--model");
    if (!folder) return folder.error();
    if (auto good = check_output("--out", options->out, files_of(*folder)); !good) return good;
    model::load_options loading;
    loading.device = options->device;
    if (auto set = set_precisions(loading, options->expert_precision, options->dense_precision);
        !set)
      return set.error();
    const auto loaded = model::transformer::load(*folder, loading);
    if (!loaded) return loaded.error();
    const auto numbers = decoder_ids.empty() ? model::logits(**loaded, *ids)
                                             : model::logits(**loaded, *ids, decoder_ids);
    if (!numbers) return at(decoder_ids.empty() ? "--ids" : "--decoder-ids", numbers.error());
    const auto vocabulary = (*loaded)->config().vocab_size;
    const std::size_t rows = numbers->size() / vocabulary;
    if (auto written = model::write_npy(options->out, *numbers, rows, vocabulary); !written)
      return written.error();
    if (options->json)
      fmt::print("{}\n",
                 json_text(nlohmann::ordered_json{{"file", options->out},
                                                  {"expert_precision", options->expert_precision},
                                                  {"dense_precision", options->dense_precision},
                                                  {"tokens", rows},
                                                  {"vocabulary", vocabulary}},
                           2));
    else
      fmt::print("{}: fp32 [{}, {}]\n", options->out, rows, vocabulary);
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
  command.add_option("--family", options->family, "mixtral, qwen2_moe, qwen3_moe, olmoe or switch")
      ->check(CLI::IsMember({"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "switch"}))
      ->required();
  auto* small = command.add_flag("--small", options->small,
                                 "Three layers (switch: two in each stack) of eight small experts");
  command
      .add_option("--layers", options->layers,
                  "So many layers at the full width of the family's published model; switch: in "
                  "each stack, every one a dense and a sparse block")
      ->check(whole_from(1, 1024))
      ->excludes(small);
  add_seed(command, options->seed, "Seed of the weights");
  command.add_option("--out", options->out, "Folder to write; absent or empty before")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Full width: Mixtral-8x7B, Qwen1.5-MoE-A2.7B, Qwen3-30B-A3B, OLMoE-1B-7B,\n"
      "switch-base-8. Weights are bf16.\n"
      "Example:\n  ordermoe model make-random --family qwen2_moe --small --seed 1 --out "
      "random-qwen");
  set_body(command, [options]() -> result<void> {
    if (!options->small && options->layers == 0)
      return error{errc::usage,
                   "make-random: give --small, or --layers N for N layers at full width"};
    model::random_model_options what;
    const std::pair<const char*, model::family> families[] = {
        {"mixtral", model::family::mixtral},
        {"qwen2_moe", model::family::qwen2_moe},
        {"qwen3_moe", model::family::qwen3_moe},
        {"olmoe", model::family::olmoe},
        {"switch", model::family::switch_transformers}};
    for (const auto& [name, kind] : families)
      if (options->family == name)
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
      fmt::print("{}\n", json_text(nlohmann::ordered_json{{"folder", options->out},
                                                          {"family", options->family},
                                                          {"layers", what.shape.n_layers},
                                                          {"seed", options->seed},
                                                          {"tensors", made->n_tensors},
                                                          {"weight_files", made->n_files},
                                                          {"weight_bytes", made->weight_bytes}},
                                   2));
    else
      fmt::print("{}: {} with {} layers, {} tensors of {} bytes in {} {}\n", options->out,
                 model::architecture_of(what.shape.kind), what.shape.n_layers, made->n_tensors,
                 made->weight_bytes, made->n_files, made->n_files == 1 ? "file" : "files");
    return {};
  });
}

void add_convert(CLI::App& parent) {
  struct content {
    std::string folder, precision, expert_precision = "stored", dense_precision = "stored", out;
    bool packed = false, json = false;
  };
  auto& command = *parent.add_subcommand(
      "convert", "Write a model again in another precision, or ready to be mapped");
  auto options = std::make_shared<content>();
  command.add_option("--model", options->folder, "Model folder")
      ->type_name(folder_value)
      ->required();
  auto* precision =
      command
          .add_option("--precision", options->precision,
                      "fp32 or bf16 for all weights; int8 or int4 for the experts alone")
          ->check(CLI::IsMember({"fp32", "bf16", "int8", "int4"}));
  auto* packed = command
                     .add_flag("--packed", options->packed,
                               "Every matrix as it is computed with, so that loading maps the "
                               "files and copies nothing; with the precisions below")
                     ->excludes(precision);
  add_precisions(command, options->expert_precision, options->dense_precision);
  for (const char* name : {"--expert-precision", "--dense-precision"})
    command.get_option(name)->needs(packed);
  command.add_option("--out", options->out, "Folder to write; absent or empty before")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "A folder in int8 or int4, or packed, gives the bits of loading the original with the same\n"
      "precisions; only OrderMoE reads it. A packed folder must stay as it is while it is in use.\n"
      "Profiles are not copied: run `ordermoe calibrate` for the new folder.\n"
      "Example:\n"
      "  ordermoe model convert --model data/models/lineage --precision int8 --out lineage-int8\n"
      "  ordermoe model convert --model data/models/lineage --packed --out lineage-packed");
  set_body(command, [options]() -> result<void> {
    const auto path = existing_folder(options->folder, "--model");
    if (!path) return path.error();
    if (!options->packed && options->precision.empty())
      return error{errc::usage, "convert: give --precision, --packed, or see --help"};
    result<model::written_model> written = error{errc::failed, "not run"};
    nlohmann::ordered_json report{{"folder", options->out}};
    {
      progress_line line("converting");
      const model::work_watch watch{[&](double share) { line.show(share); }, stop_requested};
      if (options->packed) {
        model::load_options loading;
        if (auto set = set_precisions(loading, options->expert_precision, options->dense_precision);
            !set)
          return set.error();
        model::pack_options how;
        how.experts = loading.expert_precision;
        how.dense = loading.dense_precision;
        how.watch = watch;
        written = model::pack_model(*path, options->out, how);
        report["packed"] = true;
        report["expert_precision"] = options->expert_precision;
        report["dense_precision"] = options->dense_precision;
      } else {
        const auto kept = model::parse_storage(options->precision);
        if (!kept) return at("--precision", kept.error());
        model::convert_options how;
        how.kept = *kept;
        how.watch = watch;
        written = model::convert_model(*path, options->out, how);
        report["precision"] = options->precision;
      }
    }
    if (!written) return written.error();
    report["tensors"] = written->n_tensors;
    report["weight_files"] = written->n_files;
    report["weight_bytes"] = written->weight_bytes;
    if (options->json)
      fmt::print("{}\n", json_text(report, 2));
    else
      fmt::print("{}: {} tensors of {} bytes in {} {}\n", options->out, written->n_tensors,
                 written->weight_bytes, written->n_files, written->n_files == 1 ? "file" : "files");
    return {};
  });
}

}  // namespace

void add_model(CLI::App& app) {
  auto& parent = *app.add_subcommand("model", "Train, make, inspect, verify and convert models");
  parent.require_subcommand(1);
  add_train(parent);
  add_inspect(parent);
  add_verify(parent);
  add_logits(parent);
  add_make_random(parent);
  add_convert(parent);
  add_shard(parent);
}

}  // namespace ordermoe::cli
