#include "model/training/train.hpp"

#include <algorithm>
#include <memory>
#include <system_error>

#include <fmt/format.h>

#include "config/files.hpp"
#include "model/architecture/half_trained.hpp"
#include "model/checkpoint/checkpoint_writer.hpp"
#include "model/text/utf8.hpp"
#include "model/torch_module.hpp"
#include "model/training/card.hpp"
#include "model/training/corpus.hpp"
#include "model/training/text_source.hpp"
#include "model/training/tokenizer_training.hpp"
#include "model/training/training_backend.hpp"

namespace ordermoe::training {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t tokenizer_seed = 7;

result<void> check(const train_options& o) {
  const auto refuse = [](std::string what) { return error{errc::usage, std::move(what)}; };
  if (o.recipe != "upcycled" && o.recipe != "lineage" && o.recipe != "dense")
    return refuse(
        fmt::format("recipe \"{}\" is not known; use upcycled, lineage or dense", o.recipe));
  if (o.out.empty()) return refuse("no folder for the model was given");
  if (!o.plain.empty() && o.recipe == "dense")
    return refuse("the recipe dense has no stage of outages, before which a plain model would be");
  if (!o.plain.empty() && o.plain == o.out)
    return refuse(fmt::format("{} is asked for twice: the plain model needs a folder of its own",
                              o.out.string()));
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
  if ((o.kind == model::family::qwen2_moe) != (o.shared_intermediate_size > 0))
    return refuse("a shared expert belongs to the family qwen2_moe, and to no other");
  if (o.kind == model::family::mixtral && o.gates != model::gate_rule::renormalised)
    return refuse("the gates of the family mixtral are renormalised");
  if (o.kind != model::family::mixtral && o.kind != model::family::qwen2_moe &&
      o.kind != model::family::qwen3_moe)
    return refuse("only models of the families mixtral, qwen2_moe and qwen3_moe are trained");
  if (o.n_layers == 0 || o.intermediate_size == 0 || o.sequence_length < 2 ||
      o.sequences_per_step == 0 || o.sequence_length > o.max_context)
    return refuse(
        "layers, intermediate size and batch must be positive, and rows no longer than the "
        "context");
  if (o.tokens == 0 && !(o.minutes > 0))
    return refuse(fmt::format("{} minutes are no time to train in", o.minutes));
  return {};
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

/// What a run learns from.
struct learning_text {
  std::string tokenizer;  ///< The bytes of tokenizer.model.
  std::shared_ptr<const piece_encoder> pieces;
  std::unique_ptr<text_source> source;
  std::string hash;
};

result<void> check_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto n = model::character_bytes(text.substr(at));
    if (n == 0)
      return error{errc::malformed,
                   fmt::format("byte {} begins no UTF-8 character; give plain text in UTF-8", at)};
    at += n;
  }
  return {};
}

result<learning_text> read_text(const train_options& options) {
  learning_text made;
  std::string text;
  if (options.text.empty()) {
    auto bytes = synthetic_tokenizer(options.vocab_size);
    if (!bytes) return bytes.error();
    made.tokenizer = std::move(*bytes);
  } else {
    auto bytes = read_file(options.text);
    if (!bytes) return bytes.error();
    text = std::move(*bytes);
    if (auto readable = check_utf8(text); !readable)
      return at(options.text.string(), readable.error());
    auto trained = train_tokenizer(lines_of(text), {options.vocab_size});
    if (!trained) return at(options.text.string(), trained.error());
    made.tokenizer = std::move(*trained);
  }
  auto pieces = piece_encoder::from_bytes(made.tokenizer);
  if (!pieces) return pieces.error();
  made.pieces = std::move(*pieces);
  if (options.text.empty()) {
    made.source = synthetic_source(made.pieces, options.seed);
  } else {
    const auto longest = std::min(options.max_context, 2 * options.sequence_length) + 1;
    auto source = user_source(made.pieces, text, longest, options.seed);
    if (!source) return at(options.text.string(), source.error());
    made.source = std::move(*source);
  }
  // The number is that of the way a text is divided.
  made.hash = sha256_hex("2" + made.tokenizer + text);
  return made;
}

/// How this run goes on where it stopped, on the command line.
std::string command_of(const train_options& o) {
  std::string line = "ordermoe model train";
  if (!o.text.empty()) line += fmt::format(" --text '{}'", o.text.string());
  if (o.shape != "small") line += " --shape " + o.shape;
  line += fmt::format(" --recipe {}", o.recipe);
  if (o.device != "cpu") line += " --device " + o.device;
  if (!o.plain.empty()) line += fmt::format(" --plain '{}'", o.plain.string());
  line += o.tokens > 0 ? fmt::format(" --tokens {}", o.tokens)
                       : fmt::format(" --minutes {}", o.minutes);
  return line +
         fmt::format(" --threads {} --seed {} --out '{}'", o.threads, o.seed, o.out.string());
}

