#pragma once

#include <vector>

#include "bench/experiments/experiment.hpp"

/// Reports as people read them.
namespace ordermoe::cli {

/// The comparison table on stdout, at most 100 columns wide.
void print_table(const std::vector<experiments::strategy_report>& strategies);
/// A line where a strategy keeps the whole model coarser.
void print_whole_model(const experiments::strategy_report& report);
/// A line where a strategy that keeps budgets leaves experts out for everybody.
void print_pruning(const experiments::strategy_report& report);
/// A line where a strategy leaves slots out.
void print_left_out(const experiments::strategy_report& report);

}  // namespace ordermoe::cli
