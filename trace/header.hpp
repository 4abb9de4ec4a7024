#pragma once

#include <cstdint>
#include <string>

#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "config/loss_units.hpp"
#include "model/architecture/routing.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"
#include "planning/serving/run_mode.hpp"

namespace ordermoe::trace {

/// The first line of a trace: everything that is needed to check the rest of it. docs/TRACE.md
/// states every field.
struct trace_header {
  serving::run_mode mode = serving::run_mode::emulated;
  std::uint64_t seed = 0;
  std::string strategy;
  double quality_percent = 0;
  loss_units token_budget = 0;
  double allowance_factor = 1;
  bool continue_in_place = true;
  std::size_t chunk_rows = 64;
  bool tells_choices = false;  ///< Tokens carry what was chosen for a decoded position: of a node.
  model::gate_rule router_gates = model::gate_rule::renormalised;
  cluster servers;  ///< As they keep their experts.
  cost_profile costs;
  planning::selection_policy policy;
  planning::profile profile;
  planning::plan plan;  ///< That the run begins with.
};

inline constexpr int trace_version = 3;

std::string header_line(const trace_header& header);
/// Error: malformed or mismatch, naming the field.
result<trace_header> parse_header(const std::string& line, const std::string& place);

/// A policy as a JSON object, and back. Error: malformed, naming the field.
std::string policy_json(const planning::selection_policy& policy);
result<planning::selection_policy> parse_policy(const std::string& text, const std::string& place);

}  // namespace ordermoe::trace
