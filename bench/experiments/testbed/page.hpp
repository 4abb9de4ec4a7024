#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/experiments/testbed/claim.hpp"
#include "bench/experiments/testbed/row_file.hpp"

/// What people read of a folder.
namespace ordermoe::experiments::testbed {

/// The rows of one experiment.
struct measured_experiment {
  const experiment* of = nullptr;
  std::vector<row> rows;
};

/// A table in Markdown, medians over clusters with their 95 % intervals.
std::string table_text(const measured_experiment& content);

/// Every claim of the paper that these rows are about, for `paper` and, where it has the points, for `ordermoe`.
std::vector<judgement> judgements(const std::vector<measured_experiment>& all);
/// "Published 0.49, measured 0.62 [0.55, 0.70] on 5 clusters: agrees (0.99 or less), and not near the number."
std::string judgement_text(const judgement& one);

/// One HTML page that needs no other file: figures (NAME.svg of the folder, where there are any), tables, and the claims.
std::string page_html(const std::filesystem::path& folder, const settings& asked,
                      const std::vector<measured_experiment>& all);

}  // namespace ordermoe::experiments::testbed
