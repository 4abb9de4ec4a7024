#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/error.hpp"

/// Puts together what the servers of a cluster wrote, each for itself (sink::stamps), so that verify_trace can check it.
///
/// Lines go by their stamps: whatever causes a line comes before it. So do times: a line's is its stamp, since the
/// servers' own clocks may differ; those of batches are moved by when their server began. A change of plan or policy,
/// which every server writes, stands once.
namespace ordermoe::trace {

struct merge_summary {
  std::uint64_t lines = 0;
  std::uint64_t requests = 0;
};

/// One file for each server of the cluster, in any order. Errors name file:line: those of reading and writing; malformed
/// for what no server writes; mismatch where files are not of one run, or a server's is missing.
result<merge_summary> merge_traces(const std::vector<std::filesystem::path>& parts,
                                   const std::filesystem::path& into,
                                   const std::function<void(double share)>& progress = {});

}  // namespace ordermoe::trace
