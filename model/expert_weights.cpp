#include "model/expert_weights.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "config/error.hpp"

namespace ordermoe::model {

struct projection::device_matrix {
  at::Device device;
  at::Tensor content;  ///< [n_out, n_in] fp32
};

projection::projection(std::span<const float> row_major, std::size_t n_out, std::size_t n_in,
                       const compute_place& place) {
  ORDERMOE_CHECK(row_major.size() == n_out * n_in, "a matrix of another shape");
  packed_.layout = {n_out, n_in};
  if (place.linear == linear_path::libtorch) {
    const at::Device device(place.device);
    at::Tensor plain =
        at::empty({static_cast<std::int64_t>(n_out), static_cast<std::int64_t>(n_in)}, at::kFloat);
    std::ranges::copy(row_major, plain.data_ptr<float>());
    device_ = std::make_shared<const device_matrix>(device_matrix{device, plain.to(device)});
    return;
  }
  const std::size_t size = packed_.layout.size();
  const auto keep = [&]<class Number>(weight_storage storage, Number) {
    const std::shared_ptr<Number[]> numbers(new Number[size]);
    pack(packed_.layout, row_major, {numbers.get(), size});
    packed_.storage = storage;
    packed_.data = numbers.get();
    host_ = numbers;
  };
  if (fits_bf16(row_major))
    keep(weight_storage::bf16, std::uint16_t{});
  else
    keep(weight_storage::fp32, float{});
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

expert_weights::expert_weights(std::span<const float> gate, std::span<const float> up,
                               std::span<const float> down, std::size_t width, std::size_t inner,
                               const compute_place& place) {
  std::vector<float> both(gate.begin(), gate.end());
  both.insert(both.end(), up.begin(), up.end());
  gate_and_up_ = projection(both, 2 * inner, width, place);
  down_ = projection(down, width, inner, place);
}

void expert_weights::apply(const float* input, float* output, std::size_t n) const {
  const std::size_t width = down_.n_out();
  const std::size_t inner = down_.n_in();
  thread_local scratch_buffer both_room, product_room;
  for (std::size_t start = 0; start < n; start += most_rows) {
    const std::size_t count = std::min(most_rows, n - start);
    float* both = both_room.room(count * 2 * inner);
    float* product = product_room.room(count * inner);
    gate_and_up_.apply(input + start * width, both, count);
    for (std::size_t i = 0; i < count; ++i)
      kernels().silu_product(both + i * 2 * inner, both + i * 2 * inner + inner,
                             product + i * inner, inner);
    down_.apply(product, output + start * width, count);
  }
}

}  // namespace ordermoe::model
