#pragma once

#include <cstdint>
#include <string>

#include "config/error.hpp"
#include "model/calibration.hpp"
#include "planning/profile.hpp"

namespace ordermoe::setup {

/// The least damage that a unit of predicted loss is taken to do, in nats: a measured coefficient
/// below it, negative ones included, is noise and must not make substitution free.
inline constexpr double least_damage = 1e-4;

/// Turns the model's raw statistics into the profile that planning reads: eqs. (4), (5) and (41),
/// distances, gates, target sets and damage coefficients. What a coarser copy does is often too
/// little to be told from noise: then its damage is taken to be the standard error.
planning::profile make_profile(const model::calibration_statistics& statistics,
                               std::string model_name, std::string model_digest,
                               std::uint64_t seed);

}  // namespace ordermoe::setup
