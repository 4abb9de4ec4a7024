#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "planning/hindsight/hindsight.hpp"

/// How far the decisions of a trace are from the best ones in hindsight (planning/hindsight/hindsight.hpp has the problem and what
/// it leaves out). Everything comes from the trace: its first line has cluster, charges, policy, profile and plan, request lines the
/// budgets, slot lines routers' scores and what was decided. Links are those of the cluster file, also where they were measured.
namespace ordermoe::trace {

struct gap_of_request {
  std::uint64_t request = 0;
  std::uint32_t access = 0;
  std::uint64_t positions = 0;  ///< Rows that decisions were made for: of the prompt, and decoded.
  loss_units budget = 0;
  planning::request_gap gap;
};

struct gap_summary {
  std::string strategy;
  std::vector<gap_of_request> requests;  ///< In the order in which they ended.
  std::uint64_t given_up = 0;            ///< Cancelled or failed: not looked at.
};

struct gap_options {
  planning::hindsight_options search;
  std::function<bool()> should_stop = {};
  std::function<void(double share)> progress = {};
};

/// Errors name file:line: not_found, io; malformed for a line that no run writes or a file that no closing line ends; unsupported
/// where the policy was changed by order; failed where decisions are not those of plan and policy; interrupted. What a whole
/// verification finds (verify_trace) is not looked for. Memory: the decisions of requests in flight.
result<gap_summary> find_gaps(const std::filesystem::path& path, const gap_options& options = {});

}  // namespace ordermoe::trace
