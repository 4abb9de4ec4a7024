#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "config/random.hpp"
#include "model/kernels/kernels.hpp"
#include "model/kv_cache.hpp"

/// What a prompt takes in the attention of one layer, on one core: of heads that have keys of their own (Qwen1.5-MoE's width)
/// and of such as share them by fours (Mixtral's), with keys and values in bf16 and in fp32. Rows go through it 128 at a time,
/// `rows` of them in a call of the kernel: 48 as models do, 1 as tokens that are decoded.
namespace {

using namespace ordermoe;
using namespace ordermoe::model;

void prompt(benchmark::State& state, attention_shape shape, kv_precision precision) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const auto together = static_cast<std::size_t>(state.range(1));
  const std::size_t width = shape.n_heads * shape.head_dim;
  const std::size_t row_size = 2 * shape.n_kv_heads * shape.head_dim;
  random_stream draws(3);
  const auto numbers = [&](std::size_t count) {
    std::vector<float> made(count);
    for (float& each : made) each = static_cast<float>(draws.uniform(-1, 1));
    return made;
  };
  kv_cache cache(n, row_size, precision, shape.head_dim);
  for (std::size_t position = 0; position < n; ++position) cache.put(position, numbers(row_size));
  const auto queries = numbers(n * width);
  std::vector<float> output(n * width), scratch(attention_scratch(n));
  const auto attend = [&](std::size_t head, std::size_t first, std::size_t last) {
    std::vector<attention_query> rows;
    for (std::size_t i = first; i < last; ++i)
      rows.push_back(
          {queries.data() + i * width, output.data() + i * width, cache.rows(0, i + 1, 0)});
    kernels().attention(shape, head, head + 1, rows, scratch.data());
  };
  constexpr std::size_t step = 128;
  for (auto _ : state)
    for (std::size_t start = 0; start < n; start += step)
      for (std::size_t head = 0; head < shape.n_kv_heads; ++head)
        for (std::size_t i = start; i < std::min(n, start + step); i += together)
          attend(head, i, std::min({n, start + step, i + together}));
  const double products = static_cast<double>(n) * static_cast<double>(n + 1) / 2 * 2;
  state.counters["GMAC/s"] = benchmark::Counter(products * static_cast<double>(width) * 1e-9,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

#define ORDERMOE_PROMPTS ArgsProduct({{128, 512, 2048}, {1, 8, 48}})->Unit(benchmark::kMillisecond)
BENCHMARK_CAPTURE(prompt, qwen_bf16, {16, 16, 128}, kv_precision::bf16)->ORDERMOE_PROMPTS;
BENCHMARK_CAPTURE(prompt, qwen_fp32, {16, 16, 128}, kv_precision::fp32)->ORDERMOE_PROMPTS;
BENCHMARK_CAPTURE(prompt, mixtral_bf16, {32, 8, 128}, kv_precision::bf16)->ORDERMOE_PROMPTS;
BENCHMARK_CAPTURE(prompt, mixtral_fp32, {32, 8, 128}, kv_precision::fp32)->ORDERMOE_PROMPTS;

}  // namespace
