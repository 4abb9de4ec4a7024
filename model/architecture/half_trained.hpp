#pragma once

#include <filesystem>

#include "config/error.hpp"

/// What a training that has not ended leaves: OUT is not there, OUT.training holds its checkpoints
/// and the command that goes on with them. No command takes either for a model.
namespace ordermoe::model {

/// The file of a state that holds the command.
inline constexpr const char* half_trained_name = "half-trained.txt";

/// The folder of the checkpoints while OUT is trained.
std::filesystem::path training_state_of(const std::filesystem::path& out);

/// Refuses the state of a training, and a folder that is not there or empty where there is such a
/// state beside it. Error: unsupported, with the command that goes on.
result<void> check_not_half_trained(const std::filesystem::path& folder);

}  // namespace ordermoe::model
