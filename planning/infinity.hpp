#pragma once

#include <limits>

namespace ordermoe::planning {

/// What something costs that cannot be, or that nobody has found yet.
inline constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace ordermoe::planning
