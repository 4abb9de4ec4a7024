#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"
#include "planning/serving/token_rules.hpp"

namespace ordermoe::serving {

/// A plan and a policy, as servers need them. Named by the plan's epoch and the policy's version.
struct plan_in_force {
  planning::plan plan;
  planning::placement_index index;
  std::shared_ptr<const planning::selection_tables> tables;
  std::uint64_t policy = 0;  ///< Counts the changes of policy in the service.
  std::shared_ptr<const planning::profile> profile;  ///< What the tables were built from.
  decoding_policy decoding;
  /// The links that the tables were built for, as they were measured; null: those of the cluster file.
  std::shared_ptr<const std::vector<link_spec>> links = nullptr;
};

}  // namespace ordermoe::serving
