#pragma once

#include <filesystem>
#include <string>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"

namespace ordermoe::setup {

/// SHA-256 of what a small model with fixed weights of this family computes and samples here, with experts as they are stored,
/// in int8 and in int4 where that device has them (config/devices.hpp): two machines on which it is the same answer a prompt with the same ids. It takes some ten
/// milliseconds, and a folder below `scratch` while it runs. Errors: io; unsupported where there is no such device.
result<std::string> forward_digest(model::family kind, const std::filesystem::path& scratch,
                                   const std::string& device = "cpu");

}  // namespace ordermoe::setup
