#pragma once

#include <cstddef>
#include <cstdint>

#include "planning/profile.hpp"

namespace ordermoe::planning {

/// A seeded random profile of a given shape, for tests and benchmarks: valid, with groups of
/// similar experts. It is measured on a small random router with correlated layers, so that
/// activation, sets and transitions agree with each other. At most 64 target sets a layer are kept;
/// a token with a rarer set counts for the kept set that shares most experts with it. 1 <= top_k <=
/// n_experts.
profile random_profile(std::size_t n_layers, std::size_t n_experts, std::size_t top_k,
                       std::uint64_t seed);

}  // namespace ordermoe::planning
