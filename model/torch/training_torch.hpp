#pragma once

#include "model/training/training_backend.hpp"

namespace ordermoe::training {

/// Training with the LibTorch that this is linked with.
const training_backend& torch_training();

}  // namespace ordermoe::training
