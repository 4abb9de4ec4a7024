#include "model/torch/plain_blocks_torch.hpp"

#include <cmath>

namespace ordermoe::training::plain {

using torch::Tensor;

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return x * torch::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

rotation rotation_of(std::int64_t length, std::int64_t dim, double theta, at::Device device) {
  const auto positions = torch::arange(length, torch::kFloat64).unsqueeze(1);
  const auto angles = positions * torch::pow(theta, torch::arange(0, dim, 2, torch::kFloat64) *
                                                        (-1.0 / static_cast<double>(dim)));
  const auto cosines = angles.cos(), sines = angles.sin();
  return {torch::cat({cosines, cosines}, 1).to(torch::kFloat32).to(device),
          torch::cat({-sines, sines}, 1).to(torch::kFloat32).to(device)};
}

Tensor causal_attention(const Tensor& qkv, std::int64_t sequences, std::int64_t heads,
                        std::int64_t kv_heads, const rotation& rotated) {
  const auto length = rotated.cosines.size(0), dim = rotated.cosines.size(1),
             group = heads / kv_heads;
  // [sequences, heads of all kinds, length, dim]
  const auto rows = qkv.view({sequences, length, heads + 2 * kv_heads, dim}).transpose(1, 2);
  const auto straight = rows.narrow(1, 0, heads + kv_heads);
  const auto turned =
      torch::addcmul(straight * rotated.cosines, straight.roll({dim / 2}, {3}), rotated.sines);
  // The heads of a group stand one below the other, so that one product serves them all.
  const auto blocks = sequences * kv_heads;
  const auto q = turned.narrow(1, 0, heads).reshape({blocks, group * length, dim}),
             k = turned.narrow(1, heads, kv_heads).reshape({blocks, length, dim}),
             v = rows.narrow(1, heads + kv_heads, kv_heads).reshape({blocks, length, dim});
  const auto mask = torch::full({length, length}, -1e9f, qkv.options().requires_grad(false))
                        .triu(1)
                        .repeat({group, 1})
                        .unsqueeze(0);
  const auto scores =
      torch::baddbmm(mask, q, k.transpose(1, 2), 1.0, 1.0 / std::sqrt(static_cast<double>(dim)));
  return torch::bmm(torch::softmax(scores, -1), v)
      .view({sequences, heads, length, dim})
      .transpose(1, 2)
      .reshape({sequences * length, heads * dim});
}

Tensor expert_mixture(const Tensor& x, const Tensor& weights, const Tensor& gate_and_up,
                      const Tensor& down) {
  const auto n_experts = down.size(0), hidden = down.size(1), inner = down.size(2);
  const auto both = torch::mm(x, gate_and_up.view({n_experts * 2 * inner, hidden}).t())
                        .view({x.size(0), n_experts, 2, inner});
  auto active = torch::silu(both.select(2, 0)) * both.select(2, 1);
  if (weights.defined()) active = active * weights.unsqueeze(2);
  return torch::mm(active.view({x.size(0), n_experts * inner}),
                   down.transpose(1, 2).reshape({n_experts * inner, hidden}));
}

Tensor weights_of(const Tensor& gates, const Tensor& experts, std::int64_t n_experts) {
  return torch::zeros({gates.size(0), n_experts}, gates.options().requires_grad(false))
      .scatter_add(1, experts, gates);
}

}  // namespace ordermoe::training::plain
