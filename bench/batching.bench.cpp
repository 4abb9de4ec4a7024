// How full batches are where many requests are answered at once.
//
// bench_batching MODEL [--experts P] [--dense P] [--kv fp32|bf16] [--threads N] [--at-once N...] [--tokens N] [--rounds N] [--apart MS] [--sampled] [--device DEVICE]:
// local mode on one server that holds everything. For each number of requests at once, so many of 16 random prompt tokens are
// given at the same time, or MS milliseconds after each other, and answered with so many tokens each, greedily or drawn at temperature 1; printed are tokens/s from when they are given to the last
// one's end, batches a token, rows of a batch, and how long a thread waits for the next batch, which is what `--costs NAME:batch-us=N` charges. Medians and quartiles over the rounds; the first round warms up. MODEL needs a profile.json.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "actors/service/service.hpp"
#include "bench/arguments.hpp"
#include "bench/one_server.hpp"
#include "bench/spread.hpp"
#include "bench/work_counts.hpp"
#include "config/freed_memory.hpp"
#include "config/precision.hpp"
#include "config/random.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"

namespace {

using namespace ordermoe;
using namespace ordermoe::bench;

constexpr std::size_t prompt_tokens = 16;

struct arguments {
  std::string folder;
  model::load_options loading;
  std::size_t n_threads = 1, rounds = 5;
  std::uint32_t tokens = 64;
  std::uint32_t apart_ms = 0;
  std::vector<std::size_t> at_once;
  bool sampled = false;
};

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "bench_batching: {}\n", message);
  std::exit(1);
}

template <class T>
T take(result<T> made) {
  if (!made) fail(made.error().message);
  return std::move(*made);
}

arguments read_arguments(int argc, char** argv) {
  arguments given;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view next = i + 1 < argc ? argv[i + 1] : "";
    const auto count = [&] {
      const auto value = number_above_zero(next);
      if (!value) fail(fmt::format("{}: found '{}', expected a number above 0", word, next));
      ++i;
      return *value;
    };
    const auto kept = [&] {
      ++i;
      return take(parse_precision(next));
    };
    if (word == "--experts") {
      given.loading.expert_precision = kept();
    } else if (word == "--dense") {
      given.loading.dense_precision = kept();
    } else if (word == "--kv" && (next == "fp32" || next == "bf16")) {
      given.loading.kv = next == "fp32" ? model::kv_precision::fp32 : model::kv_precision::bf16;
      ++i;
    } else if (word == "--threads") {
      given.n_threads = count();
    } else if (word == "--tokens") {
      given.tokens = static_cast<std::uint32_t>(count());
    } else if (word == "--apart") {
      given.apart_ms = static_cast<std::uint32_t>(count());
    } else if (word == "--rounds") {
      given.rounds = count();
    } else if (word == "--at-once") {
      while (i + 1 < argc && number_above_zero(argv[i + 1]))
        given.at_once.push_back(*number_above_zero(argv[++i]));
    } else if (word == "--device" && !next.empty()) {
      given.loading.device = next;
      ++i;
    } else if (word == "--sampled") {
      given.sampled = true;
    } else if (given.folder.empty() && !word.starts_with('-')) {
      given.folder = word;
    } else {
      fail(fmt::format("found '{}'; bench/batching.bench.cpp says what is expected", word));
    }
  }
  if (given.folder.empty()) fail("expected a model's folder");
  if (given.at_once.empty()) given.at_once = {1, 8, 32};
  return given;
}

work_counts work_of(actors::service& service) {
  work_counts all;
  for (const auto& server : take(service.status()).servers) {
    all.batches += static_cast<double>(server.ledger.batches);
    all.rows += static_cast<double>(server.ledger.rows);
    all.busy_us += 1e-3 * static_cast<double>(server.ledger.busy_ns);
  }
  return all;
}

/// Seconds until the last answer has ended.
double answer(actors::service& service, const arguments& given, std::size_t n, std::size_t vocab,
              random_stream& draws) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < n; ++i) {
    actors::request_spec spec;
    for (std::size_t t = 0; t < prompt_tokens; ++t)
      spec.prompt.push_back(static_cast<std::int32_t>(draws.below(vocab)));
    spec.max_new_tokens = given.tokens;
    spec.ignore_end_of_text = true;
    if (given.sampled) spec.temperature = 1;
    actors::answer_sink sink;
    sink.on_end = [](const auto& outcome) {
      if (outcome.problem) fail(outcome.problem->message);
    };
    service.submit(std::move(spec), std::move(sink));
    if (given.apart_ms > 0)
      std::this_thread::sleep_until(begin + (i + 1) * std::chrono::milliseconds(given.apart_ms));
  }
  service.run_until([&] { return service.outstanding() == 0; });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  const auto given = read_arguments(argc, argv);
  auto options = take(one_server(take(model::transformer::load(given.folder, given.loading)),
                                 take(planning::read_profile(given.folder + "/profile.json")),
                                 given.n_threads));
  const auto vocab = options.model->config().vocab_size;
  const auto service = take(actors::service::start(std::move(options)));
  fmt::print("{}: experts {}, dense {}, {} threads, {}; medians of {} rounds\n", given.folder,
             to_string(given.loading.expert_precision), to_string(given.loading.dense_precision),
             given.n_threads, given.sampled ? "drawn" : "greedy", given.rounds);
  for (const auto n : given.at_once) {
    random_stream draws(1);
    std::vector<double> rate, batches, rows, between;
    for (std::size_t round = 0; round <= given.rounds; ++round) {
      const auto before = work_of(*service);
      const double seconds = answer(*service, given, n, vocab, draws);
      const auto work = work_of(*service) - before;
      if (round == 0) continue;
      const auto tokens = static_cast<double>(n * given.tokens);
      rate.push_back(tokens / seconds);
      batches.push_back(work.batches / tokens);
      rows.push_back(work.rows / work.batches);
      const auto threads_us = 1e6 * seconds * static_cast<double>(given.n_threads);
      between.push_back((threads_us - work.busy_us) / work.batches);
    }
    const auto line = [&](const char* what, const spread& s, const char* unit) {
      fmt::print("{:>4} at once, {:<18}{:>10.2f} ({:.2f} to {:.2f}) {}\n", n, what, s.middle, s.low,
                 s.high, unit);
    };
    line("answers", spread_of(rate), "tokens/s");
    line("batches", spread_of(batches), "a token");
    line("rows of a batch", spread_of(rows), "");
    line("between batches", spread_of(between), "us a batch");
  }
}
