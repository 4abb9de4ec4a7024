#pragma once

#include <string>
#include <vector>

#include "bench/experiments/testbed/statistics.hpp"

/// Where substitution pays: `ordermoe` with a budget beside the fastest exact plan of the same setting and cluster, and beside
/// `static-pruning` with the same budget.
namespace ordermoe::experiments::testbed {

/// Exact strategies that a budget is compared with; `ordermoe` without one is another.
bool is_exact_rival(const point& what);

/// One budget in one setting.
struct map_cell {
  std::string setting;  ///< As place_name says it.
  point where;          ///< With the budget, on the first cluster.
  /// Time saved of the fastest exact plan's mean latency, in per cent; negative where it is slower. Clusters count on which an
  /// exact plan fits.
  std::optional<interval> saved_percent;
  /// As saved_percent, of `static-pruning` with the same budget: what leaving experts out for everybody saves by itself.
  std::optional<interval> saved_by_pruning_percent;
  /// Perplexity above that of the model with its experts at the setting's precision, which is what a budget is of: above what exact plans
  /// have there. Of clusters where that was measured.
  std::optional<interval> increase_percent;
  std::optional<interval> increase_by_pruning_percent;  ///< Likewise, of `static-pruning`.
  std::string fastest_exact;  ///< On most clusters; the first by name of several. Empty: none fits.
  std::size_t n_clusters = 0;
  /// Clusters on which no exact plan fits, but one with the budget does.
  std::size_t n_without_exact = 0;
  std::size_t n_rival_forms = 0;  ///< Clusters on which the budget's plan is an exact rival's.
  std::size_t n_core_forms = 0;  ///< Clusters on which it is a core of what `static-pruning` keeps.
  std::size_t n_pruned_forms = 0;  ///< Clusters on which it is one of `static-pruning`.
};
/// In the order of first rows; settings whose budget was not measured have no cell.
std::vector<map_cell> map_of(const experiment& of, const std::vector<row>& rows);

/// How much must be saved to count as paying, in per cent.
inline constexpr double pays_from_percent = 10;

/// In how many settings it pays, of which kind these are, and in how many more than the budget is lost; a sentence or more a budget.
std::vector<std::string> map_sentences(const std::vector<map_cell>& cells);

}  // namespace ordermoe::experiments::testbed
