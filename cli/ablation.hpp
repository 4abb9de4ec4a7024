#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "setup/preparation.hpp"

/// Strategies without one of their parts.
namespace ordermoe::cli {

struct ablation_flags {
  std::optional<double> threshold;   ///< One similarity threshold for all layers.
  std::vector<std::string> without;  ///< look-ahead, redundancy, dispersion, substitution

  void add(CLI::App& command);
  bool any() const { return threshold || !without.empty(); }
  bool leaves_out(std::string_view part) const;

  /// Of the one strategy that is asked for, whose options are set. Errors: usage where it has no such part, or an option says
  /// otherwise.
  result<void> apply(setup::preparation_request& request) const;
  /// Of one strategy among others: those of these parts that it has. In words: "without look-ahead; one threshold, 0.7"; empty
  /// where it has none.
  std::string apply_those_it_has(setup::preparation_request& request) const;
};

}  // namespace ordermoe::cli
