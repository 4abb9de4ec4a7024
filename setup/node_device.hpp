#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/node_file.hpp"
#include "model/architecture/model_config.hpp"
#include "net/session/hello.hpp"

/// What a node computes on, and what it says of that to others.
namespace ordermoe::setup {

/// The device of this node: that of its file where it names one, else that of its server in the cluster file. Error: mismatch
/// where the two are of different kinds, since all nodes go by the cluster file.
result<std::string> device_of(const node_file& file, const cluster& servers, std::uint32_t server);

/// Digests of what is computed here (forward_digest.hpp): on the kernels, in which all nodes agree, and on another
/// device, in which all nodes of its kind agree. Errors: those of forward_digest.
result<std::vector<net::agreement>> arithmetic_of(const std::string& device, model::family kind,
                                                  const std::filesystem::path& scratch);

}  // namespace ordermoe::setup
