#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "setup/texts.hpp"

/// `run --connect`: prompts to a cluster that runs.
namespace ordermoe::cli {

struct connected_run {
  std::string address, folder;  ///< Of a node; with certificates.
  std::vector<setup::prompt> prompts;
  std::uint32_t max_new_tokens = 64;
  double temperature = 0;
  std::uint64_t seed = 1;
  std::string stop;
  std::optional<double> quality_percent;  ///< Of prompts that state none; none: the plan's.
  std::size_t concurrency = 0;            ///< Requests at once at most; 0: all.
  bool json = false;
};

result<void> run_connected(const connected_run& options);

}  // namespace ordermoe::cli
