#include "config/devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ordermoe {

namespace {

constexpr std::string_view torch_prefix = "libtorch:";
constexpr std::size_t longest_name = 64;

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_of_label(char c) {
  return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_';
}

/// libtorch:TYPE[:INDEX][@LABEL] apart; what is left out is empty.
struct torch_name {
  std::string_view type, index, label;
};

torch_name apart(std::string_view name) {
  torch_name made;
  name.remove_prefix(torch_prefix.size());
  if (const auto at = name.find('@'); at != std::string_view::npos) {
    made.label = name.substr(at + 1);
    name = name.substr(0, at);
  }
  if (const auto colon = name.find(':'); colon != std::string_view::npos) {
    made.index = name.substr(colon + 1);
    name = name.substr(0, colon);
  }
  made.type = name;
  return made;
}

bool is_device(std::string_view name) {
  if (name == kernels_device) return true;
  if (!name.starts_with(torch_prefix) || name.size() > longest_name) return false;
  const auto parts = apart(name);
  const auto behind = name.substr(torch_prefix.size());
  const bool has_index = behind.substr(0, behind.find('@')).find(':') != std::string_view::npos;
  const bool has_label = name.find('@') != std::string_view::npos;
  constexpr std::size_t most_digits = 3;
  return !parts.type.empty() && std::ranges::all_of(parts.type, is_lower) &&
         has_index == !parts.index.empty() && parts.index.size() <= most_digits &&
         std::ranges::all_of(parts.index, is_digit) && has_label == !parts.label.empty() &&
         std::ranges::all_of(parts.label, is_of_label);
}

}  // namespace

result<void> check_device(std::string_view name) {
  if (is_device(name)) return {};
  return error{errc::out_of_range,
               fmt::format("found device = \"{}\", expected cpu (the kernels), libtorch:cpu, or "
                           "libtorch: and another device that LibTorch knows, as in "
                           "libtorch:cuda:0 or libtorch:cuda:0@LABEL; correct it",
                           name.substr(0, 2 * longest_name))};
}

std::string device_kind(std::string_view name) {
  if (name == kernels_device) return std::string(name);
  const auto parts = apart(name);
  auto kind = fmt::format("{}{}", torch_prefix, parts.type);
  if (!parts.label.empty()) kind += fmt::format("@{}", parts.label);
  return kind;
}

std::string torch_device(std::string_view name) {
  if (name == kernels_device) return {};
  const auto parts = apart(name);
  return parts.index.empty() ? std::string(parts.type)
                             : fmt::format("{}:{}", parts.type, parts.index);
}

std::vector<device_group> device_groups(const cluster& content) {
  std::vector<device_group> groups;
  for (const auto& server : content.servers) {
    const auto kind = device_kind(server.device);
    auto found = std::ranges::find(groups, kind, &device_group::kind);
    if (found == groups.end()) found = groups.insert(found, {kind, {}});
    found->servers.push_back(server.name);
  }
  return groups;
}

bool names_devices(const cluster& content) {
  return std::ranges::any_of(
      content.servers, [](const server_spec& server) { return server.device != kernels_device; });
}

std::string to_string(const std::vector<device_group>& groups) {
  std::string text;
  for (const auto& each : groups)
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "; ", each.kind, fmt::join(each.servers, ", "));
  return text;
}

std::string mixed_devices(const cluster& content) {
  const auto groups = device_groups(content);
  if (groups.size() < 2) return {};
  return fmt::format(
      "servers compute on {} kinds of device ({}), which round differently: an answer's ids may "
      "depend on which server computed what, and are not claimed to be the reference's; compare "
      "by tolerance and perplexity",
      groups.size(), to_string(groups));
}

}  // namespace ordermoe
