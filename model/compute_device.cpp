#include "model/compute_device.hpp"

#include <fmt/format.h>

#include "model/torch_module.hpp"

namespace ordermoe::model {

result<std::shared_ptr<const compute_device>> open_device(const std::string& name) {
  const auto library = torch_entry("ordermoe_torch_devices");
  if (!library)
    return at(fmt::format("device 'libtorch:{}' (cpu, the kernels, always works)", name),
              library.error());
  return static_cast<const device_library*>(*library)->open(name);
}

}  // namespace ordermoe::model
