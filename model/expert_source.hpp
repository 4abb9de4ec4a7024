#pragma once

#include <functional>
#include <span>
#include <stdexcept>

#include "config/error.hpp"
#include "config/ids.hpp"
#include "config/precision.hpp"

/// Experts that run elsewhere than where the rest of a model does.
namespace ordermoe::model {

/// Rows for one expert of a layer.
struct expert_rows {
  expert_id expert{0};
  std::span<const float> normed;  ///< [n, hidden_size]
  std::span<float> output;        ///< [n, hidden_size]
};

/// Runs experts on their rows.
using expert_runner = std::function<void(layer_id layer, std::span<const expert_rows> work)>;

/// Experts that are not in this process cannot be run any more.
struct expert_failure : std::runtime_error {
  explicit expert_failure(error what) : std::runtime_error(what.message), why(std::move(what)) {}
  error why;
};

/// Has the experts of a model, each as stored and in every coarser precision.
class expert_source {
 public:
  virtual ~expert_source() = default;
  /// Returns when all have run, with the bits of transformer::run_expert() of a model that keeps its experts so. From
  /// several threads at once. Throws expert_failure.
  virtual void run(layer_id layer, precision kept, std::span<const expert_rows> work) const = 0;
};

}  // namespace ordermoe::model
