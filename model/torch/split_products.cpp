#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>

#include "model/torch/split_products_torch.hpp"

namespace ordermoe::model {

namespace {

/// Below it, starting more operations takes longer than what is saved: on one H200 a matrix [2816, 2048] took 80 us, and 20 to 30 in
/// fp32, one of [28672, 4096] 90 to 130, and 230 to 370 in fp32.
constexpr std::int64_t least_numbers = 1 << 24;

/// LibTorch has products of bf16 with results in fp32 since 2.8.
template <class Tensor>
concept has_wide_products = requires(Tensor a) {
  at::mm(a, a, at::kFloat);
};

template <class Tensor>
Tensor wide_product(const Tensor& parts, const Tensor& weights) {
  if constexpr (has_wide_products<Tensor>)
    return at::mm(parts, weights.t(), at::kFloat);
  else
    return at::linear(parts.to(at::kFloat), weights.to(at::kFloat));
}

}  // namespace

bool has_split_products(at::Device device) {
  if (!has_wide_products<at::Tensor> || device.is_cpu()) return false;
  try {
    const c10::InferenceMode guard;
    const auto some = at::ones({32, 32}, at::TensorOptions(at::kBFloat16).device(device));
    return wide_product(some, some).to(at::kCPU).equal(at::full({32, 32}, 32.0f));
  } catch (const std::exception&) {
    return false;
  }
}

at::Tensor kept_for_split_products(at::Tensor weights) {
  if (weights.numel() < least_numbers) return weights;
  auto narrow = weights.to(at::kBFloat16);
  return narrow.to(at::kFloat).equal(weights) ? narrow : weights;
}

at::Tensor split_in_three(const at::Tensor& rows) {
  const auto high = rows.to(at::kBFloat16);
  const auto behind = at::sub(rows, high);
  const auto middle = behind.to(at::kBFloat16);
  const auto low = at::sub(behind, middle).to(at::kBFloat16);
  return at::cat({low, middle, high});
}

at::Tensor product(const at::Tensor& rows, const at::Tensor& weights) {
  if (weights.scalar_type() != at::kBFloat16) return at::linear(rows, weights);
  const auto n = rows.size(0), n_out = weights.size(0);
  return at::sum(wide_product(split_in_three(rows), weights).reshape({3, n, n_out}), {0});
}

}  // namespace ordermoe::model
