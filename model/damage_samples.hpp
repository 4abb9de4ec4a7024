#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "model/calibration.hpp"

/// From what substitutions did on some documents to what one does.
namespace ordermoe::model {

/// One document under one draw: what a substitution in one layer was predicted to lose and did, by position bucket.
struct damage_sample {
  explicit damage_sample(std::size_t n_buckets) : divergence(n_buckets), predicted(n_buckets) {}

  std::vector<double> divergence;  ///< Nats, summed over the bucket's positions.
  std::vector<double> predicted;
};

/// What a predicted loss does in each bucket over what it does at later positions: those from 31 on, or the last ones that the documents have. A
/// layer's samples are taken to have its damage times these, for which both are fitted in turn, as a Poisson distribution's would. A bucket of
/// which little is known is as the others are. [buckets], all above 0. Precondition: all samples have as many buckets.
std::vector<double> position_factors(std::span<const std::vector<damage_sample>> layers);

/// The damage of one layer where what is predicted counts `factors` times; mean_predicted is of what counts.
damage_measurement conclude(std::span<const damage_sample> samples, std::span<const double> factors,
                            double n_tokens);

}  // namespace ordermoe::model
