#include "setup/node_device.hpp"

#include <fmt/format.h>

#include <utility>

#include "config/devices.hpp"
#include "setup/forward_digest.hpp"

namespace ordermoe::setup {

result<std::string> device_of(const node_file& file, const cluster& servers, std::uint32_t server) {
  const auto& stated = servers.servers[server].device;
  if (file.device.empty() || device_kind(file.device) == device_kind(stated))
    return file.device.empty() ? stated : file.device;
  return error{errc::mismatch,
               fmt::format("node {}: found device = \"{}\", expected one of kind {}, as {} has it "
                           "for this server: all nodes go by that file; write device = \"{}\" for "
                           "{} in the cluster file of all nodes, or leave it out here",
                           file.name, file.device, device_kind(stated), file.cluster.string(),
                           file.device, file.name)};
}

result<std::vector<net::agreement>> arithmetic_of(const std::string& device, model::family kind,
                                                  const std::filesystem::path& scratch) {
  auto computed = forward_digest(kind, scratch);
  if (!computed) return computed.error();
  std::vector<net::agreement> agreed{{"arithmetic", std::move(*computed)}};
  if (device == kernels_device) return agreed;
  auto there = forward_digest(kind, scratch, device);
  if (!there) return there.error();
  agreed.emplace_back(fmt::format("arithmetic[{}]", device_kind(device)), std::move(*there));
  return agreed;
}

}  // namespace ordermoe::setup
