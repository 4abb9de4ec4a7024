#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "planning/optimum/placement_model.hpp"

/// The best placement there is, as a mixed integer program that CBC (the COIN-OR branch and cut solver) solves.
///
///   x[m, l, e] in {0, 1}            server m has expert e of layer l                                    (c.3)
///   sum over l, e of x[m, l, e] <= room(m)             its memory, all experts weigh the same there     (c.1)
///   sum over m of x[m, l, e] >= 1                      each expert is somewhere                         (c.2)
///   u[l, s, n] in {0, 1}            the path goes from s to n at layer l; one closed path of a step a layer
///   y[l, s, n, q, w] >= 0           the set q is served in the way w, a server for each slot
///   sum over w of y[l, s, n, q, w] = u[l, s, n]
///   sum over s, n and ways w that use m for slot j of y <= x[m, l, target(q, j)]
///   minimise the cost of placement_model.hpp, which is linear in u and y
///
/// Where positions stay at their access servers (at_access), u is given, and every access server's y is weighed with its arrival share.
/// With free paths one path suffices for all, since what a decoded position costs does not depend on where its request came from.
namespace ordermoe::planning {

enum class program_paths {
  at_access,  ///< R_l = {access server}, as expert parallelism and the paper have it.
  free,       ///< Any closed path of one server a layer: pipelines and what is between.
};

struct program_options {
  program_paths paths = program_paths::free;
  double time_limit_s = 60;
  std::size_t node_limit = 1'000'000;  ///< Of branch and bound.
  std::size_t max_columns = 200'000;   ///< A larger program is not built.
  std::function<bool()> should_stop = {};
  /// A placement to begin with, [n_layers, n_experts], no better than which the answer is; empty: none.
  std::vector<server_mask> known = {};
};

struct placement_optimum {
  double ns = 0;                   ///< Of the best placement found, by placement_model.
  std::vector<server_mask> hosts;  ///< [n_layers, n_experts]; empty where none was found.
  residence_path path;             ///< Of free paths.
  double bound_ns = 0;             ///< No placement is faster, to 1e-6 of it.
  double relaxed_ns = 0;           ///< The LP relaxation's; 0 where it was not solved.
  bool is_exact = false;           ///< Proved: bound_ns and ns agree to 1e-6.
  std::size_t rows = 0, columns = 0, nodes = 0;
  std::string
      ended_by;  ///< "optimum", "time limit", "node limit", "size" (no program was built) or "solver".
};

/// What no placement can keep, naming the constraint: (c.1) with (c.2) where servers have less room in all than there are experts.
/// Error: infeasible.
result<void> check_room(const placement_model& model, const cluster& servers);

/// Columns that a program would have.
std::size_t count_columns(const placement_model& model, program_paths paths);

/// Errors: those of check_room; unsupported where CBC is not installed; interrupted; failed where CBC says what cannot be. Where a program is too large, or nothing is proved within the
/// limits, the bound is that of a placement that has every expert everywhere, or better where the relaxation was solved.
result<placement_optimum> optimal_placement(placement_model& model, const cluster& servers,
                                            const program_options& options);

}  // namespace ordermoe::planning
