// How fast whole models run against what their threads can read: in the reference, and through the
// actors.
//
// bench_decode --model DIR [--experts PRECISION...] [--dense PRECISION...] [--kv fp32|bf16]
// [--threads N] [--prompt N] [--rounds N] [--own-time] [--device DEVICE] [--json]: for each precision of the experts with the
// dense precision of the same place in the list (the last one goes on). Every round measures, one
// after the other, the pieces of the single-process reference (tokens decoded behind a short
// prompt, a prompt of 128 tokens or --prompt, of all but whose last row the last layer computes keys and values
// alone, and the steps of each layer behind 1,000 tokens); and, where the
// folder has a profile.json, local mode on one server that holds everything: such a prompt,
// and 32 new tokens behind one of 16. Decoding is held against a plain read by as many
// threads right before it and one right behind it, their mean. Medians and quartiles over the rounds are
// printed. In the reference, tokens are drawn, not decoded, so that routers choose among all
// experts; their logits are computed all the same. `model make-random` writes full-width
// checkpoints, `calibrate` their profiles.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/service/service.hpp"
#include "bandwidth.hpp"
#include "bench/one_server.hpp"
#include "config/freed_memory.hpp"
#include "model/forward.hpp"
#include "model/kernels/thread_team.hpp"
#include "model/transformer.hpp"

namespace {

using namespace ordermoe;
using namespace ordermoe::bench;
using namespace ordermoe::model;

constexpr std::size_t marked_prompt = 128;
std::size_t prompt_tokens = marked_prompt;
constexpr std::size_t local_new_tokens = 32;
constexpr std::size_t short_context = 16;
constexpr std::size_t long_context = 1000;
constexpr std::size_t steps_a_round = 16;
/// Marks hold for a core that reads as much.
constexpr double marked_gb_per_s = 35;

/// What is asked of a family on one core; 0: nothing.
struct marks {
  double decoded_bf16 = 0, decoded_int4 = 0;  ///< Tokens/s at 35 GB/s.
  double prompt = 0;                          ///< Tokens/s.
  double outside_percent = 0;                 ///< At most, with 1,000 tokens of context.
};

marks marks_of(const model_config& config) {
  if (config.hidden_size < 2048) return {};  // Marks are for the published widths.
  const auto kind = config.kind;
  if (kind == family::mixtral) return {21.6, 63, 322, 10};
  if (kind == family::qwen2_moe) return {38, 122, 382, 0};
  return {};
}

/// Bytes that one decoded token reads, `stored` as bf16.
struct token_bytes {
  double layers = 0, head = 0;
};

token_bytes bytes_of(const model_config& config, precision experts, precision dense) {
  const auto storage_of = [](precision kept) {
    return kept == precision::int8   ? weight_storage::int8
           : kept == precision::int4 ? weight_storage::int4
                                     : weight_storage::bf16;
  };
  const auto matrix = [](std::size_t n_out, std::size_t n_in, weight_storage storage) {
    return static_cast<double>(packed_layout{n_out, n_in}.bytes(storage));
  };
  const auto kept = storage_of(dense);
  const std::size_t width = config.hidden_size, inner = config.n_heads * config.head_dim;
  const double layer =
      matrix(inner + 2 * config.kv_width(), width, kept) + matrix(width, inner, kept) +
      matrix(config.n_experts, width, weight_storage::bf16) +
      static_cast<double>(config.top_k * expert_bytes(config, experts)) +
      (config.shared_intermediate_size == 0
           ? 0.0
           : static_cast<double>(expert_bytes(width, config.shared_intermediate_size, experts)));
  return {static_cast<double>(config.n_layers) * layer, matrix(config.vocab_size, width, kept)};
}

class random_ids {
 public:
  explicit random_ids(std::size_t vocabulary) : vocabulary_(vocabulary) {}
  std::int32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int32_t>((state_ >> 33) % vocabulary_);
  }
  std::vector<std::int32_t> several(std::size_t n) {
    std::vector<std::int32_t> ids(n);
    for (auto& id : ids) id = next();
    return ids;
  }

 private:
  std::uint64_t state_ = 1;
  std::uint64_t vocabulary_;
};

/// Seconds of the parts of one layer step.
struct layer_seconds {
  double attention = 0, router = 0, experts = 0, slots = 0;
};

