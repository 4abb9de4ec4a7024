#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "config/random.hpp"
#include "planning/strategies/measured_activation.hpp"

/// What it costs to count a row of what routers chose, in reports of 64 rows as selectors tell them: two of eight experts, whose
/// steps are counted too, four of 60 and eight of 128, where nearly every row chooses a set of its own. Time is for 64 rows.
namespace {

using namespace ordermoe;

constexpr std::size_t n_rows = 64, n_reports = 64;

std::vector<std::uint32_t> draw_row(random_stream& draws, std::size_t n_experts,
                                    std::size_t top_k) {
  std::vector<std::uint32_t> row;
  while (row.size() < top_k) {
    const auto expert = static_cast<std::uint32_t>(draws.below(n_experts));
    if (std::ranges::find(row, expert) == row.end()) row.push_back(expert);
  }
  std::ranges::sort(row);
  return row;
}

/// [reports] of n_rows sets, `sets_of_row` for each row.
std::vector<std::vector<std::uint32_t>> draw_reports(std::size_t n_experts, std::size_t top_k,
                                                     std::size_t sets_of_row) {
  random_stream draws(1);
  std::vector<std::vector<std::uint32_t>> reports(n_reports);
  for (auto& report : reports)
    for (std::size_t i = 0; i < n_rows * sets_of_row; ++i) {
      const auto row = draw_row(draws, n_experts, top_k);
      report.insert(report.end(), row.begin(), row.end());
    }
  return reports;
}

void count_rows(benchmark::State& state) {
  const auto n_experts = static_cast<std::size_t>(state.range(0));
  const auto top_k = static_cast<std::size_t>(state.range(1));
  const auto rows = draw_reports(n_experts, top_k, 1), steps = draw_reports(n_experts, top_k, 2);
  planning::activation_statistics seen(2, n_experts, top_k, 1800);
  std::size_t at = 0;
  std::int64_t time_ns = 0;
  for (auto _ : state) {
    // As with one report a millisecond.
    seen.fade_to(time_ns += 1'000'000);
    seen.add(1, rows[at]);
    seen.add_steps(1, steps[at]);
    at = (at + 1) % n_reports;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * n_rows));
}
BENCHMARK(count_rows)->Args({8, 2})->Args({60, 4})->Args({128, 8});

}  // namespace
