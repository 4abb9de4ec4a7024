#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"
#include "planning/strategies/measured_activation.hpp"

/// What a node keeps of what routers chose, over its end: `state/activation.json`, by which the plan in force was made, and
/// `state/counts.json`, what was counted here. Both stand beside the digest of the profile that plans go by otherwise, and hold for no
/// other profile.
///
///   version 1   {profile, activation}: no version stands there
///   version 2   {version, profile, written_ms, activation}: what was counted, and when
namespace ordermoe::setup {

std::string kept_activation_text(const std::string& profile_digest, const std::string& activation);
/// Counts as they were at `written_ms`, milliseconds since 1970.
std::string kept_counts_text(const std::string& profile_digest, const std::string& activation,
                             std::int64_t written_ms);

struct kept_activation {
  std::shared_ptr<const planning::measured_activation> content;  ///< Null: nothing was kept.
  std::optional<std::int64_t> written_ms;                        ///< None: version 1 does not say.
};
/// Nothing where there is no file, or one beside another profile. Errors name the file, what was found and what to do: a version of a
/// later build, another shape, and whatever else does not read.
result<kept_activation> read_kept_activation(const std::filesystem::path& path,
                                             const std::string& profile_digest,
                                             const model::model_config& shape);

}  // namespace ordermoe::setup