class workload {
 public:
  explicit workload(const transformer& model)
      : model_(model),
        config_(model.config()),
        ids_(config_.vocab_size),
        scores_(config_.vocab_size) {}

  /// Seconds of a whole prompt up to the logits behind it.
  double prompt() {
    const auto ids = ids_.several(prompt_tokens);
    auto caches = make_caches(model_, prompt_tokens);
    const double start = now_s();
    compute(caches, 0, ids);
    head();
    return now_s() - start;
  }

  struct decoded {
    double seconds = 0, head_seconds = 0;
  };
  /// Of steps_a_round tokens.
  decoded decode() {
    auto caches = make_caches(model_, short_context + steps_a_round);
    compute(caches, 0, ids_.several(short_context));
    decoded taken;
    for (std::size_t i = 0; i < steps_a_round; ++i) {
      const auto ids = ids_.several(1);
      const double start = now_s();
      compute(caches, short_context + i, ids);
      const double before_head = now_s();
      head();
      const double end = now_s();
      taken.seconds += end - start;
      taken.head_seconds += end - before_head;
    }
    return taken;
  }

  /// Of all layers, steps_a_round tokens behind a long context of drawn keys and values.
  layer_seconds long_steps() {
    auto caches = make_caches(model_, long_context + steps_a_round);
    std::vector<float> row(caches.front().row_size());
    for (auto& cache : caches)
      for (std::size_t p = 0; p < long_context; ++p) {
        for (auto& x : row) x = static_cast<float>(ids_.next() % 1000) / 500 - 1;
        cache.put(p, row);
      }
    layer_seconds taken;
    hidden_.resize(config_.hidden_size);
    for (std::size_t i = 0; i < steps_a_round; ++i) {
      model_.embed(ids_.several(1), hidden_);
      for (std::size_t l = 0; l < config_.n_layers; ++l)
        timed_layer(layer_id{l}, caches[l], long_context + i, taken);
    }
    return taken;
  }

 private:
  void compute(std::vector<kv_cache>& caches, std::size_t first,
               std::span<const std::int32_t> ids) {
    hidden_.resize(ids.size() * config_.hidden_size);
    model_.embed(ids, hidden_);
    for (std::size_t l = 0; l < config_.n_layers; ++l)
      run_layer(model_, layer_id{l}, caches[l], {first, first + ids.size(), ids.size() - 1},
                hidden_);
  }
  void head() {
    model_.head(std::span<const float>(hidden_).last(config_.hidden_size), scores_);
    sink += static_cast<std::uint64_t>(sample(scores_, {}, 0, 0));
  }

  void timed_layer(layer_id layer, kv_cache& cache, std::size_t position, layer_seconds& taken) {
    const attention_row row{&cache, position, position};
    std::vector<float> normed(config_.hidden_size), scores(config_.n_experts);
    double last = now_s();
    const auto lap = [&](double& part) {
      const double now = now_s();
      part += now - last;
      last = now;
    };
    model_.attend(layer, {&row, 1}, hidden_);
    lap(taken.attention);
    model_.route(layer, hidden_, normed, scores);
    lap(taken.router);
    const auto slots = routed_slots(scores, config_);
    std::vector<float> outputs(slots.size() * config_.hidden_size);
    std::vector<float> gates;
    std::vector<const float*> sources;
    for (std::size_t j = 0; j < slots.size(); ++j) {
      gates.push_back(slots[j].gate);
      sources.push_back(outputs.data() + j * config_.hidden_size);
    }
    lap(taken.slots);
    for (std::size_t j = 0; j < slots.size(); ++j)
      model_.run_expert(layer, slots[j].expert, normed,
                        std::span(outputs).subspan(j * config_.hidden_size, config_.hidden_size));
    lap(taken.experts);
    add_slots(hidden_, gates, sources);
    lap(taken.slots);
  }

  const transformer& model_;
  const model_config& config_;
  random_ids ids_;
  std::vector<float> hidden_, scores_;
};

/// By all threads of this one's team, each a part.
double seconds_of_reading(const pool& memory, const reading& how) {
  thread_team* team = current_team();
  const std::size_t n = team == nullptr ? 1 : team->size();
  const double start = now_s();
  const auto read_part = [&](std::size_t part) {
    const std::size_t bytes = memory.bytes() / n / 64 * 64;
    sink += read_all(memory.at(part * bytes), bytes, how.streams, how.ahead);
  };
  if (team == nullptr)
    read_part(0);
  else
    team->run(n, read_part);
  return now_s() - start;
}

