#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "config/ids.hpp"
#include "config/loss_metric.hpp"
#include "config/position_buckets.hpp"
#include "config/precision.hpp"

namespace ordermoe::planning {

/// A dense row-major matrix of doubles.
struct matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values;

  matrix() = default;
  matrix(std::size_t r, std::size_t c, double fill = 0)
      : rows(r), columns(c), values(r * c, fill) {}
  double& operator()(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  double operator()(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
  friend bool operator==(const matrix&, const matrix&) = default;
};

using ordermoe::loss_metric;
using ordermoe::n_loss_metrics;

/// A set of experts that the router chose together for a token, ascending.
struct target_set {
  std::vector<std::uint32_t> experts;  ///< [top_k]
  std::vector<double> mean_gate;       ///< [top_k], of each member over the tokens with this set.
  double probability = 0;              ///< Share of calibration tokens at this layer.
};

/// Nats per unit that a decision takes a substitution to do at least: what measured nothing is not free.
inline constexpr double damage_floor = 1e-6;

/// What a coarser copy of an expert does in its place: a substitution whose loss is
/// damage * gate^2 * distance^2 in nats, whatever the metric of other substitutions.
struct copy_profile {
  precision kept = precision::int8;
  /// D(r, copy of r) = sqrt(E |f_r(x) - f_copy(x)|^2 / E |y|^2) over tokens routed to r, y the layer's
  /// gated sum, [E].
  std::vector<double> distance;
  double damage = 0;        ///< Measured nats per unit of gate^2 * distance^2; >= 0.
  double damage_error = 0;  ///< Standard error of the same.
};

/// What a slot does in which no expert runs: damage * gate^2 in nats, whatever the metric of substitutions. Mostly it is the last slot that is
/// left out, and little of the layer's sum is lost; what half of the experts away do, the first ones among them, says little of that.
struct left_out_profile {
  double damage = 0;        ///< Measured nats per unit of the sum of gate^2; >= 0.
  double damage_error = 0;  ///< Standard error of the same.
};

struct layer_profile {
  std::vector<double> activation;  ///< f_l^j, eq. (5), [E]; sums to 1.
  matrix router_logit;             ///< Sim_l, eq. (4), [E, E], symmetric, diagonal 1.
  matrix token_gate_regret;  ///< Mean of p_r - p_k over tokens routed to r, [E, E], diagonal 0.
  std::vector<double> mean_gate;  ///< [E], over tokens routed to the expert.
  matrix transition;  ///< P_l(k -> k'), eq. (41), [E, E]; rows sum to 1; empty at the last layer.
  std::vector<target_set> sets;  ///< Observed target sets, or a sample of them (target_sets.hpp),
                                 ///< most frequent first; probabilities sum to 1.
  matrix set_transition;  ///< [sets here, sets at the next layer], rows sum to 1; empty at the last
                          ///< layer.
  /// [n_loss_metrics]: measured nats per unit of predicted loss; >= 0.
  std::vector<double> damage;
  std::vector<double> damage_error;  ///< [n_loss_metrics]: standard error of the same.
  std::vector<copy_profile> copies;  ///< Of the precisions that were measured, fine to coarse; the
                                     ///< same ones in every layer.
  /// None where it was not measured; with one expert a token nothing can be left out.
  std::optional<left_out_profile> left_out;

  /// Null where this precision was not measured.
  const copy_profile* copy_of(precision kept) const;
};

/// What calibration learnt about a model's experts: profile.json, version 1.
struct profile {
  std::string model_name;
  std::string model_digest;  ///< SHA-256 over config.json and the weight files' headers; ties a
                             ///< profile to a model.
  std::size_t n_layers = 0, n_experts = 0, top_k = 0;
  std::size_t calibration_tokens = 0;  ///< 0: nothing was measured (uniform_profile).
  std::uint64_t seed = 0;
  double baseline_nats = 0;  ///< Mean negative log-likelihood per token without substitution.
  std::vector<layer_profile> layers;
  /// By position_bucket(): what a loss that is predicted in nats does at a position, over what it does at later ones, as which the layers'
  /// damage is told; the last one is that of all that follow. Where little of a text has been read, many tokens may follow, and
  /// substitutes change which. Empty: 1 everywhere.
  std::vector<double> position_damage;
  /// Likewise by how many positions a text begins with behind which nobody reads what the model says, as within a prompt: what is done there
  /// reaches the tokens that follow by keys and values alone, and most of it only those that follow soon. Where buckets begin; between them in
  /// proportion, and the last one goes on.
  std::vector<double> unread_damage;
  /// Token ids of texts of the kind that it was calibrated on, which budgets are tuned on; empty: not kept.
  std::vector<std::vector<std::int32_t>> texts;
};

/// What is assumed of a model that nothing is known of: every expert is chosen as often as any other, whatever was
/// chosen before, none is like another, and a unit of loss does a nat of damage. Enough to place experts exactly, no
/// ground for a budget. Precondition: 0 < top_k <= n_experts.
profile uniform_profile(std::string model_name, std::string model_digest, std::size_t n_layers,
                        std::size_t n_experts, std::size_t top_k);

/// Shapes, ranges and sums as the comments above state them. Errors: mismatch (shape), out_of_range
/// (value); the message opens with the JSON path of what is wrong.
result<void> validate(const profile& content);

/// Reads and validates; errors name the file and the JSON path (layers[2].transition[3]).
result<profile> read_profile(const std::filesystem::path& path);
result<profile> parse_profile(const std::string& json, const std::string& place);
/// Stable key order; numbers round-trip exactly.
std::string profile_json(const profile& content);

}  // namespace ordermoe::planning
