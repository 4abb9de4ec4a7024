#pragma once

#include "model/compute_device.hpp"

namespace ordermoe::model {

/// The devices of the LibTorch that this is linked with.
const device_library& torch_devices();

}  // namespace ordermoe::model
