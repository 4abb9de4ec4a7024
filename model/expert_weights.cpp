#include "model/expert_weights.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "config/error.hpp"

namespace ordermoe::model {

struct projection::device_matrix {
  at::Device device;
  at::Tensor content;  ///< [n_out, n_in] fp32
};

projection::projection(std::span<const float> row_major, std::size_t n_out, std::size_t n_in,
                       const compute_place& place) {
  matrix_source source(row_major, n_out, n_in);
  *this = projection(source, place);
}

projection::projection(matrix_source& source, const compute_place& place) {
  packed_.layout = {source.n_out(), source.n_in()};
  if (place.linear == linear_path::libtorch) {
    const at::Device device(place.device);
    at::Tensor plain = at::empty(
        {static_cast<std::int64_t>(source.n_out()), static_cast<std::int64_t>(source.n_in())},
        at::kFloat);
    constexpr std::size_t rows_at_once = 64;
    for (std::size_t first = 0; first < source.n_out(); first += rows_at_once) {
      const std::size_t n = std::min(rows_at_once, source.n_out() - first);
      source.begin_rows(first, n);
      source.read(first, {plain.data_ptr<float>() + first * source.n_in(), n * source.n_in()});
      source.end_rows(first, n);
    }
    device_ = std::make_shared<const device_matrix>(device_matrix{device, plain.to(device)});
    return;
  }
  const std::size_t size = packed_.layout.size();
  const auto keep = [&]<class Number>(weight_storage storage, Number) {
    const auto memory = weight_memory(size * sizeof(Number));
    pack(packed_.layout, source, std::span(static_cast<Number*>(memory.get()), size));
    packed_.storage = storage;
    packed_.data = memory.get();
    host_ = memory;
  };
  if (source.fits_bf16())
    keep(weight_storage::bf16, std::uint16_t{});
  else
    keep(weight_storage::fp32, float{});
}

std::size_t projection::bytes() const {
  if (device_ != nullptr) return device_->content.nbytes();
  if (packed_.data == nullptr) return 0;
  return packed_.layout.size() * (packed_.storage == weight_storage::bf16 ? 2 : 4);
}

void projection::apply(const float* input, float* output, std::size_t n) const {
  if (packed_.data != nullptr) {
    kernels().linear(packed_, input, n_in(), output, n_out(), n);
    return;
  }
  // One row at a time, so that a row's bits cannot depend on the number of rows.
  const at::Tensor rows =
      at::from_blob(const_cast<float*>(input),
                    {static_cast<std::int64_t>(n), static_cast<std::int64_t>(n_in())}, at::kFloat)
          .to(device_->device);
  std::vector<at::Tensor> results;
  results.reserve(n);
  for (std::size_t i = 0; i < n; ++i)
    results.push_back(
        at::linear(rows.narrow(0, static_cast<std::int64_t>(i), 1), device_->content));
  const at::Tensor all = at::cat(results).to(at::kCPU).contiguous();
  std::memcpy(output, all.data_ptr<float>(), n * n_out() * sizeof(float));
}

expert_weights::expert_weights(matrix_source& gate, matrix_source& up, matrix_source& down,
                               const compute_place& place) {
  gate.append(up);
  gate_and_up_ = projection(gate, place);
  down_ = projection(down, place);
}

expert_weights::expert_weights(std::span<const float> gate, std::span<const float> up,
                               std::span<const float> down, std::size_t width, std::size_t inner,
                               const compute_place& place) {
  matrix_source first(gate, inner, width), second(up, inner, width), third(down, width, inner);
  *this = expert_weights(first, second, third, place);
}

expert_weights::expert_weights(matrix_source& up, matrix_source& down, const compute_place& place)
    : gate_and_up_(up, place), down_(down, place) {}

void expert_weights::apply(const float* input, float* output, std::size_t n) const {
  const std::size_t width = down_.n_out();
  const std::size_t inner = down_.n_in();
  const bool gated = gate_and_up_.n_out() != inner;
  thread_local scratch_buffer both_room, product_room;
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    float* product = product_room.room(count * inner);
    if (!gated) {
      gate_and_up_.apply(input + start * width, product, count);
      for (std::size_t i = 0; i < count * inner; ++i) product[i] = std::max(product[i], 0.0f);
      down_.apply(product, output + start * width, count);
      continue;
    }
    float* both = both_room.room(count * 2 * inner);
    gate_and_up_.apply(input + start * width, both, count);
    for (std::size_t i = 0; i < count; ++i)
      kernels().silu_product(both + i * 2 * inner, both + i * 2 * inner + inner,
                             product + i * inner, inner);
    down_.apply(product, output + start * width, count);
  }
}

}  // namespace ordermoe::model
