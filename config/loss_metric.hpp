#pragma once

#include <cstddef>

namespace ordermoe {

/// What the predicted loss of running an expert k for the target r with gate g is made of.
enum class loss_metric {
  router_logit,  ///< Paper: g (1 - Sim(r, k)) / 2 with Sim of eq. (4); at top-1 the paper's eq. (18),
                 ///< phi = identity. k runs with the target's gate.
  token_gate,    ///< max(0, p_r - p_k), p this token's softmax over all experts; gates are those of
                 ///< the executed experts.
};
inline constexpr std::size_t n_loss_metrics = 2;

const char* to_string(loss_metric metric);

}  // namespace ordermoe
