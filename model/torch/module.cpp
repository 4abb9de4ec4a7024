#include "model/torch/devices_torch.hpp"
#include "model/torch/training_torch.hpp"
#include "model/torch_module.hpp"

/// What torch_module.cpp looks for in the module, and all that the module shows.
#define ORDERMOE_ENTRY extern "C" __attribute__((visibility("default")))

ORDERMOE_ENTRY const char* ordermoe_torch_module_build() {
  return ordermoe::model::torch_module_build;
}

ORDERMOE_ENTRY const void* ordermoe_torch_devices() {
  return &ordermoe::model::torch_devices();
}

ORDERMOE_ENTRY const void* ordermoe_torch_training() {
  return &ordermoe::training::torch_training();
}
