#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"

/// What servers compute on, by name:
///
///   cpu                   this project's kernels, on the processor
///   libtorch:DEVICE       LibTorch, on what it calls so: libtorch:cpu, libtorch:cuda:0
///   libtorch:DEVICE@LABEL the same, told apart by a label: libtorch:cuda:0@h100
///
/// Devices are of one kind where their names differ in the number alone. Servers of one kind give the
/// same bits for the same rows; servers of different kinds round differently, and what they give is
/// compared by tolerance and perplexity.
namespace ordermoe {

/// The kernels.
inline constexpr std::string_view kernels_device = "cpu";

/// Error: out_of_range, with what was found, what is expected and what to do.
result<void> check_device(std::string_view name);
/// "libtorch:cuda:0@h100" is of kind "libtorch:cuda@h100". Precondition: check_device.
std::string device_kind(std::string_view name);
/// What LibTorch calls it ("cuda:0"); empty for the kernels. Precondition: check_device.
std::string torch_device(std::string_view name);

/// The servers of one kind of device.
struct device_group {
  std::string kind;
  std::vector<std::string> servers;  ///< Names, in the order of their numbers.
};
/// In the order of their first servers.
std::vector<device_group> device_groups(const cluster& content);
/// Whether some server computes on anything else than the kernels.
bool names_devices(const cluster& content);
/// "cpu: desk, rack; libtorch:cuda: attic".
std::string to_string(const std::vector<device_group>& groups);
/// What to know of answers where servers are of several kinds, as a sentence without a full stop;
/// empty where all are of one kind.
std::string mixed_devices(const cluster& content);

}  // namespace ordermoe
