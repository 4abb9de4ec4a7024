#pragma once

#include <array>
#include <cstdlib>
#include <string>

/// Which of LibTorch's devices tests compute on.
namespace ordermoe::test {

/// LibTorch's processor, or the device that ORDERMOE_TEST_DEVICE names: "libtorch:cuda:0".
inline std::string libtorch_device() {
  const char* given = std::getenv("ORDERMOE_TEST_DEVICE");
  return given == nullptr || *given == '\0' ? "libtorch:cpu" : given;
}

/// The kernels, and that device.
inline std::array<std::string, 2> both_devices() {
  return {"cpu", libtorch_device()};
}

}  // namespace ordermoe::test
