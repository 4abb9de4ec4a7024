#pragma once

#include <filesystem>

#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "planning/plan.hpp"

/// Where the time of decoded tokens goes, from a run's trace.
namespace ordermoe::experiments::testbed {

/// Means over decoded positions, in milliseconds; their sum is the mean time from one to the next.
struct time_parts {
  double network_ms = 0, compute_ms = 0, waiting_ms = 0;
};

/// Takes apart the time between decisions that follow one another. What one token alone would take is the longest way of
/// its slots there, the experts' links and batches of one row, and of its hidden state, then attention where it is next, at
/// the end of a position the output projection and the id's way to where the next one starts: the links of that way are
/// `network_ms`, the rest of it `compute_ms`. What the trace shows beyond it is `waiting_ms`: queues, batches that rows of others
/// share, keys and values of the context that are read, and rows that are not there yet.
///
/// Of a run whose plan and servers do not change. Errors: io; malformed where a line is not of a trace.
result<time_parts> time_parts_of(const std::filesystem::path& trace, const cluster& servers,
                                 const cost_profile& costs, const planning::plan& placed);

}  // namespace ordermoe::experiments::testbed