/// Requests through the actors, one at a time, on a cluster of one server that holds everything and goes on from one to the next, as
/// a node does.
class local_mode {
 public:
  static result<local_mode> start(std::shared_ptr<const transformer> model,
                                  const planning::profile& profile, std::size_t n_threads) {
    const auto n_ids = model->config().vocab_size;
    auto made = one_server(std::move(model), profile, n_threads);
    if (!made) return made.error();
    auto running = actors::service::start(std::move(*made));
    if (!running) return running.error();
    return local_mode(std::move(*running), n_ids);
  }

  /// Seconds until the first new token of a request with so many prompt tokens, and seconds of each
  /// further one of `new_tokens`.
  struct request_seconds {
    double prompt = 0, token = 0;
  };
  result<request_seconds> measure(std::size_t prompt, std::uint32_t new_tokens) {
    actors::request_spec spec;
    spec.prompt = ids_.several(prompt);
    spec.max_new_tokens = new_tokens;
    spec.ignore_end_of_text = true;
    std::optional<error> problem;
    request_seconds took;
    actors::answer_sink sink;
    sink.on_end = [&](const actors::request_outcome& outcome) {
      problem = outcome.problem;
      took.prompt = static_cast<double>(outcome.first_token_ns - outcome.arrival_ns) * 1e-9;
      took.token = static_cast<double>(outcome.done_ns - outcome.first_token_ns) * 1e-9 /
                   std::max(1.0, new_tokens - 1.0);
    };
    service_->submit(std::move(spec), std::move(sink));
    service_->run_until([&] { return service_->outstanding() == 0; });
    if (problem) return *problem;
    return took;
  }

 private:
  local_mode(std::unique_ptr<actors::service> running, std::size_t n_ids)
      : service_(std::move(running)), ids_(n_ids) {}

  std::unique_ptr<actors::service> service_;
  random_ids ids_;
};

/// Of three passes the fastest: the first finds what the machine did to the memory in the meantime.
double bytes_per_s_of(const pool& memory, const reading& how) {
  double least = seconds_of_reading(memory, how);
  for (int pass = 1; pass < 3; ++pass) least = std::min(least, seconds_of_reading(memory, how));
  return static_cast<double>(memory.bytes()) / least;
}

struct found {
  spread local_decoded, local_marked, local_percent, local_prompt;  ///< Zero without a profile.
  spread gb_per_s, decoded, decoded_marked, layers_marked, percent_of_read, prompt;
  spread attention_us, router_us, slots_us, experts_us, outside_percent;
};

