#pragma once

#include "planning/plan.hpp"

namespace ordermoe::planning {

/// Whether two plans place the same experts, let attention run at the same servers and keep experts alike, whatever their
/// planners say of them.
bool are_alike(const plan& a, const plan& b);

}  // namespace ordermoe::planning
