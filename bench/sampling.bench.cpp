#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "config/random.hpp"
#include "model/sampling.hpp"

/// What drawing a token takes, of 151,936 logits (Qwen's) and of 768 (a bundled model's). Logits are normal: with a standard
/// deviation of 1 a share of 0.9 is most of the vocabulary, with 3 some hundred tokens.
namespace {

using namespace ordermoe;
using namespace ordermoe::model;

std::vector<float> normal_logits(std::size_t n, double deviation) {
  random_stream draws(7);
  std::vector<float> made(n);
  for (float& each : made) {
    const double distance = std::sqrt(-2 * std::log(1 - draws.unit()));
    each = static_cast<float>(deviation * distance * std::cos(2 * std::numbers::pi * draws.unit()));
  }
  return made;
}

void draw(benchmark::State& state, sampling_options options) {
  const auto logits =
      normal_logits(static_cast<std::size_t>(state.range(0)), static_cast<double>(state.range(1)));
  std::vector<std::int32_t> answered(200);
  for (std::size_t i = 0; i < answered.size(); ++i)
    answered[i] = static_cast<std::int32_t>(i * 37 % logits.size());
  std::uint64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sample(logits, options, 0, ++position, answered));
}

void logprobs(benchmark::State& state) {
  const auto logits =
      normal_logits(static_cast<std::size_t>(state.range(0)), static_cast<double>(state.range(1)));
  for (auto _ : state) benchmark::DoNotOptimize(chances(logits, 3, 5));
}

#define ORDERMOE_SIZES ArgsProduct({{151936, 768}, {1, 3}})->Unit(benchmark::kMicrosecond)
BENCHMARK_CAPTURE(draw, greedy, {})->ORDERMOE_SIZES;
BENCHMARK_CAPTURE(draw, temperature, {.temperature = 1})->ORDERMOE_SIZES;
BENCHMARK_CAPTURE(draw, penalty, {.temperature = 1, .frequency_penalty = 0.1})->ORDERMOE_SIZES;
BENCHMARK_CAPTURE(draw, top_k_40, {.temperature = 0.8, .top_k = 40})->ORDERMOE_SIZES;
BENCHMARK_CAPTURE(draw, top_p_0 .9, {.temperature = 0.8, .top_p = 0.9})->ORDERMOE_SIZES;
BENCHMARK_CAPTURE(draw, top_k_40_top_p_0 .9, {.temperature = 0.8, .top_k = 40, .top_p = 0.9})
    ->ORDERMOE_SIZES;
BENCHMARK(logprobs)->ORDERMOE_SIZES;

}  // namespace