result<found> measure(const transformer& model, const token_bytes& bytes, const pool& memory,
                      const reading& how, std::size_t rounds, local_mode* through_actors) {
  workload work(model);
  std::vector<double> local_decoded, local_marked, local_percent, local_prompt;
  std::vector<double> read, decoded, marked, layers, percent, prompt;
  std::vector<double> attention, router, slots, experts, outside;
  const auto steps = static_cast<double>(steps_a_round);
  const double layer_steps = steps * static_cast<double>(model.config().n_layers);
  for (std::size_t round = 0; round <= rounds; ++round) {
    const double before = bytes_per_s_of(memory, how);
    const auto answer = work.decode();
    const double bandwidth = (before + bytes_per_s_of(memory, how)) / 2;
    const double prompt_s = work.prompt();
    const auto step = work.long_steps();
    double local_bandwidth = 0, local_token_s = 0, local_prompt_s = 0;
    if (through_actors != nullptr) {
      const auto prompt_alone = through_actors->measure(prompt_tokens, 1);
      if (!prompt_alone) return prompt_alone.error();
      local_prompt_s = prompt_alone->prompt;
      const double before_request = bytes_per_s_of(memory, how);
      const auto request = through_actors->measure(short_context, local_new_tokens);
      if (!request) return request.error();
      local_token_s = request->token;
      local_bandwidth = (before_request + bytes_per_s_of(memory, how)) / 2;
    }
    if (round == 0) continue;  // Warms up.
    const double to_marked = marked_gb_per_s * 1e9 / bandwidth;
    if (through_actors != nullptr) {
      local_decoded.push_back(1 / local_token_s);
      local_marked.push_back(marked_gb_per_s * 1e9 / local_bandwidth / local_token_s);
      local_percent.push_back(100 * (bytes.layers + bytes.head) / local_token_s / local_bandwidth);
      local_prompt.push_back(static_cast<double>(prompt_tokens) / local_prompt_s);
    }
    read.push_back(bandwidth * 1e-9);
    decoded.push_back(steps / answer.seconds);
    marked.push_back(to_marked * steps / answer.seconds);
    layers.push_back(to_marked * steps / (answer.seconds - answer.head_seconds));
    percent.push_back(100 * (bytes.layers + bytes.head) * steps / answer.seconds / bandwidth);
    prompt.push_back(static_cast<double>(prompt_tokens) / prompt_s);
    attention.push_back(step.attention / layer_steps * 1e6);
    router.push_back(step.router / layer_steps * 1e6);
    slots.push_back(step.slots / layer_steps * 1e6);
    experts.push_back(step.experts / layer_steps * 1e6);
    const double others = step.attention + step.router + step.slots;
    outside.push_back(100 * others / (others + step.experts));
  }
  return found{spread_of(local_decoded), spread_of(local_marked), spread_of(local_percent),
               spread_of(local_prompt),  spread_of(read),         spread_of(decoded),
               spread_of(marked),        spread_of(layers),       spread_of(percent),
               spread_of(prompt),        spread_of(attention),    spread_of(router),
               spread_of(slots),         spread_of(experts),      spread_of(outside)};
}

/// ", mark M met" or ", mark M missed", nothing where there is none.
std::string verdict(double value, double mark, bool at_most = false) {
  if (mark == 0) return "";
  const bool met = at_most ? value <= mark : value >= mark;
  return fmt::format(", mark {} {} {}", at_most ? "<=" : ">=", mark, met ? "met" : "missed");
}

nlohmann::ordered_json with_mark(const spread& s, double mark) {
  auto made = json_of(s);
  if (mark != 0) made["mark"] = mark;
  return made;
}

int usage(std::string_view what) {
  fmt::print(
      stderr,
      "bench_decode --model DIR [--experts stored|bf16|int8|int4...] [--dense ...] "
      "[--kv fp32|bf16] [--threads N] [--prompt N] [--rounds N] [--own-time] [--device DEVICE] "
      "[--json]; "
      "found '{}'\n",
      what);
  return 2;
}

struct arguments {
  std::string folder;
  std::vector<precision> experts, dense;
  kv_precision kv = kv_precision::fp32;
  std::string device = "cpu";
  std::size_t rounds = 9, n_threads = 1;
  bool json = false;

  const char* kv_name() const { return kv == kv_precision::bf16 ? "bf16" : "fp32"; }
};

/// What is not understood, or nothing.
std::optional<std::string> read_arguments(int argc, char** argv, arguments& given) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const bool more = i + 1 < argc;
    if (flag == "--json") {
      given.json = true;
    } else if (flag == "--own-time") {
      own_time = true;
    } else if (flag == "--model" && more) {
      given.folder = argv[++i];
    } else if (flag == "--device" && more) {
      given.device = argv[++i];
    } else if (flag == "--rounds" && more) {
      given.rounds = static_cast<std::size_t>(std::max(3, std::atoi(argv[++i])));
    } else if (flag == "--prompt" && more) {
      prompt_tokens = static_cast<std::size_t>(std::clamp(std::atoi(argv[++i]), 1, 4096));
    } else if (flag == "--threads" && more) {
      given.n_threads = static_cast<std::size_t>(std::max(1, std::atoi(argv[++i])));
    } else if (flag == "--kv" && more) {
      const std::string_view name = argv[++i];
      if (name != "fp32" && name != "bf16") return std::string(name);
      given.kv = name == "bf16" ? kv_precision::bf16 : kv_precision::fp32;
    } else if ((flag == "--experts" || flag == "--dense") && more) {
      auto& list = flag == "--experts" ? given.experts : given.dense;
      while (i + 1 < argc && argv[i + 1][0] != '-') {
        const auto kept = parse_precision(argv[++i]);
        if (!kept) return argv[i];
        list.push_back(*kept);
      }
    } else {
      return std::string(flag);
    }
  }
  if (given.folder.empty()) return "no --model";
  if (given.experts.empty()) given.experts = {precision::stored, precision::int8, precision::int4};
  if (given.dense.empty()) given.dense = {precision::stored};
  return std::nullopt;
}

