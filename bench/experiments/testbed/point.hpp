#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/precision.hpp"

/// What one row of an experiment measures: a strategy, a budget, and where it runs.
namespace ordermoe::experiments::testbed {

/// Nothing else that differs between the rows of a folder changes what is measured. The columns of a row begin with it.
struct point {
  std::string strategy;
  double percent = 0;        ///< Of perplexity that may be lost; negative: unbounded; 0 also: none.
  std::string without = {};  ///< redundancy or dispersion; empty: nothing is left out.
  std::optional<double> threshold = {};     ///< Of similarity in all layers; none: the strategy's.
  std::optional<std::size_t> horizon = {};  ///< Layers; 0: to the end; none: the strategy's.
  precision kept = precision::stored;  ///< Of all experts; memory_ratio is over the model kept so.
  double memory_ratio = 2;  ///< Expert memory of all servers over one copy of the experts.
  std::size_t n_servers = 8;
  std::size_t n_sites = 0;        ///< 0: no sites.
  double site_ms = 0;             ///< Between servers of different sites, one way.
  double uplink_mbit = 0;         ///< Of each server, per second; 0: links share none.
  double message_us = 0;          ///< Charged for each message between servers, besides its bytes.
  double batch_us = 0;            ///< Charged for each batch, besides its arithmetic.
  std::size_t prompt_tokens = 0;  ///< Of every request; 0: as the bundled prompts are.
  /// Requests a second; to_saturation: as many as are answered within the SLA in 19 of 20 cases.
  double rate = 4;
  std::uint64_t seed = 11;  ///< Of the cluster, arrivals and plans.
  friend bool operator==(const point&, const point&) = default;
};

inline constexpr double to_saturation = 0;

/// The columns of a point, and its values in them as text.
const std::vector<std::string>& point_columns();
std::vector<std::string> point_cells(const point& what);
/// Error: malformed, naming the column.
result<point> point_of(const std::vector<std::string>& cells);
/// The cells with commas between.
std::string key_of(const point& what);

/// The same thing to measure, spelled in one way: a strategy's own horizon is none.
point normal_form(point what);

/// "paper 7 % without redundancy": what it runs, wherever it does.
std::string variant_name(const point& what);

/// What is charged there: `costs` with the point's overheads, where it has any.
cost_profile costs_of(const point& what, cost_profile costs);

/// The cluster that a point runs on: drawn, and where there are sites every link between two of them `site_ms` long, at
/// the bandwidth that was drawn. `costs`: of the model as it is kept there.
cluster servers_of(const point& what, const cost_profile& costs, std::size_t n_layers,
                   std::size_t n_experts);

}  // namespace ordermoe::experiments::testbed
