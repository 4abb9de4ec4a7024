#pragma once

#include <cstdint>

#include <torch/torch.h>

/// The blocks of a decoder from plain LibTorch operations with autograd, for every device: what
/// decoder.cpp has by hand for the CPU. Few and large operations, so that starting them does not
/// take a device's time, and none that waits for the device.
namespace ordermoe::training::plain {

/// x * rsqrt(mean(x^2) + eps) * weight over rows of [..., width].
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double eps);

/// Rotary positions of `length` rows: x * cosines + (x with its halves exchanged) * sines.
struct rotation {
  torch::Tensor cosines, sines;  ///< [length, dim]
};
rotation rotation_of(std::int64_t length, std::int64_t dim, double theta, at::Device device);

/// Causal grouped-query attention: qkv [n, (heads + 2 kv_heads) * dim] to [n, heads * dim].
torch::Tensor causal_attention(const torch::Tensor& qkv, std::int64_t sequences, std::int64_t heads,
                               std::int64_t kv_heads, const rotation& rotated);

/// sum over experts of weight * down(silu(gate x) * up x), x [n, hidden] to [n, hidden], for
/// gate_and_up [n_experts, 2 * inner, hidden] and down [n_experts, hidden, inner]. All experts run
/// for all rows, in two products. `weights` [n, n_experts]; undefined: all are 1.
torch::Tensor expert_mixture(const torch::Tensor& x, const torch::Tensor& weights,
                             const torch::Tensor& gate_and_up, const torch::Tensor& down);

/// What each expert weighs for each row, [n, n_experts], of chosen slots [n, slots].
torch::Tensor weights_of(const torch::Tensor& gates, const torch::Tensor& experts,
                         std::int64_t n_experts);

}  // namespace ordermoe::training::plain