/// Of one pair of precisions.
struct measurement {
  load_options options;
  token_bytes bytes;
  found values;
  marks asked;
  double decoded_mark = 0;
  bool through_actors = false, shared_expert = false;

  double mb_per_token() const { return (bytes.layers + bytes.head) * 1e-6; }
  double most() const { return marked_gb_per_s * 1e9 / (bytes.layers + bytes.head); }
};

nlohmann::ordered_json json_of(const measurement& m) {
  const auto& f = m.values;
  nlohmann::ordered_json made = {
      {"experts", to_string(m.options.expert_precision)},
      {"dense", to_string(m.options.dense_precision)},
      {"read_gb_per_s", json_of(f.gb_per_s)},
      {"mb_per_token", m.mb_per_token()},
      {"mb_of_head", m.bytes.head * 1e-6},
      {"decoded_tokens_per_s", json_of(f.decoded)},
      {"decoded_at_35_gb_per_s", with_mark(f.decoded_marked, m.decoded_mark)},
      {"most_at_35_gb_per_s", m.most()},
      {"layers_alone_at_35_gb_per_s", json_of(f.layers_marked)},
      {"percent_of_read", json_of(f.percent_of_read)},
      {"prompt_tokens_per_s", with_mark(f.prompt, m.asked.prompt)},
      {"layer_at_1000",
       {{"attention_us", json_of(f.attention_us)},
        {"router_us", json_of(f.router_us)},
        {"slots_us", json_of(f.slots_us)},
        {"experts_us", json_of(f.experts_us)},
        {"outside_percent", with_mark(f.outside_percent, m.asked.outside_percent)}}}};
  if (m.through_actors)
    made["local"] = {{"decoded_tokens_per_s", json_of(f.local_decoded)},
                     {"decoded_at_35_gb_per_s", with_mark(f.local_marked, m.decoded_mark)},
                     {"percent_of_read", json_of(f.local_percent)},
                     {"prompt_tokens_per_s", with_mark(f.local_prompt, m.asked.prompt)}};
  return made;
}

void print_decoding(const measurement& m) {
  const auto& f = m.values;
  fmt::print(
      "experts {}, dense {}: {:.0f} MB a token, {:.0f} of them the head; plain read {:.1f} "
      "GB/s ({:.1f} to {:.1f})\n",
      to_string(m.options.expert_precision), to_string(m.options.dense_precision), m.mb_per_token(),
      m.bytes.head * 1e-6, f.gb_per_s.middle, f.gb_per_s.low, f.gb_per_s.high);
  fmt::print(
      "  decode {:.1f} tokens/s ({:.1f} to {:.1f}), {:.1f} % of the read; at 35 GB/s "
      "{:.1f} of {:.1f} that the bytes allow{}; without the head {:.1f}\n",
      f.decoded.middle, f.decoded.low, f.decoded.high, f.percent_of_read.middle,
      f.decoded_marked.middle, m.most(), verdict(f.decoded_marked.middle, m.decoded_mark),
      f.layers_marked.middle);
  if (m.through_actors)
    fmt::print(
        "  local mode: decode {:.1f} tokens/s ({:.1f} to {:.1f}), {:.1f} % of the read; at 35 "
        "GB/s {:.1f} ({:.1f} to "
        "{:.1f}){}; prompt of {}: {:.0f} tokens/s ({:.0f} to {:.0f}){}\n",
        f.local_decoded.middle, f.local_decoded.low, f.local_decoded.high, f.local_percent.middle,
        f.local_marked.middle, f.local_marked.low, f.local_marked.high,
        verdict(f.local_marked.middle, m.decoded_mark), prompt_tokens, f.local_prompt.middle,
        f.local_prompt.low, f.local_prompt.high, verdict(f.local_prompt.middle, m.asked.prompt));
}

