#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "config/error.hpp"

/// Mixed integer programs, and CBC that solves them.
///
/// CBC comes into a process when something is solved, by dlopen: it brings a BLAS along, which every other command would start with.
/// It solves in a child process, so that an interrupt or a limit that it overlooks ends it at once, and whatever it does to
/// signals, memory and output stays there.
namespace ordermoe::planning::programming {

/// minimise cost * v, lower <= v <= upper, row_lower <= A v <= row_upper. Rows are added before the columns that name them.
class linear_program {
 public:
  /// Returns its number.
  int add_row(double low, double high);
  int add_column(double price, double low, double high, bool integer);
  /// Of the column added last.
  void add_entry(int row, double value);

  int rows() const { return static_cast<int>(row_lower.size()); }
  int columns() const { return static_cast<int>(cost.size()); }

  std::vector<double> cost, lower, upper, row_lower, row_upper;
  std::vector<int> integers;  ///< Columns.
  std::vector<int> first;     ///< [columns] into entries
  std::vector<int> entry_row;
  std::vector<double> entry_value;
};

struct solver_limits {
  double seconds = 60;  ///< Of the wall clock.
  std::size_t nodes = 1'000'000;
  std::function<bool()> should_stop = {};  ///< Asked ten times a second.
};

enum class solver_end { optimum, infeasible, time_limit, node_limit, other };

struct solution {
  solver_end end = solver_end::other;
  std::vector<double> values;  ///< [columns]; empty where none was found.
  double cost = 0;             ///< Of them.
  double bound =
      0;  ///< No solution costs less, to 1e-6 of it; of the relaxation where it is solved.
  std::size_t nodes = 0;
};

/// Errors: unsupported where CBC is not installed; interrupted; failed where it ends by itself.
/// Without that numbers are whole.
result<solution> solve_relaxed(const linear_program& program, const solver_limits& limits);
/// start: a value for each of `integers` to begin with; empty: none.
result<solution> solve(const linear_program& program, const solver_limits& limits,
                       const std::vector<double>& start);

}  // namespace ordermoe::planning::programming
