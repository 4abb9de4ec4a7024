#include "model/architecture/half_trained.hpp"

#include <fmt/format.h>

#include "config/files.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

fs::path training_state_of(const fs::path& out) {
  const auto plain = out.has_filename() ? out : out.parent_path();
  return plain.string() + ".training";
}

result<void> check_not_half_trained(const fs::path& folder) {
  std::error_code status;
  fs::path state = folder;
  if (!fs::exists(folder / half_trained_name, status)) {
    state = training_state_of(folder);
    const bool absent = !fs::exists(folder, status) || fs::is_empty(folder, status);
    if (!absent || !fs::exists(state / half_trained_name, status)) return {};
  }
  constexpr std::size_t longest_command = 1 << 16;
  const auto read = read_file(state / half_trained_name, longest_command);
  std::string command = read ? *read : std::string("ordermoe model train");
  while (!command.empty() && command.back() == '\n') command.pop_back();
  return error{errc::unsupported, fmt::format("{}: is half trained; go on with `{}`, or remove {}",
                                              folder.string(), command, state.string())};
}

}  // namespace ordermoe::model