void print(const measurement& m) {
  const auto& f = m.values;
  print_decoding(m);
  fmt::print("  prompt of {}: {:.0f} tokens/s ({:.0f} to {:.0f}){}\n", prompt_tokens,
             f.prompt.middle, f.prompt.low, f.prompt.high,
             verdict(f.prompt.middle, m.asked.prompt));
  fmt::print(
      "  layer behind {} tokens: attention {:.0f} us, router{} {:.0f} us, slots {:.0f} us, "
      "experts {:.0f} us: {:.1f} % outside ({:.1f} to {:.1f}){}\n",
      long_context, f.attention_us.middle, m.shared_expert ? " and shared expert" : "",
      f.router_us.middle, f.slots_us.middle, f.experts_us.middle, f.outside_percent.middle,
      f.outside_percent.low, f.outside_percent.high,
      verdict(f.outside_percent.middle, m.asked.outside_percent, true));
}

result<measurement> measure_precisions(const arguments& given, std::size_t i, const pool& memory,
                                       const reading& how,
                                       const std::optional<planning::profile>& experts_profile) {
  measurement made;
  made.options.expert_precision = given.experts[i];
  made.options.dense_precision = given.dense[std::min(i, given.dense.size() - 1)];
  made.options.kv = given.kv;
  made.options.device = given.device;
  const auto loaded = transformer::load(given.folder, made.options);
  if (!loaded) return loaded.error();
  const auto& config = (*loaded)->config();
  if (config.encoder_decoder)
    return error{errc::unsupported,
                 given.folder + ": an encoder-decoder; expected a decoder alone"};
  made.bytes = bytes_of(config, made.options.expert_precision, made.options.dense_precision);
  std::optional<local_mode> through_actors;
  if (experts_profile && !own_time) {
    auto started = local_mode::start(*loaded, *experts_profile, given.n_threads);
    if (!started) return started.error();
    through_actors.emplace(std::move(*started));
  }
  const auto measured = measure(**loaded, made.bytes, memory, how, given.rounds,
                                through_actors ? &*through_actors : nullptr);
  if (!measured) return measured.error();
  made.values = *measured;
  made.through_actors = through_actors.has_value();
  made.shared_expert = config.shared_intermediate_size > 0;
  made.asked = marks_of(config);
  if (prompt_tokens != marked_prompt) made.asked.prompt = 0;
  made.decoded_mark = given.experts[i] == precision::int4   ? made.asked.decoded_int4
                      : given.experts[i] == precision::int8 ? 0
                                                            : made.asked.decoded_bf16;
  return made;
}

int fail(const error& what) {
  fmt::print(stderr, "{}\n", what.message);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  arguments given;
  if (const auto unknown = read_arguments(argc, argv, given)) return usage(*unknown);
  const pool memory(std::max(4 * cache_bytes(), std::size_t{512} << 20));
  thread_team team(given.n_threads);
  const team_scope scope(&team);
  const reading& how =
      fastest_reading([&](const reading& tried) { return seconds_of_reading(memory, tried); });
  std::optional<planning::profile> experts_profile;
  if (std::filesystem::exists(given.folder + "/profile.json")) {
    auto profile = planning::read_profile(given.folder + "/profile.json");
    if (!profile) return fail(profile.error());
    experts_profile = std::move(*profile);
  }
  nlohmann::ordered_json report{
      {"model", given.folder},     {"threads", given.n_threads},
      {"kernels", kernels().name}, {"device", given.device},
      {"rounds", given.rounds},    {"clock", own_time ? "thread" : "wall"},
      {"kv", given.kv_name()},     {"read", how.name}};
  auto results = nlohmann::ordered_json::array();
  if (!given.json)
    fmt::print(
        "{}: kernels {}, KV {}, threads {}, {} time, plain read by as many threads by {}; medians "
        "of {} "
        "rounds\n",
        given.folder, given.device == "cpu" ? kernels().name : given.device, given.kv_name(),
        given.n_threads, own_time ? "the thread's" : "wall", how.name, given.rounds);
  for (std::size_t i = 0; i < given.experts.size(); ++i) {
    const auto measured = measure_precisions(given, i, memory, how, experts_profile);
    if (!measured) return fail(measured.error());
    results.push_back(json_of(*measured));
    if (!given.json) print(*measured);
  }
  report["precisions"] = results;
  if (given.json) fmt::print("{}\n", report.dump(2));
}
