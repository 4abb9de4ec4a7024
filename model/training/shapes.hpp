#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/training/train.hpp"

/// Shapes of models by name. "small" is that of the first bundled models. The twins have the depth
/// and the routing of a real model, layer for layer, at a width that trains in minutes on a GPU:
///   mixtral-twin  Mixtral-8x7B: 32 layers, 8 experts, top-2, gates renormalised
///   qwen-twin     Qwen1.5-MoE-A2.7B: 24 layers, 60 experts, top-4 and a shared one, gates that are
///                 probabilities
///   switch-twin   the 12 sparse layers of Switch-Base-8, in a decoder: 8 experts, top-1, gates
///                 that are probabilities
namespace ordermoe::training {

/// In the order of the help.
std::vector<std::string> shape_names();

/// Sets everything that the shape says: sizes, routing, rows of a step and learning rate. Error:
/// usage, where there is no such shape.
result<void> use_shape(train_options& options, std::string_view name);

}  // namespace ordermoe::training