/// The folder of the checkpoints, made where it is not there.
result<fs::path> state_folder(const train_options& options) {
  const auto state = options.state.empty() ? model::training_state_of(options.out) : options.state;
  std::error_code problem;
  fs::create_directories(state, problem);
  if (problem)
    return error{errc::io, fmt::format("{}: the folder cannot be made: {}", state.string(),
                                       problem.message())};
  if (auto written = write_file(state / model::half_trained_name, command_of(options) + "\n");
      !written)
    return written.error();
  return state;
}

/// Writes a model's folder in one step.
result<void> write_folder(const std::filesystem::path& out, const train_options& options,
                          const learning_text& text, const trained_model& made,
                          const std::vector<std::vector<std::int32_t>>& left_out) {
  std::vector<model::tensor_entry> entries;
  for (const auto& tensor : made.tensors)
    entries.push_back(
        {tensor.name, model::tensor_type::bf16, {tensor.shape.begin(), tensor.shape.end()}});
  auto writer =
      model::checkpoint_writer::begin(out, std::move(entries), model::default_shard_bytes);
  if (!writer) return writer.error();
  for (const auto& tensor : made.tensors)
    if (auto written = (*writer)->append(tensor.bytes); !written) return written;
  const std::pair<const char*, std::string> files[] = {
      {"tokenizer.model", text.tokenizer},
      {"config.json", model::model_config_json(made.shape)},
      {"CARD.md", card_text(options, made.report)}};
  for (const auto& [name, bytes] : files)
    if (auto written = (*writer)->add_file(name, bytes); !written) return written;
  if (options.finish) {
    const auto more = options.finish(out, (*writer)->folder(), left_out);
    if (!more && more.error().code == errc::interrupted)
      return error{errc::interrupted,
                   "stopped after training; the same command goes on from there"};
    if (!more) return more.error();
    for (const auto& [name, bytes] : *more)
      if (auto written = (*writer)->add_unlisted_file(name, bytes); !written) return written;
  }
  const auto finished = (*writer)->finish();
  return finished ? result<void>() : finished.error();
}

/// What the state of a run says once the plain model's folder is there.
constexpr const char* plain_is_written = "plain-is-written";

/// Whether a run with this state wrote the plain model to the folder that is asked for now.
result<bool> has_plain_folder(const std::filesystem::path& state, const train_options& options) {
  const auto there = is_there(state / plain_is_written);
  if (!there || !*there) return there;
  const auto where = read_file(state / plain_is_written);
  if (!where) return where.error();
  return *where == options.plain.string() + "\n";
}

/// Whether the folders of the models may be written.
result<void> check_room(const train_options& options) {
  if (auto free = model::check_free(options.out); !free) return free;
  const auto state = options.state.empty() ? model::training_state_of(options.out) : options.state;
  if (options.plain.empty()) return {};
  const auto written = has_plain_folder(state, options);
  if (!written) return written.error();
  return *written ? result<void>() : model::check_free(options.plain);
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
  if (auto room = check_room(options); !room) return room.error();
  const auto text = read_text(options);
  if (!text) return text.error();
  const auto backend = model::torch_entry("ordermoe_torch_training");
  if (!backend) return backend.error();
  const auto state = state_folder(options);
  if (!state) return state.error();
  auto made = static_cast<const training_backend*>(*backend)->run(
      {options, *text->pieces, *text->source, text->hash, *state});
  if (!made) return made.error();
  constexpr std::size_t most_left_out = 8192, longest = 256;
  const auto left_out =
      text->source->left_out(most_left_out, std::min(longest, options.max_context));
  for (const auto& ids : left_out) made->report.left_out += ids.size();
  // Where there is no such model, nothing is left to write.
  const auto has_plain = made->plain ? has_plain_folder(*state, options) : result<bool>(true);
  if (!has_plain) return has_plain.error();
  if (!*has_plain) {
    made->plain->report.left_out = made->report.left_out;
    if (auto written = write_folder(options.plain, options, *text, *made->plain, left_out);
        !written)
      return written.error();
    if (auto kept = write_file(*state / plain_is_written, options.plain.string() + "\n"); !kept)
      return kept.error();
  }
  if (auto written = write_folder(options.out, options, *text, *made, left_out); !written)
    return written.error();
  std::error_code ignored;
  if (options.state.empty()) fs::remove_all(*state, ignored);
  made->report.folder = options.out;
  return std::move(made->report);
}

}  // namespace ordermoe::training
