#pragma once

#include <string>

#include "actors/runtime.hpp"

namespace ordermoe::actors {

/// The first line of a trace: everything that is needed to check the rest of it. docs/TRACE.md
/// states every field. `servers`: as they keep their experts; `chosen`: what the run begins with,
/// which the planner may have made; `gates`: the model's rule.
std::string header_line(const run_setup& setup, const cluster& servers, const strategy& chosen,
                        model::gate_rule gates);

struct trace_header {
  run_mode mode = run_mode::emulated;
  cluster servers;
  cost_profile costs;
  planning::profile experts;
  planning::plan plan;
  planning::selection_policy policy;
  planning::loss_units token_budget = 0;
  double allowance_factor = 1;
  bool continue_in_place = true;
  std::size_t chunk_rows = 0;
  std::size_t top_k = 0;
  model::gate_rule router_gates = model::gate_rule::renormalised;
};

/// Error: malformed or mismatch, naming the field.
result<trace_header> parse_header(const std::string& line, const std::string& place);

}  // namespace ordermoe::actors
