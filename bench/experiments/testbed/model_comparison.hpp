#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/experiments/testbed/claim.hpp"
#include "bench/experiments/testbed/row_file.hpp"

/// The same strategies on several models: Fig. 6 of the paper.
namespace ordermoe::experiments::testbed {

/// What a folder has of `overall`.
struct measured_model {
  settings asked;
  std::vector<row> rows;
  std::string name() const {
    const auto found = asked.find("model");
    return found != asked.end() && found->is_string() ? found->get<std::string>() : std::string();
  }
};

/// Errors: not_found where the folder has no settings or no rows of `overall`; those of read_rows.
result<measured_model> read_measured_model(const std::filesystem::path& folder);

/// A column of latency and one of quality a model, in the order given; a line a variant that any of them has.
std::string model_table(const std::vector<measured_model>& all);

/// The paper's two findings for each model, and whether the first grows from the first model to the last, by a hundredth each time: in the order of the
/// paper from the smallest to the largest. Before them, what but the model differs between the folders.
std::vector<std::string> model_findings(const std::vector<measured_model>& all);

}  // namespace ordermoe::experiments::testbed
