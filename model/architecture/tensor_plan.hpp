#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/architecture/model_config.hpp"

/// Which tensors a checkpoint has.
namespace ordermoe::model {

/// One tensor of a checkpoint in the names of Hugging Face transformers, and how it is drawn.
struct tensor_plan {
  std::string name;
  std::vector<std::size_t> shape;
  double mean = 0;
  double deviation = 0;  ///< Standard deviation of the draw, before rounding to bf16.

  std::size_t size() const;
};

/// Every tensor of a model, embedding first, then layer by layer. Deviations keep the size of
/// activations about constant: a matrix divides by the root of what it sums over, and what is added
/// to the residual stream by the root of how often that happens.
std::vector<tensor_plan> tensors_of(const model_config& config);

}  // namespace ordermoe::model
