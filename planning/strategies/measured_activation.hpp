#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/error.hpp"
#include "planning/profile.hpp"
#include "planning/target_sets.hpp"

/// What routers chose while a model served: how it is counted, what servers tell each other of it, and a profile that
/// expects it. What a plan is rated by is the expected time of a decoded position, so decoded positions are what is counted.
namespace ordermoe::planning {

/// Target sets of a layer that are counted one by one: two slots of eight experts have 28. Where more occur, those that are
/// chosen often keep their places, and the last places hold a sample of the others.
inline constexpr std::size_t most_counted_sets = max_profile_sets;
/// Of them are told and kept so many, those left out counting for the one that shares most experts (target_sets.hpp).
/// Searches keep as many.
inline constexpr std::size_t most_told_sets = 64;

/// Of the rows that a layer's sets stand for.
inline constexpr std::uint32_t whole_share = 1'000'000;

/// What follows what is counted where a layer can have no more sets than are told, as two slots of eight experts or one of 64;
/// elsewhere nearly every row has a step of its own. Over all layers so many steps are told, the most frequent of each.
inline constexpr std::size_t most_told_steps = 16'384;

struct measured_set {
  std::vector<std::uint32_t> experts;  ///< [top_k], ascending
  std::uint32_t millionths = 0;        ///< Of the layer's rows, at least 1.

  double share() const { return static_cast<double>(millionths) / whole_share; }
  friend bool operator==(const measured_set&, const measured_set&) = default;
};

/// From a set of a layer to one of the next.
struct measured_step {
  std::vector<std::uint32_t> from, to;  ///< [top_k], ascending
  std::uint32_t millionths = 0;         ///< Of the rows whose step was seen, at least 1.
  friend bool operator==(const measured_step&, const measured_step&) = default;
};

/// Of each layer how many decoded rows count (old ones less), the shares of its experts as eq. (5) defines them, and the
/// target sets; no shares and no sets where no row was seen. Values that servers tell each other.
struct measured_activation {
  std::vector<double> rows;                 ///< [n_layers]
  std::vector<std::vector<double>> shares;  ///< [n_layers, n_experts], each layer's sum to 1
  /// [n_layers], most_told_sets at most, most frequent first; each layer's sum to whole_share. None where only experts were
  /// counted.
  std::vector<std::vector<measured_set>> sets = {};
  /// [n_layers] steps to the next layer, each once; what they lack to whole_share is not told. A server
  /// sees those that end with it. Empty together with step_rows where none were counted.
  std::vector<std::vector<measured_step>> steps = {};
  std::vector<double> step_rows = {};  ///< [n_layers] rows whose step was seen.

  /// Of the layer that has the fewest.
  double least_rows() const;
  friend bool operator==(const measured_activation&, const measured_activation&) = default;
};

/// A layer whose rows come to less than this is one of which nothing is known.
inline constexpr double least_weight = 1e-6;
/// What is left of it when every row counts so much less, 0 to 1: shares stay, layers that come to less than least_weight go.
measured_activation faded(measured_activation measured, double factor);
/// What a row counts that is so old: 2^(-age / half-life), and 1 where it is of the future.
double weight_at_age(std::int64_t age_ns, double half_life_s);
/// Of rows at different servers, each of this shape and at the same instant. Layers count as many rows as all of them together.
measured_activation sum_of(std::span<const measured_activation> parts, std::size_t n_layers,
                           std::size_t n_experts);
std::string activation_json(const measured_activation& measured);
/// Texts without sets, which earlier versions wrote, have none. Errors name `place`: malformed, out_of_range, and mismatch
/// where the shape is another.
result<measured_activation> parse_activation(const std::string& text, const std::string& place,
                                             std::size_t n_layers, std::size_t n_experts,
                                             std::size_t top_k);
/// [n_layers] by how much the shares differ from the profile's, 0 to 1 (total variation); 0 where nothing was measured.
std::vector<double> moved_shares(const profile& profile, const measured_activation& measured);

/// How often routers chose which experts together, old counts fading: a row loses half of its weight with every
/// `half_life_s`, however many come after it, and all of it in the end. Fading costs nothing: later rows weigh more instead, and what is
/// told is divided by what a row weighs now (forward decay: Cormode, Shkapenyuk, Srivastava and Xu, 2009). Holds at most most_counted_sets * (4 * top_k + 40) bytes for a
/// layer, 8 for each expert, and 8 * most_told_sets^2 where steps are counted.
class activation_statistics {
 public:
  activation_statistics() = default;
  activation_statistics(std::size_t n_layers, std::size_t n_experts, std::size_t top_k,
                        double half_life_s);

  /// What follows happens then, and everything before is so much older. A time before the last one counts as that.
  void fade_to(std::int64_t time_ns);

  /// Counts that begin with what was measured before, of this shape.
  void restore(const measured_activation& measured);
  /// targets [rows, top_k] of decoded rows at a layer, each row's ascending.
  void add(std::size_t layer, std::span<const std::uint32_t> targets);
  /// pairs [rows, 2, top_k]: what decoded rows chose at the layer before this one and here, each ascending. The rows are added
  /// besides.
  void add_steps(std::size_t layer, std::span<const std::uint32_t> pairs);

  /// Weight of the layer's rows in all, in rows.
  double rows(std::size_t layer) const { return layers_[layer].rows / weight_; }
  /// Of the layer that has the fewest.
  double least_rows() const;
  /// Rows that came in at the layer with the fewest, faded or not.
  std::uint64_t rows_seen() const;
  /// [n_experts] shares that sum to 1, as eq. (5) defines them; empty where nothing came in.
  std::vector<double> shares(std::size_t layer) const;
  std::size_t n_layers() const { return layers_.size(); }
  measured_activation now() const;

 private:
  struct layer_counts {
    std::vector<double> experts;                              ///< [n_experts] slots that took each
    std::vector<std::uint32_t> members;                       ///< [sets, top_k]
    std::vector<double> sets;                                 ///< Rows of each.
    std::unordered_map<std::uint64_t, std::uint32_t> places;  ///< Of a set's hash.
    double rows = 0;
    std::uint64_t seen = 0;
    std::vector<double>
        steps;  ///< [most_told_sets, most_told_sets] by places here and at the next layer.
    double step_rows = 0;
  };
  bool counts_steps() const;
  void weigh_anew();
  std::size_t place_of(layer_counts& counts, std::span<const std::uint32_t> targets);
  std::vector<std::uint32_t> members_at(const layer_counts& counts, std::size_t place) const;
  void restore_steps(const measured_activation& measured, std::size_t layer);

  std::size_t n_experts_ = 0, top_k_ = 0;
  double half_life_s_ = 0;
  std::int64_t time_ns_ = 0, landmark_ns_ = 0;
  double weight_ = 1;  ///< Of a row that comes now; one that came at landmark_ns_ has 1.
  std::vector<layer_counts> layers_;
};

/// The profile with what was measured in place of what it expected; one row of the profile stays beside it. Sets occur as
/// often as they were measured, experts too where the sets are a sample; sets that the profile did not have come in. What
/// follows what is the profile's as far as it can be: transitions keep the odds that calibration found between sets, and
/// experts, of neighbouring layers, and lead to what was measured there. Similarity, gates and damage stay. Valid where
/// `experts` is. Layers without a measurement expect what they did.
profile with_measured_activation(const profile& profile, const measured_activation& measured);

}  // namespace ordermoe::planning
