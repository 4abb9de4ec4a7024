#include <algorithm>
#include <array>
#include <vector>

#include "model/torch/tiles_torch.hpp"

namespace ordermoe::model {

namespace {

/// Numbers of both signs between 2^-7 and 2, the same each time and without a generator of LibTorch's.
at::Tensor some_rows(std::int64_t n, std::int64_t width, at::Device device) {
  at::Tensor rows = at::empty({n, width}, at::kFloat);
  auto* numbers = rows.data_ptr<float>();
  std::uint64_t state = 0x9e3779b97f4a7c15;
  for (std::int64_t i = 0; i < n * width; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<std::uint32_t>(state >> 40);
    const float size = static_cast<float>((bits & 0xffff) + 512) / 32768.0f;
    numbers[i] = (bits & 0x10000) != 0 ? size : -size;
  }
  return rows.to(device);
}

}  // namespace

bool keeps_rows(const row_function& run, const at::Tensor& rows) {
  const auto n = rows.size(0);
  const at::Tensor expected = run(rows);
  for (const std::int64_t by : {std::int64_t{1}, n / 2, n - 1})
    if (!run(rows.roll(by, 0)).equal(expected.roll(by, 0))) return false;
  for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
    at::Tensor alone = at::zeros_like(rows);
    alone.select(0, at).copy_(rows.select(0, n - 1 - at));
    if (!run(alone).select(0, at).equal(expected.select(0, n - 1 - at))) return false;
  }
  return true;
}

std::int64_t rows_of_tile(const row_function& run, std::int64_t n_in, at::Device device) {
  // Few rows are padded to a tile: where memory is far slower than arithmetic, that costs little.
  static constexpr std::array<std::int64_t, 4> on_processor = {8, 4, 2, 1};
  static constexpr std::array<std::int64_t, 4> elsewhere = {64, 32, 8, 1};
  for (const auto n : device.is_cpu() ? on_processor : elsewhere)
    if (n == 1 || keeps_rows(run, some_rows(n, n_in, device))) return n;
  return 1;
}

at::Tensor each_row(const at::Tensor& rows, const row_function& run) {
  if (!rows.device().is_cpu()) return run(rows);
  std::vector<at::Tensor> made;
  made.reserve(static_cast<std::size_t>(rows.size(0)));
  for (std::int64_t i = 0; i < rows.size(0); ++i) made.push_back(run(rows.narrow(0, i, 1)));
  return at::cat(made);
}

}  // namespace ordermoe::model
