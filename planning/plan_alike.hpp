#pragma once

#include "planning/plan.hpp"

namespace ordermoe::planning {

/// Whether two plans place the same experts in the same memories, let attention run at the same servers, prune alike and keep experts alike, whatever their
/// planners say of them.
bool are_alike(const plan& a, const plan& b);

}  // namespace ordermoe::planning
