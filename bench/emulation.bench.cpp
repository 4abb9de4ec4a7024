// How fast the emulation runs: token-layer steps a second besides tensor work, and the share of
// tensor work.
//
// bench_emulation [--libtorch] [--no-load-reports] [runs [prompt new [strategy...]]]: the bundled model on the bundled
// cluster, 64 requests of so many prompt and new tokens (64 and 64), for the strategies that stress
// different parts unless some are named. A step is one token at one layer. Times of single steps
// are in microseconds of the median run. --libtorch multiplies with LibTorch instead of our
// kernels; --no-load-reports leaves out what servers tell each other of their waits.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "actors/service/runtime.hpp"
#include "bench/spread.hpp"
#include "config/files.hpp"
#include "config/freed_memory.hpp"

namespace {

using namespace ordermoe;

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "bench_emulation: {}\n", value.error().message);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  model::load_options loading;
  actors::run_setup setup;
  for (; argc > 1 && argv[1][0] == '-'; --argc, ++argv) {
    const std::string_view option = argv[1];
    if (option == "--libtorch") {
      loading.device = "libtorch:cpu";
    } else if (option == "--no-load-reports") {
      setup.load_period_ns = 0;
    } else {
      fmt::print(stderr, "bench_emulation: unknown option {}\n", option);
      return 2;
    }
  }
  const int runs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const std::string folder = ORDERMOE_DATA "/models/lineage";
  setup.model = take(model::transformer::load(folder, loading));
  setup.servers = take(read_cluster(ORDERMOE_DATA "/clusters/edge8.toml"));
  setup.costs = take(named_cost_profile("mixtral-8x7b"));
  setup.profile = take(planning::read_profile(folder + "/profile.json"));
  const auto tokens = take(model::tokenizer::load(folder));
  const auto ids = tokens->encode(take(read_file(ORDERMOE_DATA "/eval/held-out.txt")));
  constexpr std::size_t n_requests = 64;
  const auto size_of = [&](int at, int otherwise) {
    return static_cast<std::size_t>(argc > at ? std::max(1, std::atoi(argv[at])) : otherwise);
  };
  const auto prompt = size_of(2, 64), new_tokens = size_of(3, 64);
  for (std::size_t i = 0; i < n_requests; ++i) {
    actors::request_spec spec;
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(i * prompt % (ids.size() - prompt));
    spec.prompt.assign(at, at + static_cast<std::ptrdiff_t>(prompt));
    spec.max_new_tokens = static_cast<std::uint32_t>(new_tokens);
    spec.ignore_end_of_text = true;
    setup.requests.push_back(std::move(spec));
  }
  actors::draw_arrivals(setup.requests, setup.servers, 8, 1);
  const auto steps =
      static_cast<double>(n_requests * (prompt + new_tokens - 1) * setup.profile.n_layers);
  fmt::print(
      "{} requests of {} and {} tokens, {} token-layer steps, {} runs: least, median, most\n",
      n_requests, prompt, new_tokens, steps, runs);
  fmt::print("{:<16}{:>38}{:>34}{:>26}{:>20}\n", "strategy", "steps/s besides tensor work",
             "steps/s in all", "tensor share %", "us besides, tensor");
  std::vector<std::string> names(argv + std::min(argc, 4), argv + argc);
  if (names.empty()) names = {"exact", "layer-shards", "paper", "ordermoe"};
  for (const auto& name : names) {
    planning::strategy_options options;
    options.search_steps = 2000;
    setup.chosen =
        take(planning::make_strategy(name, setup.profile, setup.servers, setup.costs, options));
    std::vector<double> besides, all, share;
    for (int run = 0; run <= runs; ++run) {
      const auto outcome = take(actors::run_requests(setup));
      if (run == 0) continue;
      besides.push_back(steps / (outcome.host_seconds - outcome.tensor_seconds));
      all.push_back(steps / outcome.host_seconds);
      share.push_back(100 * outcome.tensor_seconds / outcome.host_seconds);
    }
    const auto b = bench::range_of(besides), a = bench::range_of(all), s = bench::range_of(share);
    fmt::print(
        "{:<16}{:>14.0f}{:>12.0f}{:>12.0f}{:>12.0f}{:>11.0f}{:>11.0f}{:>10.1f}{:>8.1f}{:>8.1f}"
        "{:>10.2f}{:>10.2f}\n",
        name, b.low, b.middle, b.high, a.low, a.middle, a.high, s.low, s.middle, s.high,
        1e6 / b.middle, 1e6 / a.middle - 1e6 / b.middle);
  }
}
