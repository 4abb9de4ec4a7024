#include "model/torch_module.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ordermoe::model {

namespace {

namespace fs = std::filesystem;

constexpr const char* file_name = "libordermoe_torch.so";
constexpr const char* place_variable = "ORDERMOE_TORCH_MODULE";

std::vector<fs::path> places() {
  const char* named = std::getenv(place_variable);
  if (named != nullptr && *named != '\0') return {named};
  std::vector<fs::path> all;
  std::error_code status;
  const auto program = fs::read_symlink("/proc/self/exe", status).parent_path();
  if (!status) all = {program / file_name, program.parent_path() / "lib" / "ordermoe" / file_name};
  all.emplace_back(fs::path(ORDERMOE_BUILT_MODULES) / file_name);
  return all;
}

error absent(const std::vector<fs::path>& looked_at) {
  std::string list;
  for (const auto& path : looked_at) list += (list.empty() ? "" : ", ") + path.string();
  return {errc::unsupported,
          fmt::format("training and LibTorch's devices need {}, which is not at {}; build the "
                      "target ordermoe_torch, install the module there, or name its file in {}",
                      file_name, list, place_variable)};
}

result<void*> load() {
  const auto looked_at = places();
  std::error_code status;
  for (const auto& path : looked_at) {
    if (!fs::exists(path, status)) continue;
    void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr)
      return error{errc::unsupported,
                   fmt::format("{}: cannot be loaded: {}; install LibTorch (Debian: libtorch-dev) "
                               "or build the module again",
                               path.string(), ::dlerror())};
    using build_function = const char* (*)();
    const auto build =
        reinterpret_cast<build_function>(::dlsym(module, "ordermoe_torch_module_build"));
    const std::string_view found = build == nullptr ? "no module of OrderMoE" : build();
    if (found == torch_module_build) return module;
    // It stays: LibTorch does not bear being unloaded.
    return error{errc::unsupported,
                 fmt::format("{}: is '{}', expected '{}'; build the module and this program from "
                             "the same sources",
                             path.string(), found, torch_module_build)};
  }
  return absent(looked_at);
}

std::mutex guard;
void* loaded = nullptr;

}  // namespace

result<const void*> torch_entry(const char* name) {
  const std::scoped_lock lock(guard);
  if (loaded == nullptr) {
    const auto module = load();
    if (!module) return module.error();
    loaded = *module;
  }
  using entry_function = const void* (*)();
  const auto entry = reinterpret_cast<entry_function>(::dlsym(loaded, name));
  ORDERMOE_CHECK(entry != nullptr, fmt::format("the module has no entry {}", name));
  return entry();
}

bool torch_is_loaded() {
  const std::scoped_lock lock(guard);
  return loaded != nullptr;
}

}  // namespace ordermoe::model
