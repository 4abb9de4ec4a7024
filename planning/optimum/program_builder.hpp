#pragma once

#include <vector>

#include "planning/optimum/placement_program.hpp"
#include "planning/optimum/solver.hpp"

/// The program of placement_program.hpp. Costs are in milliseconds, so that the solver's tolerances fit them.
namespace ordermoe::planning::programming {

class placement_builder {
 public:
  placement_builder(const placement_model& model, program_paths paths);

  const linear_program& program() const { return program_; }
  /// What every solution costs besides.
  double constant_ms() const { return constant_ms_; }
  /// Values of the whole-numbered columns for a placement and, of free paths, a path.
  std::vector<double> start_of(const std::vector<server_mask>& hosts,
                               const residence_path& path) const;
  /// Which server has which expert in a solution, [n_layers, n_experts].
  std::vector<server_mask> hosts_in(const std::vector<double>& values) const;

 private:
  /// Residences at a layer and after it, and how often positions are there; 1 where paths are free.
  struct pair {
    std::size_t from, to;
    double weight;
  };
  /// Of one layer.
  struct service {
    std::vector<pair> pairs;
    std::vector<int> sum_rows;   ///< [pairs, sets]
    std::vector<int> link_rows;  ///< [pairs or 1, sets, slots, useful]
  };

  std::vector<pair> pairs_of(std::size_t layer) const;
  void add_placement_rows();
  void add_path_rows();
  void add_service_rows(std::size_t layer);
  void add_placement();
  void add_paths(std::size_t layer);
  void add_ways(std::size_t layer);
  void add_ways_of_set(std::size_t layer, std::size_t number, std::size_t set);
  double way_ms(std::size_t layer, const pair& between,
                const std::vector<std::uint8_t>& servers) const;

  const placement_model& model_;
  program_paths paths_;
  linear_program program_;
  double constant_ms_ = 0;
  std::vector<std::uint8_t> useful_;          ///< Servers with room.
  std::vector<int> memory_rows_, copy_rows_;  ///< [useful]; [layers, experts]
  std::vector<int> node_rows_;                ///< [layers, servers] what comes there goes on.
  int path_row_ = -1;                         ///< There is one path.
  std::vector<service> layers_;
  std::vector<std::vector<int>> linked_;  ///< [layers, experts, useful] rows that need this copy
};

}  // namespace ordermoe::planning::programming
