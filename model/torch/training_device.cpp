#include "model/torch/training_device_torch.hpp"

#include <dlfcn.h>

#include <fmt/format.h>

namespace ordermoe::training {
namespace {

/// What the driver calls a CUDA device; the name of `where`, where it does not say.
std::string product_name(at::Device where) {
  if (where.is_cuda()) {
    // Loaded by LibTorch already.
    void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (void* found = driver ? ::dlsym(driver, "cuDeviceGetName") : nullptr) {
      char name[256] = {};
      const int index = where.has_index() ? where.index() : 0;
      if (reinterpret_cast<int (*)(char*, int, int)>(found)(name, sizeof name - 1, index) == 0)
        return name;
    }
  }
  return where.str();
}

}  // namespace

result<training_device> open_training_device(const std::string& name) {
  training_device opened;
  constexpr std::string_view prefix = "libtorch:";
  if (name.starts_with(prefix)) {
    try {
      opened.where = at::Device(name.substr(prefix.size()));
      static_cast<void>(at::empty({1}, at::TensorOptions().device(opened.where)).to(at::kCPU));
    } catch (const std::exception& problem) {
      const std::string what = problem.what();
      return error{errc::unsupported,
                   fmt::format("device '{}': {}; name one that this LibTorch knows (Debian's knows "
                               "libtorch:cpu alone), or cpu, which always works",
                               name, what.substr(0, what.find('\n')))};
    }
    opened.plain = true;
  } else if (name != "cpu") {
    return error{
        errc::unsupported,
        fmt::format("device '{}': expected cpu or libtorch:NAME, as in libtorch:cuda:0", name)};
  }
  opened.kept = {name, product_name(opened.where)};
  return opened;
}

}  // namespace ordermoe::training
