#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "bench/experiments/testbed/page.hpp"
#include "cli/testbed_measure.hpp"

/// Runs experiments into a folder, from where it was interrupted.
namespace ordermoe::cli {

struct testbed_request {
  std::filesystem::path folder;
  std::vector<const experiments::testbed::experiment*> experiments;
  experiments::testbed::scale how_much = experiments::testbed::scale::whole;
  std::uint64_t first_seed = 11, seeds = 5;
  std::size_t at_once = 1;  ///< Points that are measured at the same time; no row depends on it.
  experiments::testbed::settings settings;
};

struct testbed_outcome {
  /// Every experiment that the folder has, in the table's order.
  std::vector<experiments::testbed::measured_experiment> experiments;
  /// Of the first point that could not be measured, which has no row; or interrupted, and others have none either.
  std::optional<error> problem;
};

/// Measures every point that the folder lacks, and writes the files of each experiment that has it as soon as it is measured.
/// What one experiment measured is not measured again for another. A point that cannot be measured keeps no other from it.
/// Errors: those of claim_folder, folder_lock, read_rows, write_rows and testbed_bench::open.
result<testbed_outcome> run_experiments(const testbed_request& asked, testbed_bench& bench);

}  // namespace ordermoe::cli
