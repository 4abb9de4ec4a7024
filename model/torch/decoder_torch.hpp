#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "model/architecture/model_config.hpp"
#include "model/torch/plain_blocks_torch.hpp"

/// A trainable decoder of the architectures of Mixtral, Qwen2-MoE (biases of queries, keys and
/// values, a shared expert) and Qwen3-MoE (norms of each head's queries and keys). On the CPU it is
/// written for one core: the blocks that autograd handles slowly (attention with rotary positions,
/// normalisation, the experts) have backward passes of their own. Elsewhere it is made of plain
/// operations (plain_blocks_torch.hpp).
///
/// All parameters are views of one flat fp32 tensor, and their gradients of another, so that the
/// optimiser and the checkpoints see one vector each. One expert means a dense model: it has no
/// router.
namespace ordermoe::training {

struct named_tensor {
  std::string name;      ///< The Hugging Face name.
  torch::Tensor tensor;  ///< fp32, contiguous.
};

/// Chosen slots of a layer in rank order, both [n_tokens, slots]: expert (int64, -1 leaves the slot
/// out) and gate.
struct routing {
  torch::Tensor experts;
  torch::Tensor gates;
};

/// Replaces a layer's routing in a pass without gradients; gets the router's logits [n_tokens,
/// n_experts].
using routing_override =
    std::function<void(std::size_t layer, const torch::Tensor& logits, routing& chosen)>;

/// Experts that rows must do without at one layer while training: either the router chooses among
/// the others, or after it has chosen a fixed stand-in runs with the same gate.
struct layer_outage {
  torch::Tensor blocked;  ///< Bool [n_tokens, n_experts]: true may not be chosen. May be undefined.
  /// int64 [n_tokens, n_experts]: who runs for a chosen expert. May be undefined.
  torch::Tensor stand_in;
};

struct forward_options {
  /// Weight of the load-balancing loss (Switch Transformer, averaged over layers).
  double balance_weight = 0;
  double z_weight = 0;  ///< Weight of the router z-loss (ST-MoE, averaged over layers).
  routing_override override_routing;
  /// Receives [n_tokens, n_experts] of every layer.
  std::vector<torch::Tensor>* router_logits = nullptr;
  std::vector<layer_outage> outages = {};  ///< One a layer, or none at all.
};

struct forward_result {
  torch::Tensor logits;     ///< [n_sequences * length, vocab_size]
  torch::Tensor auxiliary;  ///< Scalar: weighted auxiliary losses; undefined in a dense model.
};

class decoder {
 public:
  /// Fresh weights: normal with deviation 0.02, projections into the residual stream scaled down by
  /// depth. The draws are those of the CPU wherever the weights are.
  decoder(const model::model_config& shape, std::uint64_t seed, at::Device device = at::kCPU);

  at::Device device() const { return flat_.device(); }
  /// Computes with plain operations on the CPU too, as other devices do.
  void use_plain_blocks() { plain_ = true; }

  const model::model_config& shape() const { return shape_; }
  torch::Tensor& parameters() { return flat_; }
  torch::Tensor& gradients() { return flat_gradients_; }
  /// Which entries of parameters() are matrices (weight decay applies to them), as 0 or 1.
  const torch::Tensor& decay_mask() const { return decay_mask_; }

  /// Logits of every position of `ids`, int64 [n_sequences, length].
  forward_result forward(const torch::Tensor& ids, const forward_options& options = {});

  /// Copies of all tensors under their Hugging Face names, in a stable order.
  std::vector<named_tensor> export_tensors() const;

  /// The pieces that recipes copy between models.
  struct layer_weights {
    torch::Tensor input_norm, qkv, output, post_norm;
    torch::Tensor qkv_bias;              ///< Or undefined.
    torch::Tensor query_norm, key_norm;  ///< [head_dim] each, or undefined.
    torch::Tensor router;                ///< [n_experts, hidden]; undefined in a dense model.
    torch::Tensor gate_and_up;           ///< [n_experts, 2 * intermediate, hidden]: w1, then w3.
    torch::Tensor down;                  ///< [n_experts, hidden, intermediate]: w2.
    torch::Tensor shared_gate;           ///< [1, hidden], or undefined, as those below.
    torch::Tensor shared_gate_and_up;    ///< [1, 2 * shared intermediate, hidden]
    torch::Tensor shared_down;           ///< [1, hidden, shared intermediate]
  };
  torch::Tensor embedding, final_norm, head;
  std::vector<layer_weights> layers;

 private:
  torch::Tensor make(std::vector<std::int64_t> sizes, std::size_t& offset, bool matrix);
  void make_all(std::size_t& offset);
  void draw(std::uint64_t seed);
  torch::Tensor norm(const torch::Tensor& x, const torch::Tensor& weight) const;
  /// What a layer's attention adds is `output` of this, [n, n_heads * head_dim].
  torch::Tensor attend(const layer_weights& w, const torch::Tensor& normed, std::int64_t sequences,
                       const plain::rotation& rotated) const;
  /// Adds to `auxiliary` where there are auxiliary losses.
  routing route(std::size_t layer, const torch::Tensor& normed, const forward_options& options,
                torch::Tensor& auxiliary) const;
  torch::Tensor mixture(const torch::Tensor& x, const routing& chosen,
                        const torch::Tensor& gate_and_up, const torch::Tensor& down) const;
  model::model_config shape_;
  torch::Tensor flat_, flat_gradients_, decay_mask_;
  bool plain_ = false;
};

/// Grows a trained model with fewer experts into one with more. Everything but experts and routers
/// is copied. Child expert e copies parent e * parents / children; a share of its inner units is
/// drawn anew, and all its weights get noise relative to their deviation. Router rows of children
/// copy their parent's row plus noise; where the parent is dense they are drawn. Both models are on
/// the CPU.
struct growth {
  double weight_noise = 0.1;   ///< Standard deviation of the noise over that of the tensor.
  double redrawn_share = 0.0;  ///< Of the inner units of every child.
  double router_noise = 0.5;   ///< Over the deviation of the parents' rows.
  double drawn_router = 0.02;  ///< Standard deviation of rows that are drawn.
};
void grow(decoder& parent, decoder& child, const growth& how, std::uint64_t seed);

}  // namespace ordermoe::training
