#pragma once

#include <string>

#include <torch/torch.h>

#include "config/error.hpp"
#include "model/training/train.hpp"

namespace ordermoe::training {

/// Where a decoder trains, by the names of `--device`: cpu has the passes written for it,
/// libtorch:NAME computes with plain operations on a device that LibTorch knows (libtorch:cpu
/// among them).
struct training_device {
  at::Device where = at::kCPU;
  bool plain = false;
  trained_on kept;  ///< What a card says of it.
};

/// Errors: unsupported, where this LibTorch has no such device.
result<training_device> open_training_device(const std::string& name);

}  // namespace ordermoe::training
